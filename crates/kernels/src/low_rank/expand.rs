//! Second half of low-rank updates: `y += u B`, a strip of columns for rows of a run.

use std::ops::Range;

use half::f16;

use super::LowRankTerm;
use super::format::Values;
use super::gather::{ExpandTask, ROWS, Row, Run};
use super::shape::Expansion;
use super::value::Value;
use crate::lanes::{LANES, Vectors, WIDE, WideLanes, Work};
use crate::pool::DisjointMut;

/// Components that are added per pass over a strip: so many rows of `B` are streams of the
/// prefetcher.
const COMPONENTS: usize = 8;

/// Products of a step that low-rank updates change, one per target.
pub(super) const TARGETS: usize = 4;

/// Data shared by the tasks of a dispatch.
pub(crate) struct ExpandJob<'a> {
    pub(super) terms: &'a [LowRankTerm<'a>],
    pub(super) rows: &'a [Row],
    pub(super) runs: &'a [Run],
    pub(super) weights: &'a [f32],
    /// `[rows, outputs]` each.
    pub(super) outs: [Option<DisjointMut<'a, f32>>; TARGETS],
}

#[inline(always)]
pub(crate) fn expand<L: WideLanes>(l: L, job: &ExpandJob<'_>, task: &ExpandTask) {
    let run = &job.runs[task.run];
    let out = job.outs[task.target].as_ref().expect("a target of the site");
    let rows = &job.rows[task.rows.clone()];
    let first = run.weights + (task.rows.start - run.rows.start) * run.width;
    let mut place = first;
    for LowRankTerm { update, .. } in &job.terms[run.term..run.term + run.n_terms] {
        for (index, &Expansion { target, rank, outputs, .. }) in
            update.shape().expansions().iter().enumerate()
        {
            let weights = &job.weights[place..];
            place += rank;
            if target != task.target {
                continue;
            }
            let columns = task.columns.clone();
            let strip = Strip { out, outputs, columns, rows, weights, stride: run.width, rank };
            match update.b(index).typed() {
                Values::F32(b) => l.apart(Sum::<f32> { b, strip }),
                Values::F16(b) => l.apart(Sum::<f16> { b, strip }),
                Values::I8(b, _) => l.apart(Sum::<i8> { b, strip }),
            }
        }
    }
}

/// Strip of columns of some rows, and the weights of one factor.
struct Strip<'a> {
    out: &'a DisjointMut<'a, f32>,
    outputs: usize,
    columns: Range<usize>,
    rows: &'a [Row],
    /// Of the first row and component; those of the next row are `stride` further.
    weights: &'a [f32],
    stride: usize,
    rank: usize,
}

/// Addition of a factor's rows, times the weights, to a strip.
struct Sum<'a, T> {
    b: &'a [T],
    strip: Strip<'a>,
}

impl<L: WideLanes, T: Value> Work<L> for Sum<'_, T> {
    #[inline(always)]
    fn run(self, l: L) {
        let n = self.strip.rows.len();
        debug_assert!(n <= ROWS, "rows of a task");
        let mut row = 0;
        if L::WIDE_REGISTERS >= 16 {
            while row + 8 <= n {
                self.rows::<L, 8, 2>(l, row);
                row += 8;
            }
        }
        while row + 4 <= n {
            self.rows::<L, 4, 1>(l, row);
            row += 4;
        }
        while row < n {
            self.rows::<L, 1, 4>(l, row);
            row += 1;
        }
    }
}

