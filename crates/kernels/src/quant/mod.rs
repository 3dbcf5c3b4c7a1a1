//! Weight storage: formats of quant blocks, and matrices over shared bytes.
//!
//! [`WeightFormat`] gives the layout of quant blocks and converts them to f32 and back;
//! [`PackedMatrix`] is a matrix in such a format over [`SharedBytes`], without a copy. Products
//! with it are in [`matmul`](crate::matmul).
//!
//! # Example
//! ```
//! use ruvllm_kernels::quant::WeightFormat;
//!
//! let (mut bytes, mut back) = ([0; 34], [0.0; 32]);
//! WeightFormat::Q8_0.quantize(&[0.5; 32], &mut bytes);
//! WeightFormat::Q8_0.dequantize(&bytes, &mut back);
//! assert!(back.iter().all(|x| (x - 0.5).abs() < 1e-3));
//! ```
//!
//! # Formats
//! One file per format or family.
//!
//! A format with integer products is described by `QuantBlock`, in *sub-blocks* of 32 values. The
//! description alone suffices for dequantization and for matrix products on every instruction set;
//! tuned leaves are optional.
//!
//! Layouts: quant block structures of ggml, little-endian.

pub(crate) mod codebook;
mod float;
mod importance;
mod iq1;
mod iq2;
mod iq3;
mod iq4_nl;
mod iq4_xs;
mod k_quants;
mod matrix;
mod mxfp4;
mod non_linear;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod search;
mod simple;
mod ternary;

use half::{bf16, f16};

use crate::Kernels;
use crate::lanes::Lanes;
use importance::Importance;

pub(crate) use codebook::SignedGridBlock;
pub(crate) use iq1::{Iq1M, Iq1S};
pub(crate) use iq2::{Iq2S, Iq2Xs, Iq2Xxs};
pub(crate) use iq3::{Iq3S, Iq3Xxs};
pub(crate) use iq4_nl::Iq4Nl;
pub(crate) use iq4_xs::Iq4Xs;
pub(crate) use k_quants::PackedScales;
pub use matrix::{PackedMatrix, SharedBytes};
pub(crate) use mxfp4::Mxfp4;
pub(crate) use non_linear::CODEBOOK as NON_LINEAR_CODEBOOK;
pub(crate) use q2_k::Q2K;
pub(crate) use q3_k::Q3K;
pub(crate) use q4_0::Q4_0;
pub(crate) use q4_1::Q4_1;
pub(crate) use q4_k::Q4K;
pub(crate) use q5_0::Q5_0;
pub(crate) use q5_1::Q5_1;
pub(crate) use q5_k::Q5K;
pub(crate) use q6_k::Q6K;
pub(crate) use q8_0::Q8_0;
pub(crate) use simple::NibbleBlock;
pub(crate) use ternary::{Tq1, Tq2};

/// Values per sub-block: the unit of integer dot products and of quantized activations.
pub(crate) const SUB_BLOCK: usize = 32;

