//! `nuq3`: 3-bit codes for eight levels, calibrated on the model's own keys and values.
//!
//! # Dequantization
//! `x = middle + half * level[code]`, one rounding in f32; each layer has its own levels, in [-1,
//! 1].
//! - *Keys* are stored before RoPE, where the range of a dimension is stable across texts: middle
//!   and half of each dimension come from the calibration and take no memory. Reading applies RoPE.
//! - *Values* have a middle and a half per position, computed on write.
//!
//! Values far outside (about 1 %) would stretch the ranges of the others: such *outliers* are
//! stored separately, with a fixed capacity per tile, so that tiles have a fixed size.
//!
//! # Layout of a tile
//! | part | keys | values |
//! |---|---|---|
//! | codes | `[head_dim, 32]`, 12 bytes for 32 | `[32, head_dim]`, 12 bytes for 32 |
//! | ranges | | middles, then halves, `[32]` each, in half precision |
//! | outliers | `u16` indices in the tile, then half-precision values | as keys |
//!
//! Indices follow the order of the codes and ascend; `u16::MAX` marks an empty entry. A tile of
//! keys with a non-finite value has only empty entries, with a NaN as the first value, and is read
//! as NaN. A position of values with a non-finite value has the half NaN.
//!
//! Codes are packed as in `three_bits.rs`.
//!
//! # Source
//! Hooper et al., "`KVQuant`: towards 10 million context length LLM inference with KV cache
//! quantization", arXiv 2401.18079: keys before RoPE, levels by k-means, a capped number of
//! outliers stored separately. Differences: ADR-0014.

mod codebooks;
mod context;
mod key_rope;
mod outliers;
mod read;
mod train;
mod write;

#[cfg(test)]
mod tests;

use super::{GROUP, KEY_TILE};

pub use codebooks::{NUQ_LEVELS, NuqCodebooks};
pub use context::NuqContext;
pub(in crate::attention) use context::NuqTile;
pub use key_rope::KeyRope;
pub(super) use outliers::{Outlier, n_halves};
pub(in crate::attention) use read::{widen_keys, widen_values};
pub use train::NuqTraining;
pub(super) use write::{store_keys, store_values};

/// Middle and half-width of a range.
#[inline(always)]
fn middle_and_half([low, high]: [f32; 2]) -> [f32; 2] {
    [0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low]
}