impl<T: Value> Sum<'_, T> {
    /// Adds all components to `M` rows, `N` wide vectors at a time.
    #[inline(always)]
    fn rows<L: WideLanes, const M: usize, const N: usize>(&self, l: L, row: usize) {
        let Strip { out, outputs, columns, rows, weights, stride, rank } = &self.strip;
        let mut out: [&mut [f32]; M] = std::array::from_fn(|m| {
            let start = rows[row + m].row * outputs;
            // SAFETY: a task has these rows and columns of this product alone, and the rows of a
            // task differ.
            unsafe { out.part(start + columns.start..start + columns.end) }
        });
        let weights: [&[f32]; M] = std::array::from_fn(|m| &weights[(row + m) * stride..][..*rank]);
        let (len, mut first) = (columns.len(), 0);
        while first < *rank {
            let n = COMPONENTS.min(rank - first);
            let weights = weights.map(|weights| &weights[first..first + n]);
            let b: [&[T]; COMPONENTS] = std::array::from_fn(|i| match i < n {
                true => &self.b[(first + i) * outputs + columns.start..][..len],
                false => &[],
            });
            if n == COMPONENTS {
                strip::<L, T, M, N, COMPONENTS>(
                    l,
                    &mut out,
                    weights.map(|w| w.first_chunk().expect("eight")),
                    &b,
                );
            } else {
                for i in 0..n {
                    strip::<L, T, M, N, 1>(
                        l,
                        &mut out,
                        weights.map(|w| w[i..].first_chunk().expect("one")),
                        &[b[i]],
                    );
                }
            }
            first += n;
        }
    }
}

/// Adds `C` components to `M` rows of a strip.
#[inline(always)]
fn strip<L: WideLanes, T: Value, const M: usize, const N: usize, const C: usize>(
    l: L,
    out: &mut [&mut [f32]; M],
    weights: [&[f32; C]; M],
    b: &[&[T]; C],
) {
    let len = out[0].len();
    let broad = len / (N * WIDE) * (N * WIDE);
    for column in (0..broad).step_by(N * WIDE) {
        tile::<L, T, M, N, C>(l, out, weights, b, column);
    }
    let whole = len / WIDE * WIDE;
    if N > 1 {
        for column in (broad..whole).step_by(WIDE) {
            tile::<L, T, M, 1, C>(l, out, weights, b, column);
        }
    }
    for column in (whole..len).step_by(LANES) {
        let columns = column..len.min(column + LANES);
        for (out, weights) in out.iter_mut().zip(weights) {
            let out = &mut out[columns.clone()];
            let mut sum = l.load_partial(out);
            for (weight, b) in weights.iter().zip(b) {
                sum = l.fma(l.splat(*weight), T::load_partial(l, &b[columns.clone()]), sum);
            }
            l.store_partial(sum, out);
        }
    }
}

/// Adds `C` components to `M` rows of `N` wide vectors.
#[inline(always)]
fn tile<L: WideLanes, T: Value, const M: usize, const N: usize, const C: usize>(
    l: L,
    out: &mut [&mut [f32]; M],
    weights: [&[f32; C]; M],
    b: &[&[T]; C],
    column: usize,
) {
    let w = l.wide();
    let mut sums: [[L::W; N]; M] = std::array::from_fn(|m| {
        let out = wides::<f32, N>(&out[m][column..][..N * WIDE]);
        std::array::from_fn(|n| f32::load_wide(l, &out[n]))
    });
    for c in 0..C {
        let b = wides::<T, N>(&b[c][column..][..N * WIDE]);
        let b: [L::W; N] = std::array::from_fn(|n| T::load_wide(l, &b[n]));
        for (sums, weights) in sums.iter_mut().zip(weights) {
            let weight = w.splat(weights[c]);
            for (sum, b) in sums.iter_mut().zip(&b) {
                *sum = w.fma(weight, *b, *sum);
            }
        }
    }
    for (out, sums) in out.iter_mut().zip(sums) {
        let out = out[column..][..N * WIDE].as_chunks_mut::<LANES>().0.as_chunks_mut::<2>().0;
        for (sum, out) in sums.into_iter().zip(out) {
            w.store(sum, out);
        }
    }
}

/// Reinterprets values as `N` wide vectors.
#[inline(always)]
fn wides<T, const N: usize>(values: &[T]) -> &[[T; WIDE]; N] {
    values.as_chunks::<WIDE>().0.first_chunk().expect("as many values")
}
