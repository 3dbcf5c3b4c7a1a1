//! Dispatch: [`Kernels`], and the one list of operations compiled per instruction set.
//!
//! A slot is a function pointer to a generic body, instantiated for one lane type inside a function
//! that enables the CPU features. Safe methods (`impl Kernels` beside each operation, in its
//! module) check shapes once and call a slot.

use crate::isa::instruction_sets;
use crate::{Isa, Result};

/// Kernels of one instruction set; a value proves that the CPU supports it.
///
/// The value is two words and `Copy`. All instruction sets give bit-identical results.
///
/// # Examples
/// ```
/// use ruvllm_kernels::{Isa, Kernels};
///
/// let best = Kernels::detect()?;
/// let reference = Kernels::for_isa(Isa::Scalar)?;
/// let (x, y) = ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]);
/// assert_eq!(best.dot(&x, &y), 32.0);
/// assert_eq!(best.dot(&x, &y).to_bits(), reference.dot(&x, &y).to_bits());
/// # Ok::<(), ruvllm_kernels::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Kernels {
    isa: Isa,
    pub(crate) slots: &'static Slots,
}

impl Kernels {
    /// Best kernels of this CPU, or those named by the environment variable `RUVLLM_ISA`.
    ///
    /// # Errors
    /// [`Error::UnknownIsa`](crate::Error::UnknownIsa) or
    /// [`Error::IsaUnavailable`](crate::Error::IsaUnavailable) if the variable names an unknown or
    /// unavailable instruction set; there is no fallback.
    pub fn detect() -> Result<Self> {
        Self::for_isa(Isa::requested(std::env::var_os(Isa::VARIABLE).as_deref())?)
    }

    /// Kernels of `isa`.
    ///
    /// # Errors
    /// [`Error::IsaUnavailable`](crate::Error::IsaUnavailable) if this CPU or this build lacks it.
    pub fn for_isa(isa: Isa) -> Result<Self> {
        let slots = Slots::of(isa.require()?);
        slots.map(|slots| Self { isa, slots }).ok_or_else(|| isa.unavailable())
    }

    /// Kernels of every instruction set of this machine, slowest first, for tests that compare
    /// them.
    pub fn available() -> Vec<Self> {
        Isa::ALL.into_iter().filter_map(|isa| Self::for_isa(isa).ok()).collect()
    }

    /// Instruction set of these kernels.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kernels").field(&self.isa).finish()
    }
}

/// Declares [`Slots`] from one list of `name: generic body (arguments)`, and an instance for each
/// instruction set of the table in `isa.rs`. (`$d` is a `$` for the macro over the table's
/// entries.)
///
/// The lanes token is a body's first argument; a body may require a wider trait than `Lanes` for an
/// operation with a leaf per instruction set (integer dot products).
macro_rules! slots {
    ($d:tt $( $name:ident = $body:path : ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? ; )*) => {
        /// One function per operation, callable only where its instruction set is present.
        pub(crate) struct Slots {
            $( pub(crate) $name: unsafe fn($($ty),*) $(-> $ret)?, )*
        }

        macro_rules! slots_of_each {
            ($d( #[$doc:meta] $isa:ident = $isa_name:literal {
                module: $module:ident, cfg: $cfg:meta, lanes: $lanes:ty, features: [$d($feature:tt)*],
            } )*) => {
                impl Slots {
                    /// Slots of `isa`; `None` if this build lacks it.
                    fn of(isa: Isa) -> Option<&'static Self> {
                        match isa {
                            $d(
                                #[cfg($cfg)]
                                Isa::$isa => Some(&$module::SLOTS),
                                #[cfg(not($cfg))]
                                Isa::$isa => None,
                            )*
                        }
                    }

                    /// CPU features that the functions of `isa` enable; `None` if this build lacks
                    /// them.
                    #[cfg(test)]
                    fn features(isa: Isa) -> Option<&'static [&'static str]> {
                        match isa {
                            $d(
                                #[cfg($cfg)]
                                Isa::$isa => Some(&[$d($feature),*]),
                                #[cfg(not($cfg))]
                                Isa::$isa => None,
                            )*
                        }
                    }
                }

                $d(
                    #[cfg($cfg)]
                    mod $module {
                        use super::*;

                        // Not a static: the compiler generates code for every static, used or
                        // not, so the harness of the unit tests would compile all kernels.
                        pub(super) const SLOTS: Slots = Slots { $( $name, )* };

                        $(
                            $d( #[target_feature(enable = $feature)] )*
                            fn $name($($arg: $ty),*) $(-> $ret)? {
                                // SAFETY: this function enables the features, so its caller has
                                // vouched for them.
                                let lanes = unsafe { <$lanes>::assume_available() };
                                $body(lanes, $($arg),*)
                            }
                        )*
                    }
                )*
            };
        }
        instruction_sets!(slots_of_each);
    };
}

