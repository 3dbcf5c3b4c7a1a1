//! Matrix products `y = W x` for every weight format (GEMM and GEMV).
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | [`Kernels::matmul`], [`Kernels::matmul_many`]: shapes, threads, choice of the slot |
//! | `activations/` | input: rows of f32, and their 8-bit quantization |
//! | `integer.rs` | driver of quantized formats: row products for few tokens, panels and tiles for
//! many |
//! | `panel.rs` | weights expanded into register tile order |
//! | `float/` | F32, F16, BF16: generic over the f32 lanes, no leaves |
//! | `grouped.rs` | [`Kernels::matmul_grouped`]: groups of rows, each with a matrix of its own |
//! | `scalar.rs` | the integer leaves in portable Rust |
//! | `avx2/` | the integer leaves for AVX2 |
//! | `avx512/` | the integer leaves for AVX-512 VNNI |
//! | `neon/` | the integer leaves for NEON, plain, with `sdot` and with `smmla` |
//!
//! Another instruction set (AVX-VNNI, SVE) needs a token with the two leaf traits of `integer.rs`
//! and an entry in the table of `isa.rs`; exact integer sums make its results bit-identical.

pub(crate) mod activations;
pub(crate) mod float;
mod grouped;
pub(crate) mod integer;
mod panel;
mod scalar;

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

use std::ops::Range;

pub use activations::{Activations, RowGroups};
pub use grouped::GroupedJob;

use crate::pool::DisjointMut;
use crate::quant::{PackedMatrix, WeightFormat};
use crate::{Kernels, ThreadPool};
use activations::Q8Input;
use float::{FloatProduct, PackedInputs, Pair};
use integer::IntegerProduct;
pub(crate) use panel::slot_position;
use panel::{MAX_PANELS, PANEL_ROWS};

/// One of several matrices that multiply the same input ([`Kernels::matmul_many`]).
#[derive(Debug)]
pub struct MatmulJob<'a> {
    /// Weights, `[rows, cols]`.
    pub weights: &'a PackedMatrix,
    /// Output, `[tokens, rows]`, overwritten.
    pub out: &'a mut [f32],
}

/// Matrices per dispatch; more are split into several dispatches. A layer has at most three per
/// input.
const MAX_JOBS: usize = 4;

/// Rows per unit of work: no register tile of any instruction set is split.
const UNIT_ROWS: usize = MAX_PANELS * PANEL_ROWS;

/// Smallest unit of work, in bytes of weights times tokens: about a microsecond.
const GRAIN_WORK: usize = 32 * 1024;

/// Changes a piece of the products `outs` behind its computation: all rows, the given columns of
/// the given product. No other thread uses these then.
pub(crate) type Update<'a> = dyn Fn(&[DisjointMut<'_, f32>], usize, Range<usize>) + Sync + 'a;

/// Products of a thread, in values, that are updated at a time: they stay in the second-level
/// cache.
const UPDATED_VALUES: usize = 32 * 1024;

/// Rows that are multiplied by one matrix.
struct Input<'a> {
    /// Index of the first one among the rows of the output.
    first: usize,
    tokens: usize,
    /// `[tokens, cols]`
    values: &'a [f32],
    /// `None` if no product reads it.
    q8: Option<Q8Input<'a>>,
    /// Empty if no product reads it.
    packed: &'a [Pair],
}

impl Kernels {
    /// Computes the matrix product `out = x Wᵀ`.
    ///
    /// # Shapes
    /// `w`: `[rows, cols]`; `x`: `[tokens, cols]`; `out`: `[tokens, rows]`, overwritten. Zero
    /// columns give zeros.
    ///
    /// # Numerics
    /// F32, F16, BF16: as [`dot`](Self::dot). Other formats: 8-bit activations (see
    /// [`Activations::quantize`]); exact integer products within 32 values; their sums in eight f32
    /// lanes of fused multiply-adds, reduced by a fixed tree. An output depends only on its row and
    /// its token: bit-identical on every instruction set, for any number of threads and tokens. NaN
    /// and infinite activations or scales give NaN or infinite outputs.
    ///
    /// # Panics
    /// If shapes do not match, or the format [uses 8-bit activations](WeightFormat::uses_q8) and
    /// `x` is not quantized.
    pub fn matmul(&self, pool: &ThreadPool, w: &PackedMatrix, x: &Activations, out: &mut [f32]) {
        self.matmul_many(pool, x, &mut [MatmulJob { weights: w, out }]);
    }

