//! Codebooks and rotary embedding of planes and tiles in `nuq3`.

use super::{KEY_TILE, KeyRope, NuqCodebooks};

/// Codebooks and rotary embedding of a plane in
/// [`KvFormat::Nuq3`](crate::attention::KvFormat::Nuq3), to write and to read it.
#[derive(Debug, Clone, Copy)]
pub struct NuqContext<'a> {
    /// Codebooks of the layer.
    pub codebooks: &'a NuqCodebooks,
    /// RoPE tables of the layer.
    pub rope: &'a KeyRope,
    /// Position in the sequence of the first token of the block; a multiple of 32.
    pub first_position: usize,
}

/// A [`NuqContext`] for one tile.
#[derive(Clone, Copy)]
pub(in crate::attention) struct NuqTile<'a> {
    pub(super) codebooks: &'a NuqCodebooks,
    pub(super) rope: &'a KeyRope,
    head: usize,
    /// Tiles of the sequence before this one.
    pub(super) index: usize,
}

impl<'a> NuqContext<'a> {
    /// The context of the tile that begins `offset` positions behind the first.
    #[inline(always)]
    pub(in crate::attention) fn tile(&self, head: usize, offset: usize) -> NuqTile<'a> {
        let index = (self.first_position + offset) / KEY_TILE;
        NuqTile { codebooks: self.codebooks, rope: self.rope, head, index }
    }

    /// Panics if the context is of other heads or its tables hold fewer positions.
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
    /// Range of each dimension of the head's keys, low and high.
    #[inline(always)]
    pub(super) fn key_ranges(&self, dim: usize) -> &[[f32; 2]] {
        &self.codebooks.key_ranges()[self.head * dim..][..dim]
    }
}