// One line per operation. Every instruction set fills every slot: one without its own leaf for an
// operation names the shared leaf in its trait implementation.
slots! { $
    // Rows of f32.
    dot = crate::rows::dot::dot: (x: &[f32], y: &[f32]) -> f32;
    dots = crate::rows::selected::dots:
        (x: &[f32], rows: crate::rows::selected::SelectedRows<'_>, out: &mut [f32]);
    add_rows = crate::rows::selected::add_rows:
        (x: &mut [f32], weights: &[f32], rows: crate::rows::selected::SelectedRows<'_>);
    hadamard = crate::rows::hadamard::hadamard: (rows: &mut [f32], dim: usize);
    add_assign = crate::rows::dot::add_assign: (x: &mut [f32], y: &[f32]);
    add_product = crate::rows::product::add_product:
        (x: &mut [f32], w: crate::rows::product::MatrixView<'_>, y: crate::rows::product::MatrixView<'_>);
    add_gram = crate::rows::gram::add_gram:
        (rows: &[f32], width: usize, columns: std::ops::Range<usize>, dim: usize, gram: &mut [f32]);
    norm = crate::rows::norm::norm: (norm: crate::rows::norm::Norm<'_>, eps: f32, x: &[f32], out: &mut [f32]);
    add_norm = crate::rows::norm::add_norm:
        (norm: crate::rows::norm::Norm<'_>, eps: f32, x: &mut [f32], y: &[f32], out: &mut [f32]);
    softmax = crate::rows::softmax::softmax: (x: &mut [f32]);
    log_sum_exp = crate::rows::softmax::log_sum_exp: (x: &[f32]) -> f32;
    argmax = crate::rows::select::argmax: (x: &[f32]) -> Option<usize>;
    top_k = crate::rows::select::top_k: (x: &[f32], k: usize, out: &mut Vec<u32>);
    activate = crate::rows::activation::activate: (activation: crate::rows::activation::Activation, x: &mut [f32]);
    gated = crate::rows::activation::gated:
        (activation: crate::rows::activation::Activation, gate: &mut [f32], up: &[f32]);
    sigmoid_mul = crate::rows::activation::sigmoid_mul: (x: &mut [f32], gate: &[f32]);
    clamped_swiglu = crate::rows::activation::clamped_swiglu: (alpha: f32, limit: f32, gate: &mut [f32], up: &[f32]);
    gated_backward = crate::rows::backward::gated_backward: (
        activation: crate::rows::activation::Activation,
        gate: &mut [f32],
        up: &mut [f32],
        dy: &[f32],
    );
    add_rms_norm_backward = crate::rows::backward::add_rms_norm_backward:
        (x: &[f32], weight: &[f32], eps: f32, dy: &[f32], dx: &mut [f32]);
    rope = crate::rope::rope: (job: &crate::rope::RopeJob<'_>, x: &mut [f32]);
    f32_to_f16 = crate::rows::convert::f32_to_f16: (x: &[f32], out: &mut [half::f16]);
    f32_to_bf16 = crate::rows::convert::f32_to_bf16: (x: &[f32], out: &mut [half::bf16]);
    f16_to_f32 = crate::rows::convert::f16_to_f32: (x: &[half::f16], out: &mut [f32]);
    bf16_to_f32 = crate::rows::convert::bf16_to_f32: (x: &[half::bf16], out: &mut [f32]);

    // Quantized weights.
    dequantize = crate::quant::dequantize_blocks:
        (format: crate::quant::WeightFormat, bytes: &[u8], values: &mut [f32]);

    // Vectors for search.
    distance_f32 = crate::vector::distance_f32: (metric: crate::vector::Metric, x: &[f32], y: &[f32]) -> f32;
    distance_f16 = crate::vector::distance_f16:
        (metric: crate::vector::Metric, x: &[half::f16], y: &[half::f16]) -> f32;
    distance_int8 = crate::vector::distance_int8:
        (metric: crate::vector::Metric, x: (&[i8], f32), y: (&[i8], f32)) -> f32;
    distance_int4 = crate::vector::distance_int4:
        (metric: crate::vector::Metric, x: (&[u8], f32), y: (&[u8], f32)) -> f32;
    distances = crate::vector::distances: (
        metric: crate::vector::Metric,
        query: crate::vector::VectorRows<'_>,
        rows: crate::vector::VectorRows<'_>,
        out: &mut [f32],
    );
    column_distances = crate::vector::column_distances:
        (metric: crate::vector::Metric, query: &[f32], columns: &[[f32; 256]], out: &mut [f32; 256]);
    hamming = crate::vector::hamming: (x: &[u64], y: &[u64]) -> u32;
    hammings = crate::vector::hammings: (query: &[u64], rows: &[u64], out: &mut [u32]);
    quantize_int8 = crate::vector::quantize_int8: (x: &[f32], out: &mut [i8]) -> f32;
    quantize_int4 = crate::vector::quantize_int4: (x: &[f32], out: &mut [u8]) -> f32;

    // Attention: writing, converting and reading keys and values, one attention task, and the merge
    // of two partial results.
    store_kv = crate::attention::store: (plane: crate::attention::KvPlaneMut<'_>, first: usize, rows: &[f32]);
    convert_kv = crate::attention::convert: (
        from: &crate::attention::KvPlane<'_>,
        to: crate::attention::KvPlaneMut<'_>,
        scratch: &mut crate::attention::KvScratch,
    );
    read_kv = crate::attention::read: (
        plane: &crate::attention::KvPlane<'_>,
        head: usize,
        positions: std::ops::Range<usize>,
        out: &mut [f32],
        scratch: &mut crate::attention::KvScratch,
    );
    attend = crate::attention::attend: (task: &crate::attention::Task<'_>, worker: &mut crate::attention::Worker);
    attend_merge = crate::attention::merge: (total: &mut crate::attention::State, split: &crate::attention::State);

    // Layers with a state: one token of all channels, and the tokens of one head.
    convolve = crate::recurrence::convolve:
        (convolution: &crate::recurrence::Convolution<'_>, token: usize, out: &mut [f32]);
    delta_rule = crate::recurrence::delta_rule:
        (rule: &crate::recurrence::DeltaRule<'_>, before: &[f32], after: &mut [f32], out: &mut [f32]);
    selective_scan = crate::recurrence::selective_scan:
        (scan: &crate::recurrence::SelectiveScan<'_>, before: &[f32], after: &mut [f32], out: &mut [f32]);

    // Low-rank updates: one task of each dispatch.
    low_rank_shrink = crate::low_rank::shrink::shrink:
        (job: &crate::low_rank::shrink::ShrinkJob<'_>, task: &crate::low_rank::ShrinkTask);
    low_rank_expand = crate::low_rank::expand::expand:
        (job: &crate::low_rank::expand::ExpandJob<'_>, task: &crate::low_rank::ExpandTask);

    // Matrix products: quantization of activations to 8 bits, and a row range of one matrix for all
    // tokens.
    quantize_rows = crate::matmul::activations::quantize_rows: (
        values: &[f32],
        cols: usize,
        rows: &crate::matmul::activations::Q8RowParts<'_>,
        tokens: std::ops::Range<usize>,
    );
    quantize_tiles = crate::matmul::activations::quantize_tiles:
        (values: &[f32], cols: usize, tiles: &mut [crate::matmul::activations::TileStep]);
    pack_inputs = crate::matmul::float::pack_inputs:
        (job: &crate::matmul::float::PackJob<'_>, pairs: std::ops::Range<usize>);
    matmul_f32 = crate::matmul::float::product::<_, f32>:
        (product: &crate::matmul::float::FloatProduct<'_>, rows: std::ops::Range<usize>);
    matmul_f16 = crate::matmul::float::product::<_, half::f16>:
        (product: &crate::matmul::float::FloatProduct<'_>, rows: std::ops::Range<usize>);
    matmul_bf16 = crate::matmul::float::product::<_, half::bf16>:
        (product: &crate::matmul::float::FloatProduct<'_>, rows: std::ops::Range<usize>);
    matmul_q8_0 = crate::matmul::integer::product::<_, crate::quant::Q8_0>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_q4_0 = crate::matmul::integer::product::<_, crate::quant::Q4_0>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_q4_1 = crate::matmul::integer::product::<_, crate::quant::Q4_1>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_q5_0 = crate::matmul::integer::product::<_, crate::quant::Q5_0>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_q5_1 = crate::matmul::integer::product::<_, crate::quant::Q5_1>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_q2_k = crate::matmul::integer::product::<_, crate::quant::Q2K>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_q3_k = crate::matmul::integer::product::<_, crate::quant::Q3K>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_q4_k = crate::matmul::integer::product::<_, crate::quant::Q4K>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_q5_k = crate::matmul::integer::product::<_, crate::quant::Q5K>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_q6_k = crate::matmul::integer::product::<_, crate::quant::Q6K>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_iq4_nl = crate::matmul::integer::product::<_, crate::quant::Iq4Nl>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_iq4_xs = crate::matmul::integer::product::<_, crate::quant::Iq4Xs>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_mxfp4 = crate::matmul::integer::product::<_, crate::quant::Mxfp4>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_iq2_xxs = crate::matmul::integer::product::<_, crate::quant::Iq2Xxs>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_iq2_xs = crate::matmul::integer::product::<_, crate::quant::Iq2Xs>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_iq2_s = crate::matmul::integer::product::<_, crate::quant::Iq2S>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_iq3_xxs = crate::matmul::integer::product::<_, crate::quant::Iq3Xxs>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_iq3_s = crate::matmul::integer::product::<_, crate::quant::Iq3S>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_iq1_s = crate::matmul::integer::product::<_, crate::quant::Iq1S>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_iq1_m = crate::matmul::integer::product::<_, crate::quant::Iq1M>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_tq1_0 = crate::matmul::integer::product::<_, crate::quant::Tq1>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
    matmul_tq2_0 = crate::matmul::integer::product::<_, crate::quant::Tq2>:
        (product: &crate::matmul::integer::IntegerProduct<'_>, rows: std::ops::Range<usize>);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_what_the_slots_enable() {
        for isa in Isa::ALL {
            let Some(enabled) = Slots::features(isa) else { continue };
            assert_eq!(isa.features(), enabled, "{isa}");
            assert_eq!(enabled.is_empty(), isa == Isa::Scalar, "{isa}");
        }
        assert!(Slots::features(Isa::Scalar).is_some());
        for (set, part) in [(Isa::Avx512, Isa::Avx2), (Isa::NeonI8mm, Isa::NeonDotprod)] {
            assert!(set.features().starts_with(part.features()), "{set} extends {part}");
        }
        assert!(Isa::Avx2.features().contains(&"popcnt"), "used by the distances of sign bits");
    }
}
