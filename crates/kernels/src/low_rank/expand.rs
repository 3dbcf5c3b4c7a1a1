//! Second half of low-rank updates: `y += u B`, a strip of columns for rows of a part.

use std::ops::Range;

use half::f16;

use super::LowRankTerm;
use super::format::Values;
use super::gather::{ExpandTask, Part, Row, Run};
use super::shape::Expansion;
use super::value::Value;
use crate::lanes::{LANES, Vectors, WIDE, WideLanes, Work};
use crate::pool::DisjointMut;

/// Most components that are added per pass over a strip.
const COMPONENTS: usize = 16;

/// Components per pass over a strip of one row, which waits for memory: so many rows of `B` are
/// streams of the prefetcher.
const STREAMS: usize = 8;

/// Fewest rows for which `B` is widened to f32 first: below, that costs more than it saves.
const WIDENED_ROWS: usize = 16;

/// Columns of `B` that are widened at a time.
const SPAN: usize = 64;

/// Products of a step that low-rank updates change, one per target.
pub(super) const TARGETS: usize = 4;

/// Data shared by the tasks of a dispatch.
pub(crate) struct ExpandJob<'a> {
    pub(super) terms: &'a [LowRankTerm<'a>],
    pub(super) rows: &'a [Row],
    pub(super) runs: &'a [Run],
    pub(super) parts: &'a [Part],
    pub(super) weights: &'a [f32],
    /// `[rows, outputs]` each.
    pub(super) outs: &'a [DisjointMut<'a, f32>],
}

#[inline(always)]
pub(crate) fn expand<L: WideLanes>(l: L, job: &ExpandJob<'_>, task: &ExpandTask) {
    let part = &job.parts[task.part];
    let run = &job.runs[part.run];
    let (out, rows) = (&job.outs[task.target], &job.rows[part.rows.clone()]);
    let mut place = part.weights;
    for LowRankTerm { update, .. } in &job.terms[run.term..run.term + run.n_terms] {
        for (index, &Expansion { target, rank, outputs, .. }) in
            update.shape().expansions().iter().enumerate()
        {
            let weights = &job.weights[place..][..rank * rows.len()];
            place += weights.len();
            if target != task.target {
                continue;
            }
            let strip = Strip { out, outputs, columns: task.columns.clone(), rows, weights };
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
    /// `[components, rows]`
    weights: &'a [f32],
}

/// Addition of a factor's rows, times the weights, to a strip.
struct Sum<'a, T> {
    b: &'a [T],
    strip: Strip<'a>,
}

impl<L: WideLanes, T: Value> Work<L> for Sum<'_, T> {
    #[inline(always)]
    fn run(self, l: L) {
        let Strip { outputs, columns, rows, weights, .. } = &self.strip;
        let at_once = if rows.len() == 1 { STREAMS } else { COMPONENTS };
        let passes = weights.chunks(at_once * rows.len());
        for (weights, b) in passes.zip(self.b.chunks(at_once * outputs)) {
            if T::IS_F32 || rows.len() < WIDENED_ROWS {
                let of_row = |i: usize| match i * outputs < b.len() {
                    true => &b[i * outputs..][columns.clone()],
                    false => &[][..],
                };
                let b: [&[T]; COMPONENTS] = std::array::from_fn(of_row);
                self.strip.add(l, columns.start, weights, &b);
            } else {
                self.add_widened(l, weights, b);
            }
        }
    }
}

impl<T: Value> Sum<'_, T> {
    /// Adds components with the rows of `b`, in spans of columns.
    #[inline(always)]
    fn add_widened<L: WideLanes>(&self, l: L, weights: &[f32], b: &[T]) {
        let Strip { outputs, columns, .. } = &self.strip;
        let mut wide = [[0f32; SPAN]; COMPONENTS];
        for start in columns.clone().step_by(SPAN) {
            let span = start..columns.end.min(start + SPAN);
            for (to, b) in wide.iter_mut().zip(b.chunks_exact(*outputs)) {
                widen(l, &b[span.clone()], to);
            }
            let mut rows = [&[][..]; COMPONENTS];
            for (row, wide) in rows.iter_mut().zip(&wide) {
                *row = &wide[..span.len()];
            }
            self.strip.add(l, start, weights, &rows);
        }
    }
}

/// Widens values to f32.
#[inline(always)]
fn widen<L: WideLanes, T: Value>(l: L, from: &[T], to: &mut [f32; SPAN]) {
    let w = l.wide();
    let (whole, rest) = from.as_chunks::<WIDE>();
    let (to, _) = to.as_chunks_mut::<LANES>();
    let (pairs, _) = to.as_chunks_mut::<2>();
    for (from, to) in whole.iter().zip(pairs) {
        w.store(T::load_wide(l, from), to);
    }
    for (from, to) in rest.chunks(LANES).zip(&mut to[2 * whole.len()..]) {
        l.store(T::load_partial(l, from), to);
    }
}

