//! Low-rank (LoRA) updates of products, `y += s B (A x)`, for rows with different adapters: one
//! dispatch that shrinks inputs to components of the rank; these are expanded in the dispatch of
//! the products, while its outputs are in the cache, or in one of their own.
//!
//! ```text
//! terms ──gather.rs──▶ runs of rows with equal updates ──▶ tasks
//! input ──shrink.rs──▶ weights s g A x, per row ──expand.rs──▶ products
//! ```
//!
//! As SGMV and BGMV of Punica (arXiv 2310.18547) and S-LoRA (arXiv 2311.03285), in one function:
//! a run of one row reads its factors once, and so does a run of many, per block of rows.

pub(crate) mod expand;
mod format;
mod gather;
mod shape;
pub(crate) mod shrink;
mod value;

use std::ops::Range;

use expand::{ExpandJob, TARGETS};
pub use format::{FACTOR_ALIGN, Factor, FactorFormat};
pub(crate) use gather::{ExpandTask, ShrinkTask};
use gather::{Part, Row, Run, Work};
pub use shape::{Expansion, LowRank, LowRankShape};
use shrink::ShrinkJob;

use crate::matmul::{Activations, MatmulJob};
use crate::pool::DisjointMut;
use crate::{Kernels, ThreadPool};

/// Multiplications that one thread does sooner than it wakes others.
const ALONE: usize = 1 << 15;

/// Rows per part from which on updates are added while the products are computed: factors of fewer
/// rows take more of the cache than the products that are read once more without.
const ROWS_TOGETHER: usize = 4;

/// Update of some rows of a step.
#[derive(Debug, Clone)]
pub struct LowRankTerm<'a> {
    /// The rows.
    pub rows: Range<usize>,
    /// Multiplier of the update.
    pub scale: f32,
    /// Multiplier of each of the rows, on top of `scale`; empty = 1 for all.
    pub gates: &'a [f32],
    /// The factors.
    pub update: LowRank<'a>,
}

/// Reusable memory of low-rank updates; grows to the largest step.
#[derive(Debug, Default)]
pub struct LowRankScratch {
    /// Terms of each range of rows.
    lists: Vec<Range<usize>>,
    /// Rows with terms, by run.
    rows: Vec<Row>,
    runs: Vec<Run>,
    parts: Vec<Part>,
    shrink: Vec<ShrinkTask>,
    expand: Vec<ExpandTask>,
    /// Components times scales, by part.
    weights: Vec<f32>,
}