/// Storage format of a weight matrix.
///
/// A row is a sequence of quant blocks of [`block_len`](Self::block_len) consecutive values in
/// [`block_bytes`](Self::block_bytes) bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WeightFormat {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16: the upper half of a 32-bit float.
    BF16,
    /// 32 values of 8 bits, signed, and one half-precision scale: 8.5 bits per value.
    Q8_0,
    /// 32 values of 4 bits, offset by 8, and one half-precision scale: 4.5 bits per value.
    Q4_0,
    /// 32 values of 4 bits, a half-precision scale and offset: 5 bits per value.
    Q4_1,
    /// 32 values of 5 bits, offset by 16, and one half-precision scale: 5.5 bits per value.
    Q5_0,
    /// 32 values of 5 bits, a half-precision scale and offset: 6 bits per value.
    Q5_1,
    /// 256 values of 2 bits; scale and minimum of 4 bits per 16 values: 2.625 bits per value.
    Q2K,
    /// 256 values of 3 bits, offset by 4; scale of 6 bits per 16 values: 3.4375 bits per value.
    Q3K,
    /// 256 values of 4 bits; scale and minimum of 6 bits per 32 values: 4.5 bits per value.
    Q4K,
    /// 256 values of 5 bits; scale and minimum of 6 bits per 32 values: 5.5 bits per value.
    Q5K,
    /// 256 values of 6 bits, offset by 32; scale of 8 bits per 16 values: 6.5625 bits per value.
    Q6K,
    /// 32 values of 4 bits (non-linear codebook) and one half-precision scale: 4.5 bits per value.
    IQ4NL,
    /// 256 values of 4 bits (non-linear codebook); scale of 6 bits per 32 values: 4.25 bits per
    /// value.
    IQ4XS,
    /// 32 values of 4 bits (E2M1) with a power of two as scale (E8M0): 4.25 bits per value.
    MXFP4,
    /// 256 values: grid of 256 points of eight magnitudes, 7 signs each, scale of 4 bits per 32
    /// values: 2.0625 bits per value.
    IQ2XXS,
    /// 256 values: grid of 512 points of eight magnitudes, 7 signs each, scale of 4 bits per 16
    /// values: 2.3125 bits per value.
    IQ2XS,
    /// 256 values: grid of 1024 points of eight magnitudes, 8 signs each, scale of 4 bits per 16
    /// values: 2.5625 bits per value.
    IQ2S,
    /// 256 values: grid of 256 points of four magnitudes, 7 signs per eight, scale of 4 bits per 32
    /// values: 3.0625 bits per value.
    IQ3XXS,
    /// 256 values: grid of 512 points of four magnitudes, a sign each, scale of 4 bits per 32
    /// values: 3.4375 bits per value.
    IQ3S,
    /// 256 values: grid of 2048 points of eight values -1, 0, 1, moved by an eighth up or down;
    /// scale of 3 bits per 32 values: 1.5625 bits per value.
    IQ1S,
    /// 256 values: the grid of `IQ1_S` with a direction per eight and a scale per 16 values: 1.75
    /// bits per value.
    IQ1M,
    /// 256 values -1, 0, 1, five to a byte, and one half-precision scale: 1.6875 bits per value.
    TQ1_0,
    /// 256 values -1, 0, 1 in 2 bits, and one half-precision scale: 2.0625 bits per value.
    TQ2_0,
}

/// Evaluates the expression of a float format, or of quantized formats with the block type.
macro_rules! with_block {
    ($format:expr, F32 => $f32:expr, F16 => $f16:expr, BF16 => $bf16:expr, $block:ident => $quantized:expr) => {
        match $format {
            WeightFormat::F32 => $f32,
            WeightFormat::F16 => $f16,
            WeightFormat::BF16 => $bf16,
            WeightFormat::Q8_0 => with_block!(@ $block = Q8_0, $quantized),
            WeightFormat::Q4_0 => with_block!(@ $block = Q4_0, $quantized),
            WeightFormat::Q4_1 => with_block!(@ $block = Q4_1, $quantized),
            WeightFormat::Q5_0 => with_block!(@ $block = Q5_0, $quantized),
            WeightFormat::Q5_1 => with_block!(@ $block = Q5_1, $quantized),
            WeightFormat::Q2K => with_block!(@ $block = Q2K, $quantized),
            WeightFormat::Q3K => with_block!(@ $block = Q3K, $quantized),
            WeightFormat::Q4K => with_block!(@ $block = Q4K, $quantized),
            WeightFormat::Q5K => with_block!(@ $block = Q5K, $quantized),
            WeightFormat::Q6K => with_block!(@ $block = Q6K, $quantized),
            WeightFormat::IQ4NL => with_block!(@ $block = Iq4Nl, $quantized),
            WeightFormat::IQ4XS => with_block!(@ $block = Iq4Xs, $quantized),
            WeightFormat::MXFP4 => with_block!(@ $block = Mxfp4, $quantized),
            WeightFormat::IQ2XXS => with_block!(@ $block = Iq2Xxs, $quantized),
            WeightFormat::IQ2XS => with_block!(@ $block = Iq2Xs, $quantized),
            WeightFormat::IQ2S => with_block!(@ $block = Iq2S, $quantized),
            WeightFormat::IQ3XXS => with_block!(@ $block = Iq3Xxs, $quantized),
            WeightFormat::IQ3S => with_block!(@ $block = Iq3S, $quantized),
            WeightFormat::IQ1S => with_block!(@ $block = Iq1S, $quantized),
            WeightFormat::IQ1M => with_block!(@ $block = Iq1M, $quantized),
            WeightFormat::TQ1_0 => with_block!(@ $block = Tq1, $quantized),
            WeightFormat::TQ2_0 => with_block!(@ $block = Tq2, $quantized),
        }
    };
    (@ $block:ident = $type:ty, $quantized:expr) => {{
        type $block = $type;
        $quantized
    }};
}

