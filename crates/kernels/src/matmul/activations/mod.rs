//! Input of matrix products: rows of f32 and, for integer-dot formats, their 8-bit quantization.
//!
//! Quantized once per input, shared by all matrices that read it (Q, K and V; gate and up). One
//! 8-bit format serves all weight formats: 32 values per scale.

mod groups;
mod q8;
mod update;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;

use crate::{Isa, Kernels, ThreadPool};

pub(crate) use groups::RowGroup;
pub use groups::RowGroups;
pub(crate) use q8::{
    Order, Q8Group, Q8RowParts, Q8Rows, Q8Token, TILE_TOKENS, TileStep, quantize_rows, quantize_tiles,
};

/// Smallest number of tokens for which products expand weights into panels and use tiles.
///
/// Below, they read the weights row by row. Measured crossover for most formats; at most
/// one more than [`MAX_ROWS_TOKENS`](crate::matmul::integer::MAX_ROWS_TOKENS).
fn min_tiled_tokens(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 | Isa::Avx2 => 33,
        Isa::Scalar | Isa::Neon | Isa::NeonDotprod | Isa::NeonI8mm => 17,
    }
}

/// The orders of quants that the row products of an instruction set read.
fn orders(isa: Isa) -> &'static [Order] {
    match isa {
        Isa::Scalar => &[],
        Isa::Avx2 => &Order::ALL,
        Isa::Avx512 => &[Order::Pieces],
        Isa::Neon | Isa::NeonDotprod | Isa::NeonI8mm => &[Order::Plain],
    }
}

/// 8-bit quantization of the rows, in the layout that products with this many tokens read.
#[derive(Debug, Default)]
pub(crate) struct Q8 {
    /// True if `tiles` is filled, false if `rows` is.
    pub(crate) tiled: bool,
    /// Layout for few tokens: the sub-blocks of a row stay together.
    pub(crate) rows: Q8Rows,
    /// Layout for many tokens: `[tiles, sub-blocks]`, the sub-blocks in slot order.
    pub(crate) tiles: Vec<TileStep>,
}

/// Quantized rows that one product reads: those of all tokens, or of one group.
#[derive(Clone, Copy)]
pub(crate) enum Q8Input<'a> {
    /// Few tokens: rows from `first` on.
    Rows { rows: &'a Q8Rows, first: usize },
    /// Many tokens: `[tiles, sub-blocks]`.
    Tiles(&'a [TileStep]),
}

/// Extent of the quantization of the rows.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Quantized {
    /// None, or of rows before their last change.
    #[default]
    Stale,
    /// All rows in one layout.
    Whole,
    /// Groups of rows, each in the layout of its number of rows.
    Groups,
}

/// Rows of activations, `[tokens, cols]`, as input of [`Kernels::matmul`].
///
/// Buffers are reused: after the largest shape, nothing allocates.
///
/// # Examples
/// ```
/// use ruvllm_kernels::matmul::Activations;
/// use ruvllm_kernels::{Kernels, ThreadPool};
///
/// let (kernels, pool) = (Kernels::detect()?, ThreadPool::single());
/// let mut x = Activations::new();
/// x.resize(2, 64).fill(0.5);
/// x.quantize(&kernels, &pool); // only where a matrix has a format with `uses_q8()`
/// assert_eq!((x.tokens(), x.cols()), (2, 64));
/// # Ok::<(), ruvllm_kernels::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Activations {
    tokens: usize,
    cols: usize,
    values: Vec<f32>, // [tokens, cols]
    q8: Q8,
    quantized: Quantized,
}

impl Activations {
    /// Creates activations without rows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the shape and returns the rows, `[tokens, cols]`, to be filled; their content is
    /// unspecified.
    ///
    /// # Panics
    /// If the size overflows.
    pub fn resize(&mut self, tokens: usize, cols: usize) -> &mut [f32] {
        let Some(len) = tokens.checked_mul(cols) else {
            panic!("activations: {tokens} rows of {cols} values are more than memory can hold")
        };
        self.quantized = Quantized::Stale;
        self.values.resize(len, 0.0);
        (self.tokens, self.cols) = (tokens, cols);
        &mut self.values
    }

    /// Rows, `[tokens, cols]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Mutable rows, `[tokens, cols]`; invalidates the result of [`quantize`](Self::quantize).
    pub fn values_mut(&mut self) -> &mut [f32] {
        self.quantized = Quantized::Stale;
        &mut self.values
    }

    /// Number of rows.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Values per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Quantizes the rows to 8 bits, unless already done.
    ///
    /// Required before a product with a format for which
    /// [`WeightFormat::uses_q8`](crate::quant::WeightFormat::uses_q8) holds.
    ///
    /// # Numerics
    /// Per 32 values (the last group of a row padded with zeros): `scale = max|x| / 127`, `q =
    /// round(x * (127 / max|x|))`, ties to even. A group with a non-finite value gets the scale
    /// NaN, so that every output that depends on it is NaN. Groups smaller than 127 / [`f32::MAX`]
    /// become zero. Bit-identical on every instruction set.
    pub fn quantize(&mut self, kernels: &Kernels, pool: &ThreadPool) {
        if self.quantized != Quantized::Whole {
            self.update_and_quantize(kernels, pool, &|_, _| {});
        }
    }

    /// 8-bit quantization of the rows.
    ///
    /// # Panics
    /// If the rows were not quantized since their last change.
    pub(crate) fn q8(&self) -> &Q8 {
        let message = "Activations::quantize must precede a product with an integer-dot format";
        assert!(self.quantized == Quantized::Whole, "{message}");
        &self.q8
    }

    /// 8-bit quantization of groups of rows.
    ///
    /// # Panics
    /// If the groups were not quantized since the last change of the rows.
    pub(crate) fn q8_of_groups(&self) -> &Q8 {
        let message = "Activations::quantize_groups must precede a product with an integer-dot format";
        assert!(self.quantized == Quantized::Groups, "{message}");
        &self.q8
    }
}

impl Q8 {
    /// All rows.
    pub(crate) fn input(&self) -> Q8Input<'_> {
        if self.tiled { Q8Input::Tiles(&self.tiles) } else { Q8Input::Rows { rows: &self.rows, first: 0 } }
    }
}

#[cfg(test)]
mod tests;
