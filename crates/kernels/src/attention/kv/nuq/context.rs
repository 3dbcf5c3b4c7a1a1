//! Codebooks and RoPE tables of planes and tiles in `nuq3`.

use super::{KEY_TILE, KeyRope, NuqCodebooks};

/// Codebooks and RoPE tables for writing and reading a plane in
/// [`KvFormat::Nuq3`](crate::attention::KvFormat::Nuq3).
#[derive(Debug, Clone, Copy)]
pub struct NuqContext<'a> {
    /// Codebooks of the layer.
    pub codebooks: &'a NuqCodebooks,
    /// RoPE tables of the layer.
    pub rope: &'a KeyRope,
    /// Position of the block's first token in the sequence; a multiple of 32.
    pub first_position: usize,
}

/// [`NuqContext`] of one tile.
#[derive(Clone, Copy)]
pub(in crate::attention) struct NuqTile<'a> {
    pub(super) codebooks: &'a NuqCodebooks,
    pub(super) rope: &'a KeyRope,
    head: usize,
    /// Index of the tile in the sequence.
    pub(super) index: usize,
}

impl<'a> NuqContext<'a> {
    /// Context of the tile `offset` positions after the first.
    #[inline(always)]
    pub(in crate::attention) fn tile(&self, head: usize, offset: usize) -> NuqTile<'a> {
        let index = (self.first_position + offset) / KEY_TILE;
        NuqTile { codebooks: self.codebooks, rope: self.rope, head, index }
    }

    /// Panics if the head count or size differs or the RoPE tables hold too few positions.
    #[track_caller]
    pub(in crate::attention) fn check(&self, n_kv_heads: usize, head_dim: usize, positions: usize) {
        assert!(self.first_position.is_multiple_of(KEY_TILE), "nuq3: blocks begin at multiples of 32");
        let dimensions = n_kv_heads.checked_mul(head_dim);
        assert_eq!(Some(self.codebooks.key_ranges().len()), dimensions, "nuq3: dimensions of the keys");
        assert!(self.rope.rotary_dim() <= head_dim, "nuq3: the rotary dimension exceeds the head");
        let needed = self.first_position.saturating_add(positions);
        let known = self.rope.positions();
        assert!(needed <= known, "nuq3: {needed} positions, the RoPE tables hold {known}");
    }
}

impl NuqTile<'_> {
    /// Low and high end of each dimension of the head's keys.
    #[inline(always)]
    pub(super) fn key_ranges(&self, dim: usize) -> &[[f32; 2]] {
        &self.codebooks.key_ranges()[self.head * dim..][..dim]
    }
}
