//! First half of low-rank updates: `u = s g A x`, components of the rank for rows of a part.

use std::ops::Range;

use half::f16;

use super::LowRankTerm;
use super::format::Values;
use super::gather::{COMPONENTS, Part, ROWS, Row, Run, ShrinkTask};
use super::value::Value;
use crate::lanes::{Groups, LANES, Vectors, WideLanes, Work};
use crate::pool::DisjointMut;

/// Rows of `A` per tile of several rows of inputs.
const TILE: usize = 4;

/// Data shared by the tasks of a dispatch.
pub(crate) struct ShrinkJob<'a> {
    pub(super) input: &'a [f32],
    pub(super) terms: &'a [LowRankTerm<'a>],
    pub(super) rows: &'a [Row],
    pub(super) runs: &'a [Run],
    pub(super) parts: &'a [Part],
    pub(super) weights: DisjointMut<'a, f32>,
}

/// Products of each row of a task with its components.
type Dots = [[f32; COMPONENTS]; ROWS];

#[inline(always)]
pub(crate) fn shrink<L: WideLanes>(l: L, job: &ShrinkJob<'_>, task: &ShrinkTask) {
    let part = &job.parts[task.part];
    let update = &job.terms[job.runs[part.run].term + task.term].update;
    let (a, mut dots) = (update.a(), [[0.0; COMPONENTS]; ROWS]);
    let (width, rows) = (a.width(), &job.rows[part.rows.clone()]);
    let (input, components) = (job.input, task.components.clone());
    let scales = match a.typed() {
        Values::F32(a) => {
            l.apart(Dot::<f32> { a, width, input, rows, components, dots: &mut dots });
            None
        }
        Values::F16(a) => {
            l.apart(Dot::<f16> { a, width, input, rows, components, dots: &mut dots });
            None
        }
        Values::I8(a, scales) => {
            l.apart(Dot::<i8> { a, width, input, rows, components, dots: &mut dots });
            Some(&scales[task.components.clone()])
        }
    };
    let dots = &mut dots[..rows.len()];
    for (row, dots) in rows.iter().zip(&mut *dots) {
        let dots = &mut dots[..task.components.len()];
        for (dot, scale) in dots.iter_mut().zip(scales.unwrap_or_default()) {
            *dot *= scale;
        }
        let LowRankTerm { rows, scale, gates, .. } = &job.terms[row.term + task.term];
        let scale = gates.get(row.row - rows.start).map_or(*scale, |gate| scale * gate);
        dots.iter_mut().for_each(|dot| *dot *= scale);
    }
    store(job, task, dots);
}

/// Stores the components as weights of the expansions that read them, `[components, rows]`.
#[inline(always)]
fn store(job: &ShrinkJob<'_>, task: &ShrinkTask, dots: &[[f32; COMPONENTS]]) {
    let part = &job.parts[task.part];
    let update = &job.terms[job.runs[part.run].term + task.term].update;
    let Range { start, end } = task.components;
    let mut place = task.place;
    for (index, expansion) in update.shape().expansions().iter().enumerate() {
        let scales = match update.b(index).typed() {
            Values::I8(_, scales) => Some(scales),
            _ => None,
        };
        for component in start.max(expansion.first)..end.min(expansion.first + expansion.rank) {
            let of_expansion = component - expansion.first;
            let at = part.weights + (place + of_expansion) * dots.len();
            // SAFETY: weights are of one part, term, expansion and component, and each of these is
            // in one task.
            let weights = unsafe { job.weights.part(at..at + dots.len()) };
            for (weight, dots) in weights.iter_mut().zip(dots) {
                *weight = dots[component - start];
                if let Some(scales) = scales {
                    *weight *= scales[of_expansion];
                }
            }
        }
        place += expansion.rank;
    }
}

/// Dot products of rows of `a` with rows of the input.
struct Dot<'a, T> {
    a: &'a [T],
    width: usize,
    input: &'a [f32],
    rows: &'a [Row],
    components: Range<usize>,
    dots: &'a mut Dots,
}

impl<L: WideLanes, T: Value> Work<L> for Dot<'_, T> {
    #[inline(always)]
    fn run(mut self, l: L) {
        let pairs = if L::WIDE_REGISTERS >= 16 { 4 } else { 1 };
        let mut row = 0;
        while row + 2 * pairs <= self.rows.len() {
            if pairs == 4 {
                self.several::<L, 4>(l, row);
            } else {
                self.several::<L, 1>(l, row);
            }
            row += 2 * pairs;
        }
        while row + 2 <= self.rows.len() {
            self.several::<L, 1>(l, row);
            row += 2;
        }
        if row < self.rows.len() {
            self.one(l, row);
        }
    }
}

