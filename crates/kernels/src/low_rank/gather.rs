//! Rows of a step sorted by their adapters, and the tasks of the two dispatches.

use std::cmp::Ordering;
use std::ops::Range;

use super::shape::{Expansion, LowRank};
use super::{ALONE, LowRankScratch, LowRankTerm};

/// Components of the rank per shrink task.
pub(super) const COMPONENTS: usize = 8;

/// Rows per task: their inputs and products stay in the second-level cache.
pub(super) const ROWS: usize = 32;

/// Columns of a strip are a multiple of this many.
const COLUMN_STEP: usize = 64;

/// Most columns of a strip: products of one row, or of several, stay in the first-level cache.
const COLUMNS: [usize; 2] = [2048, 512];

/// Tasks per thread that are aimed at, so that the last ones are short beside the whole.
const TASKS_PER_THREAD: usize = 8;

/// Row of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// Index of the row in inputs and products.
    pub(super) row: usize,
    /// First of its terms.
    pub(super) term: usize,
}

/// Rows that have the same updates in the same order; scales may differ.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// First term of the first row.
    pub(super) term: usize,
    /// Terms of each row.
    pub(super) n_terms: usize,
}

/// Rows of a run that share the reading of a factor, at most [`ROWS`].
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) run: usize,
    /// Range of the sorted rows.
    pub(super) rows: Range<usize>,
    /// Place of its weights: for each term and each of its expansions the components that this
    /// reads, `[components, rows]`.
    pub(super) weights: usize,
}

/// Products of components of an `A` with rows of a part.
#[derive(Debug, Clone)]
pub(crate) struct ShrinkTask {
    pub(super) part: usize,
    /// Index of the term among those of each row.
    pub(super) term: usize,
    /// Place of the term's weights in those of a row.
    pub(super) place: usize,
    pub(super) components: Range<usize>,
}

/// A strip of columns of one target for rows of a part.
#[derive(Debug, Clone)]
pub(crate) struct ExpandTask {
    pub(super) part: usize,
    pub(super) target: usize,
    pub(super) columns: Range<usize>,
}

/// Multiplications of both halves.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Work {
    pub(super) shrink: usize,
    pub(super) expand: usize,
}

impl LowRankScratch {
    /// Sorts the rows of `terms`, and lists their parts and the tasks of the first half.
    pub(super) fn gather(&mut self, terms: &[LowRankTerm<'_>]) -> Work {
        let Self { lists, rows, runs, parts, shrink, weights, .. } = self;
        lists.clear();
        rows.clear();
        runs.clear();
        parts.clear();
        shrink.clear();
        let lists_of = terms.chunk_by(|a, b| a.rows == b.rows);
        lists.extend(lists_of.scan(0, |end, list| {
            let start = *end;
            *end += list.len();
            Some(start..*end)
        }));
        lists.sort_unstable_by(|a, b| {
            order(&terms[a.clone()], &terms[b.clone()]).then_with(|| a.start.cmp(&b.start))
        });
        let (mut n_weights, mut work) = (0, Work::default());
        for list in lists.chunk_by(|a, b| order(&terms[a.clone()], &terms[b.clone()]).is_eq()) {
            let first = rows.len();
            for list in list {
                rows.extend(terms[list.start].rows.clone().map(|row| Row { row, term: list.start }));
            }
            let updates = &terms[list[0].clone()];
            let n_rows = rows.len() - first;
            let width: usize = updates.iter().map(|term| weights_of(&term.update)).sum();
            for LowRankTerm { update, .. } in updates {
                let shape = update.shape();
                work.shrink += n_rows * shape.rank() * shape.inputs();
                let of = |expansion: &Expansion| n_rows * expansion.rank * expansion.outputs;
                work.expand += shape.expansions().iter().map(of).sum::<usize>();
            }
            for rows in pieces(first..rows.len(), ROWS) {
                list_shrink(shrink, parts.len(), updates);
                let n_rows = rows.len();
                parts.push(Part { run: runs.len(), rows, weights: n_weights });
                n_weights += n_rows * width;
            }
            runs.push(Run { term: list[0].start, n_terms: list[0].len() });
        }
        weights.resize(weights.len().max(n_weights), 0.0);
        work
    }

    /// Lists the tasks of the second half as strips of columns, for so many threads.
    pub(super) fn list_expand(&mut self, terms: &[LowRankTerm<'_>], work: Work, threads: usize) {
        let Self { runs, parts, expand, .. } = self;
        expand.clear();
        let share =
            if work.expand < ALONE { work.expand } else { work.expand / (threads * TASKS_PER_THREAD) };
        for (index, part) in parts.iter().enumerate() {
            let run = &runs[part.run];
            list_strips(expand, index, part, &terms[run.term..run.term + run.n_terms], share);
        }
    }
}

/// Weights of one row for an update.
pub(super) fn weights_of(update: &LowRank<'_>) -> usize {
    update.shape().expansions().iter().map(|expansion| expansion.rank).sum()
}

/// Any order of lists of updates in which equal lists are neighbours.
fn order(a: &[LowRankTerm<'_>], b: &[LowRankTerm<'_>]) -> Ordering {
    a.iter().map(|term| term.update.place()).cmp(b.iter().map(|term| term.update.place()))
}

/// Ranges of at most `most` items.
fn pieces(range: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(most).map(move |start| start..end.min(start + most))
}

fn list_shrink(tasks: &mut Vec<ShrinkTask>, part: usize, updates: &[LowRankTerm<'_>]) {
    let mut place = 0;
    for (term, LowRankTerm { update, .. }) in updates.iter().enumerate() {
        let components = pieces(0..update.shape().rank(), COMPONENTS);
        tasks.extend(components.map(|components| ShrinkTask { part, term, place, components }));
        place += weights_of(update);
    }
}

/// Lists the strips of a part, each about `share` multiplications.
fn list_strips(
    tasks: &mut Vec<ExpandTask>,
    index: usize,
    part: &Part,
    updates: &[LowRankTerm<'_>],
    share: usize,
) {
    let targets = updates.iter().flat_map(|term| term.update.shape().expansions());
    let n_targets = targets.clone().map(|expansion| expansion.target + 1).max().unwrap_or(0);
    let n_rows = part.rows.len();
    for target in 0..n_targets {
        let of = targets.clone().filter(|expansion| expansion.target == target);
        let Some(outputs) = of.clone().map(|expansion| expansion.outputs).next() else { continue };
        let rank: usize = of.map(|expansion| expansion.rank).sum();
        let strip = (share / (n_rows * rank).max(1)).next_multiple_of(COLUMN_STEP);
        let most = COLUMNS[usize::from(n_rows > 1)];
        let strips = pieces(0..outputs, strip.clamp(COLUMN_STEP, most));
        tasks.extend(strips.map(|columns| ExpandTask { part: index, target, columns }));
    }
}