impl WeightFormat {
    /// All formats.
    pub const ALL: [Self; 25] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::IQ4NL,
        Self::IQ4XS,
        Self::MXFP4,
        Self::IQ2XXS,
        Self::IQ2XS,
        Self::IQ2S,
        Self::IQ3XXS,
        Self::IQ3S,
        Self::IQ1S,
        Self::IQ1M,
        Self::TQ1_0,
        Self::TQ2_0,
    ];

    /// Name in model files and tools, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::IQ4NL => "IQ4_NL",
            Self::IQ4XS => "IQ4_XS",
            Self::MXFP4 => "MXFP4",
            Self::IQ2XXS => "IQ2_XXS",
            Self::IQ2XS => "IQ2_XS",
            Self::IQ2S => "IQ2_S",
            Self::IQ3XXS => "IQ3_XXS",
            Self::IQ3S => "IQ3_S",
            Self::IQ1S => "IQ1_S",
            Self::IQ1M => "IQ1_M",
            Self::TQ1_0 => "TQ1_0",
            Self::TQ2_0 => "TQ2_0",
        }
    }

    /// Values per quant block.
    pub fn block_len(self) -> usize {
        with_block!(self, F32 => 1, F16 => 1, BF16 => 1, B => B::LEN)
    }

    /// Bytes per quant block.
    pub fn block_bytes(self) -> usize {
        with_block!(self, F32 => 4, F16 => 2, BF16 => 2, B => size_of::<B>())
    }

    /// Bytes of a row of `cols` values.
    ///
    /// `None` if `cols` is not a whole number of quant blocks or the size overflows.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        let blocks = cols / self.block_len();
        cols.is_multiple_of(self.block_len()).then(|| blocks.checked_mul(self.block_bytes()))?
    }

    /// True if products take 8-bit activations
    /// ([`Activations::quantize`](crate::matmul::Activations::quantize)) instead of f32 rows.
    pub fn uses_q8(self) -> bool {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => false,
            Self::Q8_0
            | Self::Q4_0
            | Self::Q4_1
            | Self::Q5_0
            | Self::Q5_1
            | Self::Q2K
            | Self::Q3K
            | Self::Q4K
            | Self::Q5K
            | Self::Q6K
            | Self::IQ4NL
            | Self::IQ4XS
            | Self::MXFP4
            | Self::IQ2XXS
            | Self::IQ2XS
            | Self::IQ2S
            | Self::IQ3XXS
            | Self::IQ3S
            | Self::IQ1S
            | Self::IQ1M
            | Self::TQ1_0
            | Self::TQ2_0 => true,
        }
    }

    /// Dequantizes whole quant blocks, bit for bit as the format defines.
    ///
    /// # Panics
    /// If `bytes` is not the length of the quant blocks of `values.len()` values.
    pub fn dequantize(self, bytes: &[u8], values: &mut [f32]) {
        self.check_lengths(bytes.len(), values.len());
        dequantize_any(self, bytes, values);
    }

    /// Quantizes `values` to quant blocks.
    ///
    /// F16, BF16, `Q8_0`, `Q4_0`, `Q4_1`, `Q5_0` and `Q5_1` match ggml's reference quantizer byte
    /// for byte; the other formats search for the scales and quants with the least squared error.
    /// Non-finite values give meaningless quant blocks, as in every quantizer of these formats.
    ///
    /// # Panics
    /// If `values` is not whole quant blocks, or `bytes` not their exact length.
    pub fn quantize(self, values: &[f32], bytes: &mut [u8]) {
        self.quantize_weighted(values, None, bytes);
    }

    /// Quantizes rows to quant blocks, squared errors weighted by the importance of their columns.
    ///
    /// `importance`: `[cols]`, the same for every row, such as mean squared activations; relative
    /// within a quant block, in which no weight is below 1e-4 of the mean. A quant block without a
    /// positive finite mean counts as equally weighted. F16, BF16 and `Q8_0` ignore it; with it,
    /// `Q4_0`, `Q4_1`, `Q5_0` and `Q5_1` search too.
    ///
    /// # Panics
    /// As [`quantize`](Self::quantize), or if `importance` is not whole quant blocks or `values`
    /// not whole rows of its length.
    pub fn quantize_weighted(self, values: &[f32], importance: Option<&[f32]>, bytes: &mut [u8]) {
        self.check_lengths(bytes.len(), values.len());
        if let Some(importance) = importance {
            let cols = importance.len();
            assert!(
                cols > 0 && cols.is_multiple_of(self.block_len()) && values.len().is_multiple_of(cols),
                "{}: importance of {cols} columns for {} values",
                self.name(),
                values.len()
            );
        }
        with_block!(
            self,
            F32 => float::encode(values, bytes, f32::to_le_bytes),
            F16 => float::encode(values, bytes, |x| f16::from_f32_const(x).to_le_bytes()),
            BF16 => float::encode(values, bytes, |x| bf16::from_f32(x).to_le_bytes()),
            B => quantize::<B>(values, importance, bytes)
        );
    }

    #[track_caller]
    fn check_lengths(self, n_bytes: usize, n_values: usize) {
        assert_eq!(
            self.row_bytes(n_values),
            Some(n_bytes),
            "{}: {n_bytes} bytes do not hold {n_values} values",
            self.name()
        );
    }
}