impl<'a, T: Value> Dot<'a, T> {
    #[inline(always)]
    fn a(&self, component: usize) -> &'a [T] {
        &self.a[(self.components.start + component) * self.width..][..self.width]
    }

    #[inline(always)]
    fn x(&self, row: usize) -> &'a [f32] {
        &self.input[self.rows[row].row * self.width..][..self.width]
    }

    /// All components of one row.
    #[inline(always)]
    fn one<L: WideLanes>(&mut self, l: L, row: usize) {
        let x = self.x(row);
        // Eight sums at most: those of fewer components take as long, since each is a chain.
        match self.components.len() {
            8.. => self.put_one::<L, 8>(l, x, row),
            7 => self.put_one::<L, 7>(l, x, row),
            6 => self.put_one::<L, 6>(l, x, row),
            5 => self.put_one::<L, 5>(l, x, row),
            4 => self.put_one::<L, 4>(l, x, row),
            3 => self.put_one::<L, 3>(l, x, row),
            2 => self.put_one::<L, 2>(l, x, row),
            _ => self.put_one::<L, 1>(l, x, row),
        }
    }

    #[inline(always)]
    fn put_one<L: WideLanes, const R: usize>(&mut self, l: L, x: &[f32], row: usize) {
        let sums = single::<L, T, R>(l, std::array::from_fn(|i| self.a(i)), x);
        self.dots[row][..R].copy_from_slice(&sums);
    }

    /// All components of `P` pairs of rows.
    #[inline(always)]
    fn several<L: WideLanes, const P: usize>(&mut self, l: L, row: usize) {
        let x: [[&[f32]; 2]; P] =
            std::array::from_fn(|p| std::array::from_fn(|half| self.x(row + 2 * p + half)));
        let (mut at, n) = (0, self.components.len());
        while at + TILE <= n {
            let a = std::array::from_fn(|i| self.a(at + i));
            let sums = tile::<L, T, TILE, P>(l, a, x);
            self.put(row, at, sums);
            at += TILE;
        }
        while at < n {
            let sums = tile::<L, T, 1, P>(l, [self.a(at)], x);
            self.put(row, at, sums);
            at += 1;
        }
    }

    #[inline(always)]
    fn put<const R: usize, const P: usize>(&mut self, row: usize, at: usize, sums: [[[f32; 2]; P]; R]) {
        for (r, sums) in sums.iter().enumerate() {
            for (p, sums) in sums.iter().enumerate() {
                self.dots[row + 2 * p][at + r] = sums[0];
                self.dots[row + 2 * p + 1][at + r] = sums[1];
            }
        }
    }
}

/// `R` rows of `a` times `x`, eight lanes each.
#[inline(always)]
fn single<L: WideLanes, T: Value, const R: usize>(l: L, a: [&[T]; R], x: &[f32]) -> [f32; R] {
    let (chunks, x_tail) = x.as_chunks::<LANES>();
    let n = chunks.len();
    let whole: [&[[T; LANES]]; R] = a.map(|a| &a.as_chunks::<LANES>().0[..n]);
    let mut sums = [l.zero(); R];
    for (i, x) in chunks.iter().enumerate() {
        let x = l.load(x);
        for (sum, a) in sums.iter_mut().zip(&whole) {
            *sum = l.fma(T::load(l, &a[i]), x, *sum);
        }
    }
    if !x_tail.is_empty() {
        let x = l.load_partial(x_tail);
        for (sum, a) in sums.iter_mut().zip(&a) {
            *sum = l.fma(T::load_partial(l, &a[n * LANES..]), x, *sum);
        }
    }
    sums.map(|sum| l.sum(sum))
}

/// `R` rows of `a` times `P` pairs of rows `x`; a wide vector holds the lanes of a pair.
#[inline(always)]
fn tile<L: WideLanes, T: Value, const R: usize, const P: usize>(
    l: L,
    a: [&[T]; R],
    x: [[&[f32]; 2]; P],
) -> [[[f32; 2]; P]; R] {
    let w = l.wide();
    let n = x[0][0].len() / LANES;
    let whole: [&[[T; LANES]]; R] = a.map(|a| &a.as_chunks::<LANES>().0[..n]);
    let inputs: [[&[[f32; LANES]]; 2]; P] = x.map(|pair| pair.map(|x| &x.as_chunks::<LANES>().0[..n]));
    let mut sums = [[w.zero(); P]; R];
    for i in 0..n {
        let x: [L::W; P] = inputs.map(|pair| w.join(l.load(&pair[0][i]), l.load(&pair[1][i])));
        for (sums, a) in sums.iter_mut().zip(&whole) {
            let a = w.both(T::load(l, &a[i]));
            for (sum, x) in sums.iter_mut().zip(&x) {
                *sum = w.fma(a, *x, *sum);
            }
        }
    }
    if n * LANES < x[0][0].len() {
        let tail = |x: &[f32]| l.load_partial(&x[n * LANES..]);
        let x: [L::W; P] = x.map(|pair| w.join(tail(pair[0]), tail(pair[1])));
        for (sums, a) in sums.iter_mut().zip(&a) {
            let a = w.both(T::load_partial(l, &a[n * LANES..]));
            for (sum, x) in sums.iter_mut().zip(&x) {
                *sum = w.fma(a, *x, *sum);
            }
        }
    }
    sums.map(|sums| sums.map(|sum| w.halves_of(sum).map(|half| l.sum(half))))
}
