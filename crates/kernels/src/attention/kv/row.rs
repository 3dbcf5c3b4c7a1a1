//! A row of keys or values to be stored, and its places in a tile.

use super::super::KEY_TILE;
use super::{GROUP, KvRole};

/// The keys or values of one head at one position, on their way into a tile.
#[derive(Clone, Copy)]
pub(super) struct HeadRow<'a> {
    pub(super) role: KvRole,
    pub(super) values: &'a [f32], // [head_dim]
    /// Position in the tile.
    pub(super) slot: usize,
}

impl HeadRow<'_> {
    /// Index of the scale of group `group` (32 dimensions) in this row's tile.
    #[inline(always)]
    pub(super) fn group_index(&self, group: usize) -> usize {
        match self.role {
            KvRole::Keys => group * KEY_TILE + self.slot,
            KvRole::Values => self.slot * (self.values.len() / GROUP) + group,
        }
    }
}