/// Factors that convert the quants of one sub-block to values:
/// `value = scale * halves[i / 16] * (quant - OFFSET) - min * min_halves[i / 16]`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Factors {
    pub(crate) scale: f32,
    /// Subtracted; 0 unless [`QuantBlock::HAS_MIN`].
    pub(crate) min: f32,
    /// Integer scales of the two halves of 16 values; 1 unless [`QuantBlock::HALF_SCALES`].
    pub(crate) halves: [i8; 2],
    /// Integer minima of the two halves, in units of `min`; 1 unless [`QuantBlock::HALF_MINS`].
    pub(crate) min_halves: [i8; 2],
}

impl Factors {
    /// No minimum, no half scales; the scale is to be set.
    const UNIT: Self = Self { scale: 0.0, min: 0.0, halves: [1; 2], min_halves: [1; 2] };
}

/// Quant block of a format with integer products, in its memory layout.
pub(crate) trait QuantBlock: bytemuck::Pod {
    /// Values per quant block.
    const LEN: usize;
    /// Sub-blocks per quant block.
    const SUB_BLOCKS: usize = Self::LEN / SUB_BLOCK;
    /// Largest stored quant if unsigned; `None` for signed bytes.
    const MAX_QUANT: Option<u8>;
    /// Offset subtracted from every stored quant.
    const OFFSET: i8 = 0;
    /// Number of product pairs that a 16-bit sum holds without overflow.
    ///
    /// A product is a stored quant times an activation of at most 127. The number is a divisor of
    /// the eight pieces of a sub-block (four pieces for a half with its own scale).
    const SUMS: usize = match Self::MAX_QUANT {
        Some(q) if !Self::HALF_SCALES && 8 * 2 * 127 * q as usize <= i16::MAX as usize => 8,
        Some(q) if 4 * 2 * 127 * q as usize <= i16::MAX as usize => 4,
        Some(q) if 2 * 2 * 127 * q as usize <= i16::MAX as usize => 2,
        Some(_) | None => 1,
    };
    /// True if sub-blocks have a minimum.
    const HAS_MIN: bool = false;
    /// True if the halves of a sub-block have their own integer scales.
    const HALF_SCALES: bool = false;
    /// True if the halves of a sub-block have their own integer minima (implies `HAS_MIN`).
    const HALF_MINS: bool = false;

