//! `nuq3`: three bits that name one of eight levels, which a calibration has learned from the
//! model's own keys and values.
//!
//! # What a number is
//! `x = middle + half * level[code]`, one rounding in f32; the levels lie in [-1, 1] and are those
//! of the layer.
//! - *Keys* are stored as they were before the rotary embedding, where a dimension keeps its range
//!   from text to text: middle and half of each dimension come from the calibration and take no
//!   memory. Reading turns them again.
//! - *Values* have a middle and a half per position, found when they are written.
//!
//! What lies far out (about 1 % of the numbers) would stretch the ranges of the others: *outliers*
//! are kept beside the codes, as many in each tile, so that a tile has a fixed size.
//!
//! # Layout of a tile
//! | part | keys | values |
//! |---|---|---|
//! | codes | `[head_dim, 32]`, 12 bytes for 32 | `[32, head_dim]`, 12 bytes for 32 |
//! | ranges | | middles, then halves, `[32]` each, in half precision |
//! | outliers | places in the tile as `u16`, then as many numbers in half precision | as those of keys |
//!
//! Places count in the order of the codes and ascend; `u16::MAX` stands for none. A tile of keys in
//! which a number was not finite has only such places, with a NaN beside the first, and is read as
//! NaN. A position of values that had such a number has the half NaN.
//!
//! Of 32 codes, eight bytes hold the two lower bits of each as in the two-bit formats. Four bytes
//! hold the upper ones: that of code `8 k + j` is bit `2 k + j / 4` of byte `j % 4`.
//!
//! # Source
//! Hooper et al., "`KVQuant`: towards 10 million context length LLM inference with KV cache
//! quantization", arXiv 2401.18079: keys before the rotary embedding, levels by k-means, outliers
//! beside the codes in a capped number. ADR-0014 says where this differs.

mod codebooks;
mod outliers;
mod read;
mod rotation;
mod train;
mod write;

#[cfg(test)]
mod tests;

use half::f16;

use super::{GROUP, KEY_TILE, KvRole, WIDE};
use crate::lanes::LANES;

pub use codebooks::{NUQ_LEVELS, NuqCodebooks};
pub(super) use outliers::Outlier;
pub(in crate::attention) use read::{widen_keys, widen_values};
pub use rotation::KeyRotation;
pub use train::NuqTraining;
pub(super) use write::{store_keys, store_values};

/// Bytes of 32 codes.
const CODE_BYTES: usize = 12;

/// Stands for no place in a tile.
const NO_PLACE: u16 = u16::MAX;

/// Half-precision numbers in a cache line.
const LINE_HALVES: usize = 2 * WIDE;

/// Codebooks and rotary embedding of a plane in [`KvFormat::Nuq3`](super::KvFormat::Nuq3), to write
/// and to read it.
#[derive(Debug, Clone, Copy)]
pub struct NuqContext<'a> {
    /// What was learned of the layer.
    pub codebooks: &'a NuqCodebooks,
    /// How the model turns keys.
    pub rotation: &'a KeyRotation,
    /// Position in the sequence of the first token of the block; a multiple of 32.
    pub first_position: usize,
}

/// The same for one tile.
#[derive(Clone, Copy)]
pub(in crate::attention) struct NuqTile<'a> {
    codebooks: &'a NuqCodebooks,
    rotation: &'a KeyRotation,
    head: usize,
    /// Tiles of the sequence before this one.
    index: usize,
}

impl<'a> NuqContext<'a> {
    /// The context of the tile that begins `offset` positions behind the first.
    #[inline(always)]
    pub(in crate::attention) fn tile(&self, head: usize, offset: usize) -> NuqTile<'a> {
        let index = (self.first_position + offset) / KEY_TILE;
        NuqTile { codebooks: self.codebooks, rotation: self.rotation, head, index }
    }

    /// Panics if the context is not one of so many heads and positions.
    #[track_caller]
    pub(in crate::attention) fn check(&self, n_kv_heads: usize, head_dim: usize, positions: usize) {
        assert!(self.first_position.is_multiple_of(KEY_TILE), "nuq3: blocks begin at multiples of 32");
        assert_eq!(self.codebooks.key_ranges().len(), n_kv_heads * head_dim, "nuq3: dimensions of the keys");
        assert!(self.rotation.rotary_dim() <= head_dim, "nuq3: the rotary dimension exceeds the head");
        let needed = self.first_position + positions;
        let known = self.rotation.positions();
        assert!(needed <= known, "nuq3: {needed} positions, the rotation covers {known}");
    }
}

impl NuqTile<'_> {
    /// Range of each dimension of the head's keys, low and high.
    #[inline(always)]
    fn key_ranges(&self, dim: usize) -> &[[f32; 2]] {
        &self.codebooks.key_ranges()[self.head * dim..][..dim]
    }
}

/// Outliers that a tile has room for. Values: 1 % of the tile, to the nearest whole cache line, at
/// least one; keys have those and the room that the ranges of values take, so that both planes are
/// of one size.
fn n_outliers(role: KvRole, head_dim: usize) -> usize {
    let lines = (head_dim.saturating_add(25) / 50).max(1);
    let values = lines.saturating_mul(LINE_HALVES / 2);
    match role {
        KvRole::Keys => values.saturating_add(KEY_TILE),
        KvRole::Values => values,
    }
}

/// Half-precision numbers and places behind the codes of a tile.
pub(super) fn n_halves(head_dim: usize) -> usize {
    n_outliers(KvRole::Keys, head_dim).saturating_mul(2)
}

/// Middle and half of a range.
#[inline(always)]
fn middle_and_half([low, high]: [f32; 2]) -> [f32; 2] {
    [0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low]
}

/// 32 codes, eight at a time.
#[inline(always)]
fn unpack(packed: &[u8; CODE_BYTES]) -> [[u8; LANES]; GROUP / LANES] {
    let [a, b, c, d, e, f, g, h, high @ ..] = *packed;
    let low = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let high = u64::from(u32::from_le_bytes(high));
    // A byte of upper bits serves two lanes, one of them a bit later.
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

/// Places and numbers of the outliers of a tile.
fn split_outliers(halves: &[f16]) -> (&[f16], &[f16]) {
    halves.split_at(halves.len() / 2)
}
