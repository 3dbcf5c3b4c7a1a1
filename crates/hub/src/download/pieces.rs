//! Received ranges of a file.

use std::ops::Range;

/// The shortest piece that a file is divided into for the sake of more connections.
const SHORTEST: u64 = 8 << 20;

/// A file divided into pieces of equal length, the last perhaps shorter. Each is filled from its
/// start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pieces {
    bytes: u64,
    piece_bytes: u64,
    /// Bytes that have arrived of each piece.
    done: Vec<u64>,
    /// Pieces before this one are taken or finished.
    next: usize,
}

impl Pieces {
    /// A file of which nothing has arrived.
    pub(super) fn new(bytes: u64, piece_bytes: u64) -> Self {
        let piece_bytes = piece_bytes.max(1);
        // A file of so many pieces would not fit into any memory, nor onto any disk.
        let n_pieces = usize::try_from(bytes.div_ceil(piece_bytes)).unwrap_or(usize::MAX);
        Self { bytes, piece_bytes, done: vec![0; n_pieces], next: 0 }
    }

    /// The length of pieces that gives each of `connections` something to do, `longest` at most.
    pub(super) fn sensible_length(bytes: u64, connections: usize, longest: u64) -> u64 {
        let longest = longest.max(1);
        (bytes / connections.max(1) as u64).clamp(SHORTEST.min(longest), longest)
    }

    /// A file of which `done` has arrived; `None` when that cannot be.
    pub(super) fn resumed(bytes: u64, piece_bytes: u64, done: Vec<u64>) -> Option<Self> {
        let n_pieces = (piece_bytes > 0).then(|| bytes.div_ceil(piece_bytes))?;
        let pieces = Self { bytes, piece_bytes, done, next: 0 };
        let fits = pieces.done.len() as u64 == n_pieces
            && (0..pieces.done.len()).all(|i| pieces.done[i] <= pieces.whole(i).end - pieces.whole(i).start);
        fits.then_some(pieces)
    }

    /// Length of a piece, but for the last.
    pub(super) fn piece_bytes(&self) -> u64 {
        self.piece_bytes
    }

    /// Bytes that have arrived of each piece.
    pub(super) fn done(&self) -> &[u64] {
        &self.done
    }

    /// Bytes that have arrived of the file.
    pub(super) fn done_bytes(&self) -> u64 {
        self.done.iter().sum()
    }

    /// Pieces of which bytes are missing.
    pub(super) fn n_unfinished(&self) -> usize {
        (0..self.done.len()).filter(|&piece| !self.missing(piece).is_empty()).count()
    }

    /// A piece that nobody has taken yet and of which bytes are missing.
    pub(super) fn take(&mut self) -> Option<usize> {
        while self.next < self.done.len() {
            self.next += 1;
            if !self.missing(self.next - 1).is_empty() {
                return Some(self.next - 1);
            }
        }
        None
    }

    /// Byte range of a piece in the file.
    pub(super) fn whole(&self, piece: usize) -> Range<u64> {
        let start = piece as u64 * self.piece_bytes;
        start..start.saturating_add(self.piece_bytes).min(self.bytes)
    }

    /// Byte range of a piece that is still missing.
    pub(super) fn missing(&self, piece: usize) -> Range<u64> {
        let whole = self.whole(piece);
        whole.start + self.done[piece]..whole.end
    }

    /// Another `n_bytes` of a piece have arrived.
    pub(super) fn advance(&mut self, piece: usize, n_bytes: u64) {
        self.done[piece] += n_bytes;
    }

    /// A piece has to be fetched from its start.
    pub(super) fn restart(&mut self, piece: usize) {
        self.done[piece] = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_cover_the_file_once(bytes in 0u64..1000, piece_bytes in 1u64..300) {
            let mut pieces = Pieces::new(bytes, piece_bytes);
            let mut end = 0;
            while let Some(piece) = pieces.take() {
                let missing = pieces.missing(piece);
                prop_assert_eq!(missing.start, end);
                prop_assert!(missing.end > missing.start && missing.end - missing.start <= piece_bytes);
                end = missing.end;
                pieces.advance(piece, missing.end - missing.start);
            }
            prop_assert_eq!((end, pieces.done_bytes(), pieces.n_unfinished()), (bytes, bytes, 0));
        }

        #[test]
        fn what_was_done_is_not_done_again(bytes in 1u64..1000, piece_bytes in 1u64..300, part in 0u64..300) {
            let fresh = Pieces::new(bytes, piece_bytes);
            let part_of = |i| part.min(fresh.whole(i).end - fresh.whole(i).start);
            let done: Vec<u64> = (0..fresh.done().len()).map(part_of).collect();
            let mut resumed = Pieces::resumed(bytes, piece_bytes, done.clone()).unwrap();
            let mut fetched = 0;
            while let Some(piece) = resumed.take() {
                fetched += resumed.missing(piece).end - resumed.missing(piece).start;
            }
            prop_assert_eq!(fetched, bytes - done.iter().sum::<u64>());
        }
    }

    #[test]
    fn impossible_states_are_refused() {
        assert!(Pieces::resumed(100, 50, vec![50, 50]).is_some());
        for (bytes, piece_bytes, done) in [
            (100, 50, vec![50]),
            (100, 50, vec![51, 0]),
            (100, 0, vec![]),
            (90, 50, vec![0, 41]),
            (0, 1, vec![0]),
        ] {
            assert_eq!(Pieces::resumed(bytes, piece_bytes, done), None);
        }
    }

    #[test]
    fn pieces_are_as_long_as_is_sensible() {
        let mib = 1 << 20;
        assert_eq!(Pieces::sensible_length(1 << 40, 8, 64 * mib), 64 * mib);
        assert_eq!(Pieces::sensible_length(160 * mib, 8, 64 * mib), 20 * mib);
        assert_eq!(Pieces::sensible_length(5, 8, 64 * mib), 8 * mib);
        assert_eq!(Pieces::sensible_length(5, 0, 0), 1);
    }
}
