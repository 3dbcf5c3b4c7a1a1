//! Merge loop of the byte-pair encoders: merges the adjacent pair of the best rank until none is
//! left.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::index::NONE;
use crate::token::TokenId;

/// Piece of the text being encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Symbol {
    /// Token of the piece, or [`NONE`].
    pub(crate) id: TokenId,
    /// Start of the piece, in bytes of the text.
    pub(crate) start: u32,
    /// Length in bytes.
    pub(crate) len: u32,
}

/// Possible merge of a pair. Ordered by rank: lower ranks are merged first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Merge {
    /// Priority, lower first. Of equal ranks the leftmost pair is merged first.
    pub(crate) rank: u32,
    /// Token of the merged piece.
    pub(crate) id: TokenId,
}

/// Up to this many symbols, a scan for the best pair beats a heap (measured on English and on
/// random letters).
const SCAN_LIMIT: usize = 32;

/// Reusable buffers of [`Merger::run`].
#[derive(Debug, Default)]
pub(crate) struct Merger {
    pairs: Vec<Option<Merge>>,
    heap: BinaryHeap<Reverse<Candidate>>,
    links: Vec<Link>,
}

/// Pair in the heap. Field order is the order of merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    id: TokenId,
    /// Length of the merged piece in bytes; the candidate is stale if the pair's differs.
    len: u32,
}

/// Neighbours of a remaining symbol; a symbol merged into its left neighbour has `len` 0.
#[derive(Debug, Clone, Copy)]
struct Link {
    previous: u32,
    next: u32,
}

impl Merger {
    /// Merges symbols in place until `lookup` returns no adjacent pair. O(n log n) for n symbols.
    pub(crate) fn run(
        &mut self,
        symbols: &mut Vec<Symbol>,
        lookup: impl Fn(&Symbol, &Symbol) -> Option<Merge>,
    ) {
        match symbols.len() {
            0 | 1 => {}
            n if n <= SCAN_LIMIT => self.scan(symbols, lookup),
            _ => self.drain_heap(symbols, lookup),
        }
    }

    fn scan(&mut self, symbols: &mut Vec<Symbol>, lookup: impl Fn(&Symbol, &Symbol) -> Option<Merge>) {
        let pairs = &mut self.pairs;
        pairs.clear();
        pairs.extend(symbols.windows(2).map(|pair| lookup(&pair[0], &pair[1])));
        loop {
            let mut best: Option<(u32, usize, TokenId)> = None;
            for (i, pair) in pairs.iter().enumerate() {
                if let Some(merge) = pair
                    && best.is_none_or(|(rank, ..)| merge.rank < rank)
                {
                    best = Some((merge.rank, i, merge.id));
                }
            }
            let Some((_, i, id)) = best else { return };
            let right = symbols.remove(i + 1);
            symbols[i].id = id;
            symbols[i].len += right.len;
            pairs.remove(i);
            if i > 0 {
                pairs[i - 1] = lookup(&symbols[i - 1], &symbols[i]);
            }
            if i < pairs.len() {
                pairs[i] = lookup(&symbols[i], &symbols[i + 1]);
            }
        }
    }

    fn drain_heap(&mut self, symbols: &mut Vec<Symbol>, lookup: impl Fn(&Symbol, &Symbol) -> Option<Merge>) {
        let n = symbols.len() as u32;
        let candidate = |symbols: &[Symbol], left: u32, right: u32| {
            let (a, b) = (&symbols[left as usize], &symbols[right as usize]);
            lookup(a, b).map(|m| Reverse(Candidate { rank: m.rank, left, id: m.id, len: a.len + b.len }))
        };
        self.links.clear();
        self.links.extend((0..n).map(|i| Link {
            previous: if i == 0 { NONE } else { i - 1 },
            next: if i + 1 == n { NONE } else { i + 1 },
        }));
        let links = &mut self.links;
        // Building a heap from a vector is linear; pushing one by one is not.
        let mut first = std::mem::take(&mut self.heap).into_vec();
        first.clear();
        first.extend((1..n).filter_map(|right| candidate(symbols, right - 1, right)));
        self.heap = BinaryHeap::from(first);

        while let Some(Reverse(best)) = self.heap.pop() {
            let left = best.left;
            let right = links[left as usize].next;
            if symbols[left as usize].len == 0
                || right == NONE
                || symbols[left as usize].len + symbols[right as usize].len != best.len
            {
                continue;
            }
            symbols[left as usize].id = best.id;
            symbols[left as usize].len = best.len;
            symbols[right as usize].len = 0;
            let next = links[right as usize].next;
            links[left as usize].next = next;
            if next != NONE {
                links[next as usize].previous = left;
                self.heap.extend(candidate(symbols, left, next));
            }
            let previous = links[left as usize].previous;
            if previous != NONE {
                self.heap.extend(candidate(symbols, previous, left));
            }
        }
        symbols.retain(|symbol| symbol.len > 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Rule on lengths and ids that has many ties and chains.
    fn rule(a: &Symbol, b: &Symbol) -> Option<Merge> {
        let joined = a.len + b.len;
        (a.id % 3 != b.id % 5 && joined < 12)
            .then_some(Merge { rank: (a.id ^ b.id) % 7 + joined / 3, id: (a.id * 31 + b.id * 17) % 101 })
    }

    proptest! {
        #[test]
        fn scanning_and_the_heap_join_the_same_pairs(ids in prop::collection::vec(0u32..101, 2..200)) {
            let symbols: Vec<Symbol> =
                ids.iter().enumerate().map(|(i, &id)| Symbol { id, start: i as u32, len: 1 }).collect();
            let (mut scanned, mut heaped) = (symbols.clone(), symbols);
            Merger::default().scan(&mut scanned, rule);
            Merger::default().drain_heap(&mut heaped, rule);
            prop_assert_eq!(scanned, heaped);
        }
    }

    #[test]
    fn no_symbols_is_no_work() {
        let mut none = Vec::new();
        Merger::default().run(&mut none, rule);
        assert!(none.is_empty());
    }
}
