//! Row of keys or values to store, and its offsets in a tile.

use super::super::KEY_TILE;
use super::{GROUP, KvRole};

/// Keys or values of one head at one position.
#[derive(Clone, Copy)]
pub(super) struct HeadRow<'a> {
    pub(super) role: KvRole,
    pub(super) values: &'a [f32], // [head_dim]
    /// Position in the tile.
    pub(super) slot: usize,
}

impl HeadRow<'_> {
    /// Index in the tile of the scale of group `group` (32 dimensions) of this row.
    #[inline(always)]
    pub(super) fn group_index(&self, group: usize) -> usize {
        match self.role {
            KvRole::Keys => group * KEY_TILE + self.slot,
            KvRole::Values => self.slot * (self.values.len() / GROUP) + group,
        }
    }
}
