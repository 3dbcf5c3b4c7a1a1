//! Writing rows of keys and values into planes.

use half::{bf16, f16};

use super::super::KEY_TILE;
use super::{GROUP, KvFormat, KvLayout, float, q4, q8};
use crate::Kernels;
use crate::lanes::Lanes;

/// What a plane holds; keys and values lie differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KvRole {
    Keys,
    Values,
}

/// The row of one position and head.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) role: KvRole,
    pub(super) values: &'a [f32], // [head_dim]
    /// Position in the tile.
    pub(super) slot: usize,
}

impl Row<'_> {
    /// Where the scale of a group of dimensions lies.
    #[inline(always)]
    pub(super) fn group_index(&self, group: usize) -> usize {
        match self.role {
            KvRole::Keys => group * KEY_TILE + self.slot,
            KvRole::Values => self.slot * (self.values.len() / GROUP) + group,
        }
    }
}

/// Rows to be stored.
pub(crate) struct StoreJob<'a> {
    layout: &'a KvLayout,
    role: KvRole,
    rows: &'a [f32], // [tokens, n_kv_heads, head_dim]
    first: usize,
}

impl Kernels {
    /// Stores the keys of consecutive tokens in a plane, from position `first` of its block on.
    ///
    /// # Shapes
    /// `rows`: `[tokens, n_kv_heads, head_dim]`; `plane`: [`KvLayout::plane_bytes`] bytes, laid out as attention reads
    /// them. Other positions of the plane stay as they are.
    ///
    /// # Numerics
    /// `F16` and `BF16` round to nearest, ties to even. `Q8` and `Q4` round scale (and minimum) to half precision first and
    /// then the numbers to the nearest step of *that* scale. A group of 32 with a value that is not finite, or whose scale
    /// or minimum does not fit half precision, gets the scale NaN, so that garbage cannot look like a number. The
    /// same bits on every instruction set.
    ///
    /// # Panics
    /// If a length contradicts the layout, the tokens do not fit the block, or the plane is not aligned for the format's
    /// numbers (64-byte alignment, as [`KvBuffer`](crate::KvBuffer) gives it, is best).
    pub fn store_keys(&self, layout: &KvLayout, rows: &[f32], first: usize, plane: &mut [u8]) {
        self.store_kv(&StoreJob { layout, role: KvRole::Keys, rows, first }, plane);
    }

    /// Stores the values of consecutive tokens; otherwise as [`store_keys`](Self::store_keys).
    ///
    /// # Panics
    /// As `store_keys`.
    pub fn store_values(&self, layout: &KvLayout, rows: &[f32], first: usize, plane: &mut [u8]) {
        self.store_kv(&StoreJob { layout, role: KvRole::Values, rows, first }, plane);
    }

    fn store_kv(&self, job: &StoreJob<'_>, plane: &mut [u8]) {
        let width = job.layout.n_kv_heads * job.layout.head_dim;
        assert!(plane.len() == job.layout.plane_bytes(), "store: length of the plane");
        if width == 0 {
            return;
        }
        assert!(job.rows.len().is_multiple_of(width), "store: rows of another width");
        let end = job.first.saturating_add(job.rows.len() / width);
        assert!(end <= job.layout.block_tokens, "store: more tokens than the block has room for");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.store_kv)(job, plane) }
    }
}

/// Stores the rows of a job.
#[inline(always)]
pub(crate) fn store<L: Lanes>(l: L, job: &StoreJob<'_>, plane: &mut [u8]) {
    let KvLayout { format, n_kv_heads, block_tokens, head_dim } = *job.layout;
    let tile_bytes = format.tile_bytes(head_dim);
    // Head by head: the places of consecutive tokens lie side by side.
    for head in 0..n_kv_heads {
        let tiles = &mut plane[head * (block_tokens / KEY_TILE) * tile_bytes..];
        for (token, row) in job.rows.chunks_exact(n_kv_heads * head_dim).enumerate() {
            let position = job.first + token;
            let tile = &mut tiles[position / KEY_TILE * tile_bytes..][..tile_bytes];
            let values = &row[head * head_dim..][..head_dim];
            let row = Row { role: job.role, values, slot: position % KEY_TILE };
            match format {
                KvFormat::F32 => float::store::<L, f32>(l, row, bytemuck::cast_slice_mut(tile)),
                KvFormat::F16 => float::store::<L, f16>(l, row, bytemuck::cast_slice_mut(tile)),
                KvFormat::BF16 => float::store::<L, bf16>(l, row, bytemuck::cast_slice_mut(tile)),
                KvFormat::Q8 => q8::store(l, row, tile),
                KvFormat::Q4 => q4::store(l, row, tile),
            }
        }
    }
}

/// A scale as it is stored; NaN where half precision has no such number.
#[inline(always)]
pub(super) fn scale_of(x: f32) -> f16 {
    let scale = f16::from_f32_const(x);
    if scale.is_finite() { scale } else { f16::NAN }
}

/// What values are multiplied with to count in steps of `scale`; 0 where there are no steps.
#[inline(always)]
pub(super) fn inverse(scale: f16) -> f32 {
    let scale = scale.to_f32_const();
    if scale > 0.0 { 1.0 / scale } else { 0.0 }
}