impl Strip<'_> {
    /// Adds components of the rows of `b` to all rows, from column `start` on.
    #[inline(always)]
    fn add<L: WideLanes, T: Value>(&self, l: L, start: usize, weights: &[f32], b: &[&[T]; COMPONENTS]) {
        let n = self.rows.len();
        let mut row = 0;
        if L::WIDE_REGISTERS >= 16 {
            while row + 8 <= n {
                self.rows::<L, T, 8, 2>(l, row, start, weights, b);
                row += 8;
            }
            while row + 4 <= n {
                self.rows::<L, T, 4, 4>(l, row, start, weights, b);
                row += 4;
            }
        }
        while row + 4 <= n {
            self.rows::<L, T, 4, 1>(l, row, start, weights, b);
            row += 4;
        }
        while row + 2 <= n {
            self.rows::<L, T, 2, 2>(l, row, start, weights, b);
            row += 2;
        }
        if row < n {
            self.rows::<L, T, 1, 4>(l, row, start, weights, b);
        }
    }

    /// Adds components to `M` rows, `N` wide vectors at a time.
    #[inline(always)]
    fn rows<L: WideLanes, T: Value, const M: usize, const N: usize>(
        &self,
        l: L,
        row: usize,
        start: usize,
        weights: &[f32],
        b: &[&[T]; COMPONENTS],
    ) {
        let len = b[0].len();
        let mut out: [&mut [f32]; M] = std::array::from_fn(|m| {
            let start = self.rows[row + m].row * self.outputs + start;
            // SAFETY: a task has these rows and columns of this product alone, and the rows of a
            // task differ.
            unsafe { self.out.part(start..start + len) }
        });
        let added = Added { weights, n_rows: self.rows.len(), row, b };
        let broad = len / (N * WIDE) * (N * WIDE);
        for column in (0..broad).step_by(N * WIDE) {
            added.tile::<L, M, N>(l, &mut out, column);
        }
        let whole = len / WIDE * WIDE;
        if N > 1 {
            for column in (broad..whole).step_by(WIDE) {
                added.tile::<L, M, 1>(l, &mut out, column);
            }
        }
        for column in (whole..len).step_by(LANES) {
            added.tail(l, &mut out, column..len.min(column + LANES));
        }
    }
}

/// Components that are added to rows from `row` on.
struct Added<'a, T> {
    /// `[components, rows]`
    weights: &'a [f32],
    n_rows: usize,
    row: usize,
    /// `[components][columns]`
    b: &'a [&'a [T]; COMPONENTS],
}

impl<T: Value> Added<'_, T> {
    /// Adds to `M` rows of `N` wide vectors.
    #[inline(always)]
    fn tile<L: WideLanes, const M: usize, const N: usize>(
        &self,
        l: L,
        out: &mut [&mut [f32]; M],
        column: usize,
    ) {
        let w = l.wide();
        let mut sums = [[w.zero(); N]; M];
        for m in 0..M {
            let out = wides::<f32, N>(&out[m][column..][..N * WIDE]);
            for n in 0..N {
                sums[m][n] = f32::load_wide(l, &out[n]);
            }
        }
        for (weights, b) in self.weights.chunks_exact(self.n_rows).zip(self.b) {
            let weights: &[f32; M] = weights[self.row..].first_chunk().expect("rows of the part");
            let b = wides::<T, N>(&b[column..][..N * WIDE]);
            let mut loaded = [w.zero(); N];
            for n in 0..N {
                loaded[n] = T::load_wide(l, &b[n]);
            }
            for m in 0..M {
                let weight = w.splat(weights[m]);
                for n in 0..N {
                    sums[m][n] = w.fma(weight, loaded[n], sums[m][n]);
                }
            }
        }
        for m in 0..M {
            let out = out[m][column..][..N * WIDE].as_chunks_mut::<LANES>().0.as_chunks_mut::<2>().0;
            for n in 0..N {
                w.store(sums[m][n], &mut out[n]);
            }
        }
    }

    /// Adds to at most eight columns of each row.
    #[inline(always)]
    fn tail<L: WideLanes>(&self, l: L, out: &mut [&mut [f32]], columns: Range<usize>) {
        for (m, out) in out.iter_mut().enumerate() {
            let out = &mut out[columns.clone()];
            let mut sum = l.load_partial(out);
            for (weights, b) in self.weights.chunks_exact(self.n_rows).zip(self.b) {
                let weight = l.splat(weights[self.row + m]);
                sum = l.fma(weight, T::load_partial(l, &b[columns.clone()]), sum);
            }
            l.store_partial(sum, out);
        }
    }
}

/// Reinterprets values as `N` wide vectors.
#[inline(always)]
fn wides<T, const N: usize>(values: &[T]) -> &[[T; WIDE]; N] {
    values.as_chunks::<WIDE>().0.first_chunk().expect("as many values")
}
