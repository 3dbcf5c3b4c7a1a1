//! The formats of keys and values: how a tile of 32 positions lies in memory, how rows get into it and how attention
//! reads it in place.
//!
//! # Layout
//! Keys (or values) of a block are a *plane* of *tiles*, `[n_kv_heads, block_tokens / 32]`; a tile holds 32 consecutive
//! positions of one head, and is a whole number of cache lines:
//!
//! | format | numbers | then | bits per value |
//! |---|---|---|---|
//! | `f32`, `f16`, `bf16` | 32 x `head_dim` | | 32, 16, 16 |
//! | `q8` | 32 x `head_dim` signed bytes | scales in half precision | 8.5 |
//! | `q4` | 32 x `head_dim` four-bit numbers | scales, then minima, in half precision | 5 |
//!
//! Keys lie *across*, `[head_dim, 32]`: one dimension of 32 positions together. Then the scores of 16 positions are one
//! wide vector from the first product to the last sum, and nothing is ever summed across lanes. Values lie *along*,
//! `[32, head_dim]`: there the dimensions are the outputs. Scales (and minima) are one per position and 32 dimensions, in the
//! same order: `[head_dim / 32, 32]` for keys, `[32, head_dim / 32]` for values.
//!
//! A byte of `q4` holds two numbers that lie 16 apart in that order, the earlier one in its low half.
//!
//! | file | holds |
//! |---|---|
//! | `float.rs` | single precision and the two 16-bit types |
//! | `q8.rs`, `q4.rs` | the quantized formats |
//! | `store.rs` | writing rows |
//! | `buffer.rs` | aligned memory |

mod buffer;
mod float;
mod q4;
mod q8;
mod store;

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

use super::KEY_TILE;
use crate::lanes::{LANES, WideLanes};
use crate::{Error, Result};

pub use buffer::KvBuffer;
pub(super) use buffer::{Line, as_lines_len, floats, floats_mut};
pub(super) use float::Floats;
pub(super) use q4::{Q4Keys, Q4Values};
pub(super) use q8::{Q8Keys, Q8Values};
pub(crate) use store::{StoreJob, store};

/// Values of a wide vector.
pub(super) const WIDE: usize = 2 * LANES;

/// Values that share a scale in the quantized formats.
pub(super) const GROUP: usize = 32;

/// How keys and values are stored.
///
/// # Examples
/// ```
/// use ruvllm_kernels::KvFormat;
///
/// assert_eq!("q8".parse::<KvFormat>()?, KvFormat::Q8);
/// assert_eq!(KvFormat::BF16.to_string(), "bf16");
/// # Ok::<(), ruvllm_kernels::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum KvFormat {
    /// 32-bit floats: exactly what the projections computed.
    F32,
    /// 16-bit floats, rounded to nearest: half the memory and half the traffic of attention.
    #[default]
    F16,
    /// bfloat16, rounded to nearest: the range of `F32` with 8 bits of precision.
    BF16,
    /// 8 bits: `x = scale * q`, one scale per token, head and 32 dimensions; `scale = max|x| / 127`.
    Q8,
    /// 4 bits: `x = minimum + scale * q`, one scale and minimum per token, head and 32 dimensions;
    /// `scale = (max x - min x) / 15`. A minimum of its own costs half a bit per value and halves the step of values that
    /// lie to one side of zero; KIVI (arXiv 2402.02750) stores values the same way.
    Q4,
}

impl KvFormat {
    /// Every format, from the largest to the smallest.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::BF16, Self::Q8, Self::Q4];

    /// The name that [`FromStr`] takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
        }
    }

    /// What `head_dim` has to be a multiple of.
    pub fn head_dim_multiple(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8 | Self::Q4 => GROUP,
        }
    }

    /// Bytes of one tile; saturates.
    pub(super) fn tile_bytes(self, head_dim: usize) -> usize {
        let per_dimension = match self {
            Self::F32 => KEY_TILE * size_of::<f32>(),
            Self::F16 | Self::BF16 => KEY_TILE * size_of::<f16>(),
            Self::Q8 => KEY_TILE + size_of::<f16>(),
            Self::Q4 => KEY_TILE / 2 + 2 * size_of::<f16>(),
        };
        head_dim.saturating_mul(per_dimension)
    }

    /// Half-precision numbers behind the quants of a tile.
    pub(super) fn scales_per_tile(self, head_dim: usize) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 0,
            Self::Q8 => head_dim,
            Self::Q4 => 2 * head_dim,
        }
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for KvFormat {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == name)
            .ok_or_else(|| Error::UnknownKvFormat { name: name.to_owned() })
    }
}

/// Format and sizes of the planes of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayout {
    format: KvFormat,
    n_kv_heads: usize,
    block_tokens: usize,
    head_dim: usize,
}

impl KvLayout {
    /// The layout of blocks of `block_tokens` positions.
    ///
    /// # Errors
    /// [`Error::KvHeadDim`] if the format cannot hold heads of this size.
    ///
    /// # Panics
    /// If `block_tokens` is not a positive multiple of 32.
    pub fn new(format: KvFormat, n_kv_heads: usize, block_tokens: usize, head_dim: usize) -> Result<Self> {
        let multiple = format.head_dim_multiple();
        if !head_dim.is_multiple_of(multiple) {
            return Err(Error::KvHeadDim { format, head_dim, multiple });
        }
        assert!(
            block_tokens > 0 && block_tokens.is_multiple_of(KEY_TILE),
            "blocks of {block_tokens} tokens, not a multiple of {KEY_TILE}"
        );
        Ok(Self { format, n_kv_heads, block_tokens, head_dim })
    }

    /// The format.
    pub fn format(&self) -> KvFormat {
        self.format
    }

