//! Attention calls of a span of queries. Where attention is chunked, a query sees the keys of its
//! own chunk up to itself. Kernels know no chunks: the queries of one are a call over a view that
//! begins with it, or where it begins within a block, a call each, with a window of its own.

/// Consecutive queries of a span that are one attention call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Blocks of the view that the call leaves out at the beginning.
    pub(super) skipped_blocks: usize,
    /// Position of the first query in what is left of the view.
    pub(super) start: usize,
    /// Number of queries.
    pub(super) len: usize,
    /// Keys that a query sees up to itself; `None`: all of the call.
    pub(super) window: Option<usize>,
}

/// The calls of the queries at these positions, in order; without chunks one. `dropped` positions
/// are no longer in the view, which has blocks of `block_tokens` tokens.
///
/// The call of a query depends on its position alone, so that its result does too.
pub(super) fn pieces(
    positions: std::ops::Range<usize>,
    chunk: Option<usize>,
    (dropped, block_tokens): (usize, usize),
) -> impl Iterator<Item = Piece> {
    let chunk = chunk.unwrap_or(usize::MAX);
    let mut next = positions.start;
    std::iter::from_fn(move || {
        if next >= positions.end {
            return None;
        }
        let first = next / chunk * chunk;
        let begin = first.saturating_sub(dropped);
        let is_aligned = begin.is_multiple_of(block_tokens);
        let skipped_blocks = begin / block_tokens;
        let piece = Piece {
            skipped_blocks,
            start: next - dropped - skipped_blocks * block_tokens,
            len: if is_aligned { first.saturating_add(chunk).min(positions.end) - next } else { 1 },
            window: (!is_aligned).then(|| next - dropped - begin + 1),
        };
        next += piece.len;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_query_sees_its_chunk_up_to_itself(
            start in 0_usize..300,
            len in 0_usize..200,
            chunk in prop::option::of(1_usize..120),
            block_tokens in prop::sample::select(&[16_usize, 32][..]),
        ) {
            let mut position = start;
            for piece in pieces(start..start + len, chunk, (0, block_tokens)) {
                for query in 0..piece.len {
                    let view = piece.skipped_blocks * block_tokens;
                    let end = view + piece.start + query + 1;
                    let begin = piece.window.map_or(view, |window| end - window);
                    let expected = chunk.map_or(0, |chunk| position / chunk * chunk);
                    prop_assert_eq!((begin, end), (expected, position + 1));
                    position += 1;
                }
            }
            prop_assert_eq!(position, start + len);
        }

        #[test]
        fn a_query_has_the_same_call_in_every_span(
            position in 0_usize..300,
            before in 0_usize..70,
            chunk in 1_usize..120,
        ) {
            let alone = pieces(position..position + 1, Some(chunk), (0, 32)).next().expect("a call");
            let last = pieces(position.saturating_sub(before)..position + 1, Some(chunk), (0, 32)).last();
            let last = last.expect("a call");
            prop_assert_eq!(
                (last.skipped_blocks, last.start + last.len, last.window),
                (alone.skipped_blocks, alone.start + 1, alone.window)
            );
        }
    }

    #[test]
    fn dropped_tokens_are_not_counted() {
        let calls: Vec<Piece> = pieces(150..170, Some(80), (64, 32)).collect();
        let of = |skipped_blocks, start, len, window| Piece { skipped_blocks, start, len, window };
        assert_eq!(calls[0], of(0, 86, 1, Some(71)), "a chunk from 80 is at 16 of the view");
        assert_eq!(calls[10], of(3, 0, 10, None), "one from 160 at 96");
        assert_eq!(calls.len(), 11);
    }
}
