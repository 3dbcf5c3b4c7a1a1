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
//! Of 32 codes, eight bytes hold the two lower bits in the layout of the two-bit formats. Four
//! bytes hold the upper bits: that of code `8 k + j` is bit `2 k + j / 4` of byte `j % 4`.
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
use crate::lanes::LANES;

pub use codebooks::{NUQ_LEVELS, NuqCodebooks};
pub use context::NuqContext;
pub(in crate::attention) use context::NuqTile;
pub use key_rope::KeyRope;
pub(super) use outliers::{Outlier, n_halves};
pub(in crate::attention) use read::{widen_keys, widen_values};
pub use train::NuqTraining;
pub(super) use write::{store_keys, store_values};

/// Bytes per 32 codes.
const CODE_BYTES: usize = 12;

/// Middle and half-width of a range.
#[inline(always)]
fn middle_and_half([low, high]: [f32; 2]) -> [f32; 2] {
    [0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low]
}

/// Unpacks 32 codes, eight at a time.
#[inline(always)]
fn unpack(packed: &[u8; CODE_BYTES]) -> [[u8; LANES]; GROUP / LANES] {
    let [a, b, c, d, e, f, g, h, high @ ..] = *packed;
    let low = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let high = u64::from(u32::from_le_bytes(high));
    // A byte of upper bits serves two lanes, the second from the next bit.
    let high = high | high >> 1 << 32;
    let mut codes = [[0; LANES]; GROUP / LANES];
    for (eight, codes) in codes.iter_mut().enumerate() {
        let low = low >> (2 * eight) & 0x0303_0303_0303_0303;
        let high = high >> (2 * eight) & 0x0101_0101_0101_0101;
        *codes = (low | high << 2).to_le_bytes();
    }
    codes
}

/// Packs 32 codes.
fn pack(codes: &[u8; GROUP]) -> [u8; CODE_BYTES] {
    let mut packed = [0; CODE_BYTES];
    for (i, code) in codes.iter().enumerate() {
        let (eight, lane) = (i / LANES, i % LANES);
        packed[lane] |= (code & 3) << (2 * eight);
        packed[LANES + lane % 4] |= (code >> 2) << (2 * eight + lane / 4);
    }
    packed
}