    /// Key/value heads.
    pub fn n_kv_heads(&self) -> usize {
        self.n_kv_heads
    }

    /// Positions of a block.
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Values of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Bytes of the keys (or of the values) of a block, a multiple of 64; saturates.
    pub fn plane_bytes(&self) -> usize {
        self.format
            .tile_bytes(self.head_dim)
            .saturating_mul(self.n_kv_heads)
            .saturating_mul(self.block_tokens / KEY_TILE)
    }
}

/// A tile as a matrix of wide vectors: for keys a row is a dimension and the two columns are the 32 positions, for values a
/// row is a position and a column is 16 dimensions.
pub(super) trait Tile: Copy {
    /// Whether tiles of this type meet more rows than one register tile has: others are widened to one that does.
    const SERVES_MANY_ROWS: bool = false;

    /// Columns `column..column + N` of a row, in f32.
    fn load<L: WideLanes, const N: usize>(self, l: L, row: usize, column: usize) -> [L::W; N];
}

/// Keys or values of 32 positions of one head, in whichever format, to be taken by an algorithm.
pub(super) trait TileVisitor<L: WideLanes> {
    fn visit<T: Tile>(self, l: L, tile: T);
}

/// Calls `visitor` with the tile of keys that `bytes` hold. `scales` is room for what quants are multiplied with.
#[inline(always)]
pub(super) fn with_keys<L: WideLanes>(
    l: L,
    format: KvFormat,
    bytes: &[u8],
    dim: usize,
    scales: &mut [Line],
    visitor: impl TileVisitor<L>,
) {
    match format {
        KvFormat::F32 => visitor.visit(l, Floats::<f32>::new(bytemuck::cast_slice(bytes), 2)),
        KvFormat::F16 => visitor.visit(l, Floats::<f16>::new(bytemuck::cast_slice(bytes), 2)),
        KvFormat::BF16 => visitor.visit(l, Floats::<bf16>::new(bytemuck::cast_slice(bytes), 2)),
        KvFormat::Q8 => visitor.visit(l, Q8Keys::new(quants(l, format, bytes, dim, scales))),
        KvFormat::Q4 => visitor.visit(l, Q4Keys::new(quants(l, format, bytes, dim, scales))),
    }
}

/// As [`with_keys`], for values in rows of `columns` wide vectors.
#[inline(always)]
pub(super) fn with_values<L: WideLanes>(
    l: L,
    format: KvFormat,
    bytes: &[u8],
    columns: usize,
    scales: &mut [Line],
    visitor: impl TileVisitor<L>,
) {
    let dim = columns * WIDE;
    match format {
        KvFormat::F32 => visitor.visit(l, Floats::<f32>::new(bytemuck::cast_slice(bytes), columns)),
        KvFormat::F16 => visitor.visit(l, Floats::<f16>::new(bytemuck::cast_slice(bytes), columns)),
        KvFormat::BF16 => visitor.visit(l, Floats::<bf16>::new(bytemuck::cast_slice(bytes), columns)),
        KvFormat::Q8 => visitor.visit(l, Q8Values::new(quants(l, format, bytes, dim, scales), columns)),
        KvFormat::Q4 => visitor.visit(l, Q4Values::new(quants(l, format, bytes, dim, scales), columns)),
    }
}

/// Values in rows whose length is not a multiple of 16: copied to f32 rows that are.
#[inline(always)]
pub(super) fn pad_values<L: WideLanes>(l: L, format: KvFormat, bytes: &[u8], dim: usize, to: &mut [Line]) {
    match format {
        KvFormat::F32 => float::pad::<L, f32>(l, bytemuck::cast_slice(bytes), dim, to),
        KvFormat::F16 => float::pad::<L, f16>(l, bytemuck::cast_slice(bytes), dim, to),
        KvFormat::BF16 => float::pad::<L, bf16>(l, bytemuck::cast_slice(bytes), dim, to),
        KvFormat::Q8 | KvFormat::Q4 => unreachable!("quantized rows are multiples of 32, as `check` ensures"),
    }
}

/// The two parts of a quantized tile.
#[derive(Clone, Copy)]
pub(super) struct Quants<'a> {
    /// Sixteen bytes at a time.
    bytes: &'a [[u8; WIDE]],
    /// Scales, then minima if the format has them, in f32.
    scales: &'a [f32],
}

/// Cuts a quantized tile into its parts and widens the scales, once per tile.
#[inline(always)]
fn quants<'a, L: WideLanes>(
    l: L,
    format: KvFormat,
    tile: &'a [u8],
    dim: usize,
    wide: &'a mut [Line],
) -> Quants<'a> {
    let (bytes, scales) = split(format, dim, tile);
    let scales = scales.as_chunks::<WIDE>().0;
    for (from, to) in scales.iter().zip(&mut *wide) {
        l.wide_store(l.wide_load_f16(from), to.halves_mut());
    }
    Quants { bytes: bytes.as_chunks().0, scales: floats(&wide[..scales.len()]) }
}

/// Quants and half-precision numbers of a quantized tile.
#[inline(always)]
fn split(format: KvFormat, dim: usize, tile: &[u8]) -> (&[u8], &[f16]) {
    let (bytes, scales) = tile.split_at(tile.len() - size_of::<f16>() * format.scales_per_tile(dim));
    (bytes, bytemuck::cast_slice(scales))
}

/// As [`split`].
#[inline(always)]
fn split_mut(format: KvFormat, dim: usize, tile: &mut [u8]) -> (&mut [u8], &mut [f16]) {
    let (bytes, scales) = tile.split_at_mut(tile.len() - size_of::<f16>() * format.scales_per_tile(dim));
    (bytes, bytemuck::cast_slice_mut(scales))
}
