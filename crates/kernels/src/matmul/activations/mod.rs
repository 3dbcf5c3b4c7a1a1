//! The input of matrix products: rows of f32 and, for integer-dot weight formats, their 8-bit form.
//!
//! Quantized once per input, shared by all matrices that read it (Q, K and V; gate and up). One
//! 8-bit format serves all weight formats: 32 values share a scale.

mod q8;
mod update;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;

use crate::{Isa, Kernels, ThreadPool};

pub(crate) use q8::{Order, Q8Group, Q8Rows, Q8Token, TILE_TOKENS, TileStep, quantize_rows, quantize_tiles};

/// From this number of tokens on, products expand weights into panels and work in tiles; below,
/// they read the weights row by row. Measured: where the tiles win for most formats.
fn min_tiled_tokens(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 => 12,
        Isa::Scalar | Isa::Avx2 | Isa::Neon | Isa::NeonDotprod | Isa::NeonI8mm => 17,
    }
}

/// The 8-bit form of the rows, in the one layout that products with this many tokens read.
#[derive(Debug, Default)]
pub(crate) struct Q8 {
    /// True if `tiles` is filled, false if `rows` is.
    pub(crate) tiled: bool,
    /// For few tokens, where the sub-blocks of a row stay together.
    pub(crate) rows: Q8Rows,
    /// For many. `[tiles, sub-blocks]`, the sub-blocks in slot order.
    pub(crate) tiles: Vec<TileStep>,
}

/// Rows of activations, `[tokens, cols]`, as input of [`Kernels::matmul`].
///
/// The buffers are kept between uses: once it has seen its largest shape, nothing allocates.
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
    quantized: bool,
}

impl Activations {
    /// No rows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the shape and gives back the rows, `[tokens, cols]`, to be filled; their present
    /// content is unspecified.
    ///
    /// # Panics
    /// If a slice cannot have so many values.
    pub fn resize(&mut self, tokens: usize, cols: usize) -> &mut [f32] {
        let Some(len) = tokens.checked_mul(cols) else {
            panic!("activations: {tokens} rows of {cols} values are more than memory can hold")
        };
        self.quantized = false;
        self.values.resize(len, 0.0);
        (self.tokens, self.cols) = (tokens, cols);
        &mut self.values
    }

    /// The rows, `[tokens, cols]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The rows, `[tokens, cols]`, to be changed; what [`quantize`](Self::quantize) made before no
    /// longer counts.
    pub fn values_mut(&mut self) -> &mut [f32] {
        self.quantized = false;
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

    /// Makes the 8-bit form of the rows, unless it is there already.
    ///
    /// Needed before a product with a format for which
    /// [`WeightFormat::uses_q8`](crate::quant::WeightFormat::uses_q8) holds.
    ///
    /// # Numerics
    /// Per 32 values (the last group of a row padded with zeros): `scale = max|x| / 127`, `q =
    /// round(x * (127 / max|x|))`, ties to even. A group with a value that is not finite gets the
    /// scale NaN, so that every output that depends on it is NaN. Groups smaller than 127 /
    /// [`f32::MAX`] become zero. The same bits on every instruction set.
    pub fn quantize(&mut self, kernels: &Kernels, pool: &ThreadPool) {
        if !self.quantized {
            self.update_and_quantize(kernels, pool, &|_, _| {});
        }
    }

    /// The 8-bit form.
    ///
    /// # Panics
    /// If it has not been made since the rows changed.
    pub(crate) fn q8(&self) -> &Q8 {
        assert!(self.quantized, "Activations::quantize must precede a product with an integer-dot format");
        &self.q8
    }
}

#[cfg(test)]
mod tests;