    /// Computes several products over one input in one dispatch (Q, K and V; gate and up).
    ///
    /// See [`matmul`](Self::matmul).
    ///
    /// # Panics
    /// See [`matmul`](Self::matmul).
    pub fn matmul_many(&self, pool: &ThreadPool, x: &Activations, jobs: &mut [MatmulJob<'_>]) {
        self.matmul_updated(pool, x, jobs, None);
    }

    /// [`matmul_many`](Self::matmul_many) of up to [`MAX_JOBS`] matrices, with `update` called for
    /// each piece of their products.
    pub(crate) fn matmul_updated(
        &self,
        pool: &ThreadPool,
        x: &Activations,
        jobs: &mut [MatmulJob<'_>],
        update: Option<&Update<'_>>,
    ) {
        for job in &*jobs {
            let w = job.weights;
            assert_eq!(w.cols(), x.cols(), "matmul: the matrix and its input differ in columns");
            assert_eq!(
                Some(job.out.len()),
                x.tokens().checked_mul(w.rows()),
                "matmul: the output has another shape"
            );
        }
        if x.cols() == 0 {
            jobs.iter_mut().for_each(|job| job.out.fill(0.0));
        } else if x.tokens() > 0 {
            jobs.chunks_mut(MAX_JOBS).for_each(|jobs| self.dispatch(pool, x, jobs, update));
        }
    }

    /// Distributes the rows of up to [`MAX_JOBS`] matrices over the threads, in units of
    /// [`UNIT_ROWS`].
    fn dispatch(
        &self,
        pool: &ThreadPool,
        x: &Activations,
        jobs: &mut [MatmulJob<'_>],
        update: Option<&Update<'_>>,
    ) {
        let mut weights = [None; MAX_JOBS];
        let mut outs: [DisjointMut<'_, f32>; MAX_JOBS] = std::array::from_fn(|_| DisjointMut::new(&mut []));
        let mut n_units = 0;
        for (i, job) in jobs.iter_mut().enumerate() {
            n_units += job.weights.rows().div_ceil(UNIT_ROWS);
            weights[i] = Some(job.weights);
            outs[i] = DisjointMut::new(job.out);
        }
        let any_float = weights.iter().flatten().any(|w| !w.format().uses_q8());
        let packed = PackedInputs::new(self, pool, x, any_float);
        let n_bytes: usize = weights.iter().flatten().map(|w| w.bytes().len()).sum();
        let unit_work = (n_bytes / n_units.max(1)).saturating_mul(x.tokens());
        let grain = (GRAIN_WORK / unit_work.max(1)).max(1);
        let input = Input {
            first: 0,
            tokens: x.tokens(),
            values: x.values(),
            q8: weights.iter().flatten().any(|w| w.format().uses_q8()).then(|| x.q8().input()),
            packed: packed.pairs(),
        };
        let updated_rows = UPDATED_VALUES.div_ceil(x.tokens()).next_multiple_of(UNIT_ROWS);
        pool.for_each_chunk(n_units, grain, &|units| {
            let mut first = 0;
            for (target, (w, out)) in weights.iter().flatten().zip(&outs).enumerate() {
                let end = first + w.rows().div_ceil(UNIT_ROWS);
                let here = units.start.max(first)..units.end.min(end);
                if !here.is_empty() {
                    let rows = (here.start - first) * UNIT_ROWS..w.rows().min((here.end - first) * UNIT_ROWS);
                    let at_once = if update.is_some() { updated_rows } else { rows.len() };
                    for start in rows.clone().step_by(at_once) {
                        let piece = start..rows.end.min(start + at_once);
                        self.rows_product(w, &input, out, piece.clone());
                        if let Some(update) = update {
                            update(&outs, target, piece);
                        }
                    }
                }
                first = end;
            }
        });
    }

    /// Computes the outputs of some rows of one matrix on this thread.
    fn rows_product(&self, w: &PackedMatrix, x: &Input<'_>, out: &DisjointMut<'_, f32>, rows: Range<usize>) {
        let (weights, n_rows, cols) = (w.bytes(), w.rows(), w.cols());
        let integer = |slot: unsafe fn(&IntegerProduct<'_>, Range<usize>)| {
            let q8 = x.q8.expect("inputs of integer products are quantized");
            let (tokens, first) = (x.tokens, x.first);
            let product = IntegerProduct { weights, n_rows, cols, tokens, x: q8, first, out };
            // SAFETY: `self` exists only where the slot's instruction set is present.
            unsafe { slot(&product, rows.clone()) }
        };
        let float = |slot: unsafe fn(&FloatProduct<'_>, Range<usize>)| {
            let (values, packed, first) = (x.values, x.packed, x.first);
            let product = FloatProduct { weights, n_rows, cols, x: values, packed, first, out };
            // SAFETY: `self` exists only where the slot's instruction set is present.
            unsafe { slot(&product, rows.clone()) }
        };
        let slots = self.slots;
        match w.format() {
            WeightFormat::F32 => float(slots.matmul_f32),
            WeightFormat::F16 => float(slots.matmul_f16),
            WeightFormat::BF16 => float(slots.matmul_bf16),
            WeightFormat::Q8_0 => integer(slots.matmul_q8_0),
            WeightFormat::Q4_0 => integer(slots.matmul_q4_0),
            WeightFormat::Q4_1 => integer(slots.matmul_q4_1),
            WeightFormat::Q5_0 => integer(slots.matmul_q5_0),
            WeightFormat::Q5_1 => integer(slots.matmul_q5_1),
            WeightFormat::Q2K => integer(slots.matmul_q2_k),
            WeightFormat::Q3K => integer(slots.matmul_q3_k),
            WeightFormat::Q4K => integer(slots.matmul_q4_k),
            WeightFormat::Q5K => integer(slots.matmul_q5_k),
            WeightFormat::Q6K => integer(slots.matmul_q6_k),
            WeightFormat::IQ4NL => integer(slots.matmul_iq4_nl),
            WeightFormat::IQ4XS => integer(slots.matmul_iq4_xs),
            WeightFormat::MXFP4 => integer(slots.matmul_mxfp4),
            WeightFormat::IQ2XXS => integer(slots.matmul_iq2_xxs),
            WeightFormat::IQ2XS => integer(slots.matmul_iq2_xs),
            WeightFormat::IQ2S => integer(slots.matmul_iq2_s),
            WeightFormat::IQ3XXS => integer(slots.matmul_iq3_xxs),
            WeightFormat::IQ3S => integer(slots.matmul_iq3_s),
            WeightFormat::IQ1S => integer(slots.matmul_iq1_s),
            WeightFormat::IQ1M => integer(slots.matmul_iq1_m),
            WeightFormat::TQ1_0 => integer(slots.matmul_tq1_0),
            WeightFormat::TQ2_0 => integer(slots.matmul_tq2_0),
        }
    }
}