    /// Stored quants of all sub-blocks, in value order. `quants`: `[SUB_BLOCKS]`.
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]);

    /// Factors of all sub-blocks. `factors`: `[SUB_BLOCKS]`.
    fn factors(&self, factors: &mut [Factors]);

    /// Quantizes `LEN` values.
    fn quantize(values: &[f32], importance: Importance<'_>) -> Self;
}

/// Largest number of sub-blocks of any format.
pub(crate) const MAX_SUB_BLOCKS: usize = 8;

/// Value of a stored quant with the offset subtracted.
#[inline(always)]
pub(crate) fn quant_value<B: QuantBlock>(stored: u8) -> i32 {
    match B::MAX_QUANT {
        Some(_) => i32::from(stored) - i32::from(B::OFFSET),
        None => i32::from(stored as i8),
    }
}

/// Half-precision number of a quant block, converted exactly.
#[inline(always)]
fn half_to_f32(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32_const()
}

/// Rounds a quant block's scale to half precision.
fn f32_to_half(x: f32) -> [u8; 2] {
    f16::from_f32_const(x).to_le_bytes()
}

impl Kernels {
    /// Dequantizes whole quant blocks with the bits of [`WeightFormat::dequantize`].
    ///
    /// # Panics
    /// As [`WeightFormat::dequantize`].
    pub fn dequantize(&self, format: WeightFormat, bytes: &[u8], values: &mut [f32]) {
        format.check_lengths(bytes.len(), values.len());
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.dequantize)(format, bytes, values) }
    }
}

/// Dequantizes in a function that enables an instruction set, which the compiler's own vectors use.
#[inline(always)]
pub(crate) fn dequantize_blocks<L: Lanes>(_: L, format: WeightFormat, bytes: &[u8], values: &mut [f32]) {
    dequantize_any(format, bytes, values);
}

#[inline(always)]
fn dequantize_any(format: WeightFormat, bytes: &[u8], values: &mut [f32]) {
    with_block!(
        format,
        F32 => float::decode(bytes, values, f32::from_le_bytes),
        F16 => float::decode(bytes, values, |b| f16::from_le_bytes(b).to_f32_const()),
        BF16 => float::decode(bytes, values, |b| bf16::from_le_bytes(b).to_f32()),
        B => dequantize::<B>(bytes, values)
    );
}

#[inline(always)]
fn dequantize<B: QuantBlock>(bytes: &[u8], values: &mut [f32]) {
    let blocks: &[B] = bytemuck::cast_slice(bytes);
    let mut quants = [[0; SUB_BLOCK]; MAX_SUB_BLOCKS];
    let mut factors = [Factors::default(); MAX_SUB_BLOCKS];
    for (block, values) in blocks.iter().zip(values.chunks_exact_mut(B::LEN)) {
        block.unpack(&mut quants[..B::SUB_BLOCKS]);
        block.factors(&mut factors[..B::SUB_BLOCKS]);
        for (s, values) in values.chunks_exact_mut(SUB_BLOCK).enumerate() {
            for (half, values) in values.chunks_exact_mut(SUB_BLOCK / 2).enumerate() {
                let scale = factors[s].scale * f32::from(factors[s].halves[half]);
                let min = factors[s].min * f32::from(factors[s].min_halves[half]);
                for (value, &quant) in values.iter_mut().zip(&quants[s][half * SUB_BLOCK / 2..]) {
                    *value = scale * quant_value::<B>(quant) as f32;
                    if B::HAS_MIN {
                        *value -= min;
                    }
                }
            }
        }
    }
}

fn quantize<B: QuantBlock>(values: &[f32], importance: Option<&[f32]>, bytes: &mut [u8]) {
    let blocks: &mut [B] = bytemuck::cast_slice_mut(bytes);
    let mut weights = [0.0; MAX_SUB_BLOCKS * SUB_BLOCK];
    let mut of_row = importance.unwrap_or(&[]).chunks_exact(B::LEN).cycle();
    for (block, values) in blocks.iter_mut().zip(values.chunks_exact(B::LEN)) {
        let importance = match of_row.next() {
            Some(of_block) => Importance::relative(of_block, &mut weights),
            None => Importance::EQUAL,
        };
        *block = B::quantize(values, importance);
    }
}