impl Kernels {
    /// Adds low-rank updates to products of one input: `outs[t][row] += scale * gate * B_t (A x)`
    /// for each term and each of its rows `x` of `input`, with the row's gate.
    ///
    /// Ranges of rows ascend and are equal or disjoint; terms of equal rows are added in order. A
    /// factor is read once per block of 32 rows that have the same updates, wherever they are.
    ///
    /// # Shapes
    /// `input`: `[rows, inputs]`; `outs[t]`: `[rows, outputs of target t]`, four targets at most.
    ///
    /// # Numerics
    /// `u_i = (scale * gate) * (A_i x)`, a dot product in eight lanes as [`dot`](Self::dot); with
    /// I8 factors times the scale of row `i` of `A` before and of `B` after that. A gate of 1 has
    /// the bits of none. Then one chain of fused multiply-adds per value in the order of terms and
    /// components, starting at the product. A row has the same bits on every instruction set,
    /// beside any other rows and in any place, for any number of threads. Error at most
    /// `γ_n (|y| + Σ|s g| Σ_i |b_i| Σ_k |a_ik x_k|)` beside that of the factors, `n` = inputs +
    /// ranks + 4, `γ_n = n u / (1 - n u)`, `u = 2^-24`.
    ///
    /// # Panics
    /// If shapes, rows, gates or targets do not match.
    ///
    /// # Examples
    /// ```
    /// use ruvllm_kernels::low_rank::{Expansion, FactorFormat, LowRank, LowRankScratch};
    /// use ruvllm_kernels::low_rank::{LowRankShape, LowRankTerm};
    /// use ruvllm_kernels::{Kernels, ThreadPool};
    ///
    /// // Rank 1: A is [1, 2], B is [3, 1], kept as a row.
    /// let expansion = Expansion { target: 0, first: 0, rank: 1, outputs: 3 };
    /// let shape = LowRankShape::new(FactorFormat::F32, 1, 2, vec![expansion], 0);
    /// let mut floats = vec![0f32; shape.end() / 4]; // a start at a multiple of 4 bytes is enough
    /// floats[shape.a() / 4..][..2].copy_from_slice(&[1.0, -1.0]);
    /// floats[shape.b(0) / 4..][..3].copy_from_slice(&[1.0, 2.0, 3.0]);
    ///
    /// let update = LowRank::new(&shape, bytemuck::cast_slice(&floats));
    /// let term = LowRankTerm { rows: 0..1, scale: 0.5, gates: &[], update };
    /// let mut y = [10.0, 10.0, 10.0];
    /// Kernels::detect()?.add_low_rank(
    ///     &ThreadPool::single(),
    ///     &[7.0, 3.0],
    ///     &[term],
    ///     &mut [&mut y],
    ///     &mut LowRankScratch::default(),
    /// );
    /// assert_eq!(y, [12.0, 14.0, 16.0]);
    /// # Ok::<(), ruvllm_kernels::Error>(())
    /// ```
    pub fn add_low_rank(
        &self,
        pool: &ThreadPool,
        input: &[f32],
        terms: &[LowRankTerm<'_>],
        outs: &mut [&mut [f32]],
        scratch: &mut LowRankScratch,
    ) {
        if terms.is_empty() {
            return;
        }
        check(input, terms, outs.iter().map(|out| out.len()));
        let work = self.shrink(pool, input, terms, scratch);
        let mut outs = outs.iter_mut();
        let outs = std::array::from_fn(|_| outs.next().map(|out| &mut **out).unwrap_or_default());
        self.expand(pool, terms, outs, work, scratch);
    }

    /// Computes the products of `x` with several matrices and adds low-rank updates of the same
    /// input to them, with the bits of [`matmul_many`](Self::matmul_many) and then
    /// [`add_low_rank`](Self::add_low_rank); where rows share factors, while the products are in
    /// the cache.
    ///
    /// # Panics
    /// As these two.
    pub fn matmul_low_rank(
        &self,
        pool: &ThreadPool,
        x: &Activations,
        jobs: &mut [MatmulJob<'_>],
        terms: &[LowRankTerm<'_>],
        scratch: &mut LowRankScratch,
    ) {
        if terms.is_empty() {
            return self.matmul_many(pool, x, jobs);
        }
        check(x.values(), terms, jobs.iter().map(|job| job.out.len()));
        let work = self.shrink(pool, x.values(), terms, scratch);
        let LowRankScratch { rows, runs, parts, weights, .. } = &*scratch;
        if parts.len() == 1 || parts.len() * ROWS_TOGETHER <= rows.len() {
            let update = |outs: &[DisjointMut<'_, f32>], target: usize, columns: Range<usize>| {
                let job = ExpandJob { terms, rows, runs, parts, weights, outs };
                for part in 0..parts.len() {
                    let task = ExpandTask { part, target, columns: columns.clone() };
                    // SAFETY: `self` exists only where the slot's instruction set is present.
                    unsafe { (self.slots.low_rank_expand)(&job, &task) }
                }
            };
            return self.matmul_updated(pool, x, jobs, Some(&update));
        }
        self.matmul_many(pool, x, jobs);
        let mut jobs = jobs.iter_mut();
        let outs = std::array::from_fn(|_| jobs.next().map(|job| &mut *job.out).unwrap_or_default());
        self.expand(pool, terms, outs, work, scratch);
    }

    /// First half: computes the weights of `terms` in `scratch`.
    fn shrink(
        &self,
        pool: &ThreadPool,
        input: &[f32],
        terms: &[LowRankTerm<'_>],
        scratch: &mut LowRankScratch,
    ) -> Work {
        let work = scratch.gather(terms);
        let LowRankScratch { rows, runs, parts, shrink, weights, .. } = scratch;
        let job = ShrinkJob { input, terms, rows, runs, parts, weights: DisjointMut::new(weights) };
        dispatch(pool, work.shrink, shrink, &|task| {
            // SAFETY: `self` exists only where the slot's instruction set is present.
            unsafe { (self.slots.low_rank_shrink)(&job, task) }
        });
        work
    }

    /// Second half in a dispatch of its own.
    fn expand(
        &self,
        pool: &ThreadPool,
        terms: &[LowRankTerm<'_>],
        outs: [&mut [f32]; TARGETS],
        work: Work,
        scratch: &mut LowRankScratch,
    ) {
        scratch.list_expand(terms, work, pool.threads());
        let LowRankScratch { rows, runs, parts, expand, weights, .. } = scratch;
        let job = ExpandJob { terms, rows, runs, parts, weights, outs: &outs.map(DisjointMut::new) };
        dispatch(pool, work.expand, expand, &|task| {
            // SAFETY: `self` exists only where the slot's instruction set is present.
            unsafe { (self.slots.low_rank_expand)(&job, task) }
        });
    }
}

/// Runs tasks on all threads if they are `work` enough.
fn dispatch<T: Sync>(pool: &ThreadPool, work: usize, tasks: &[T], body: &(dyn Fn(&T) + Sync)) {
    if work < ALONE {
        tasks.iter().for_each(body);
    } else {
        pool.for_each_in_order(tasks.len(), &|_, task| body(&tasks[task]));
    }
}

/// Checks shapes and rows; `outs` are lengths. Tasks write through unchecked aliases: they rely on
/// disjoint rows.
fn check(input: &[f32], terms: &[LowRankTerm<'_>], outs: impl ExactSizeIterator<Item = usize>) {
    assert!(outs.len() <= TARGETS, "add_low_rank: {} targets, {TARGETS} at most", outs.len());
    let mut lens = [None; TARGETS];
    lens.iter_mut().zip(outs).for_each(|(len, out)| *len = Some(out));
    let inputs = terms[0].update.shape().inputs();
    let n_rows = input.len() / inputs.max(1);
    assert!(inputs > 0 && input.len() == n_rows * inputs, "add_low_rank: {} inputs", input.len());
    let mut last = 0..0;
    for LowRankTerm { rows, gates, update, .. } in terms {
        let follows = *rows == last || rows.start >= last.end;
        assert!(
            follows && rows.start < rows.end && rows.end <= n_rows,
            "add_low_rank: rows {rows:?} after {last:?} of {n_rows}"
        );
        assert!(
            gates.is_empty() || gates.len() == rows.len(),
            "add_low_rank: {} gates for rows {rows:?}",
            gates.len()
        );
        last = rows.clone();
        let shape = update.shape();
        assert!(shape.inputs() == inputs, "add_low_rank: {} inputs beside {inputs}", shape.inputs());
        for &Expansion { target, outputs, .. } in shape.expansions() {
            assert!(
                lens.get(target).is_some_and(|len| *len == Some(n_rows * outputs)),
                "add_low_rank: target {target} of {outputs} values for {n_rows} rows"
            );
        }
    }
}
