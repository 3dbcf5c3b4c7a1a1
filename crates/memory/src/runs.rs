//! Free runs: maximal contiguous free spans.

use std::collections::{BTreeMap, BTreeSet};

use crate::Fit;
use crate::region::Span;

/// Free spans by start and by length.
pub(crate) struct FreeRuns {
    by_start: BTreeMap<usize, Span>,
    /// (length, start), for best fit.
    by_len: BTreeSet<(usize, usize)>,
    fit: Fit,
}

impl FreeRuns {
    pub(crate) fn new(all: Span, fit: Fit) -> Self {
        let mut runs = Self { by_start: BTreeMap::new(), by_len: BTreeSet::new(), fit };
        runs.insert(all);
        runs
    }

    /// Takes `len` bytes from the front of a long enough run: the shortest (best fit) or the first.
    pub(crate) fn take(&mut self, len: usize) -> Option<Span> {
        let start = match self.fit {
            Fit::Best => self.by_len.range((len, 0)..).next()?.1,
            Fit::First => *self.by_start.iter().find(|(_, run)| run.len() >= len)?.0,
        };
        let mut run = self.by_start.remove(&start)?;
        self.by_len.remove(&(run.len(), start));
        let rest = run.split_off(len);
        if rest.len() > 0 {
            self.add(rest);
        }
        Some(run)
    }

    /// Inserts a span and merges it with adjacent runs.
    pub(crate) fn insert(&mut self, mut span: Span) {
        if let Some(next) = self.by_start.remove(&span.end()) {
            self.by_len.remove(&(next.len(), next.start()));
            span.append(next);
        }
        match self.by_start.range_mut(..span.start()).next_back() {
            Some((_, previous)) if previous.end() == span.start() => {
                self.by_len.remove(&(previous.len(), previous.start()));
                previous.append(span);
                self.by_len.insert((previous.len(), previous.start()));
            }
            _ => self.add(span),
        }
    }

    /// Length of the longest run in bytes.
    pub(crate) fn longest(&self) -> usize {
        self.by_len.last().map_or(0, |&(len, _)| len)
    }

    /// All runs in order of address.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Span> {
        self.by_start.values_mut()
    }

    fn add(&mut self, run: Span) {
        self.by_len.insert((run.len(), run.start()));
        self.by_start.insert(run.start(), run);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::region::Region;
    use proptest::prelude::*;

    const UNIT: usize = 64;
    const UNITS: usize = 48;

    /// Lengths and starts, in units, of the maximal free runs of a bitmap.
    fn runs_of(free: &[bool]) -> Vec<(usize, usize)> {
        let mut runs = Vec::new();
        let mut at = 0;
        for run in free.chunk_by(|a, b| a == b) {
            if run[0] {
                runs.push((run.len(), at));
            }
            at += run.len();
        }
        runs
    }

    proptest! {
        #[test]
        fn runs_agree_with_a_bitmap(
            best in any::<bool>(),
            steps in prop::collection::vec((any::<bool>(), 1..12_usize, any::<prop::sample::Index>()), 1..200),
        ) {
            let (_region, all) = Region::reserve(UNITS * UNIT, UNIT).unwrap();
            let mut runs = FreeRuns::new(all, if best { Fit::Best } else { Fit::First });
            let mut free = [true; UNITS];
            let mut held = Vec::<Span>::new();
            for (take, n, index) in steps {
                if take {
                    let fitting = runs_of(&free).into_iter().filter(|&(len, _)| len >= n);
                    let expected = if best { fitting.min() } else { fitting.min_by_key(|run| run.1) };
                    let span = runs.take(n * UNIT);
                    prop_assert_eq!(span.as_ref().map(|span| span.start() / UNIT), expected.map(|run| run.1));
                    if let Some(span) = span {
                        prop_assert_eq!(span.len(), n * UNIT);
                        free[span.start() / UNIT..span.end() / UNIT].fill(false);
                        held.push(span);
                    }
                } else if !held.is_empty() {
                    let span = held.swap_remove(index.index(held.len()));
                    free[span.start() / UNIT..span.end() / UNIT].fill(true);
                    runs.insert(span);
                }
                let expected = runs_of(&free);
                let actual: Vec<_> = runs.iter_mut().map(|run| (run.len() / UNIT, run.start() / UNIT)).collect();
                prop_assert_eq!(runs.longest() / UNIT, expected.iter().map(|run| run.0).max().unwrap_or(0));
                prop_assert_eq!(actual, expected);
            }
        }
    }
}
