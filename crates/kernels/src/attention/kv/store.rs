//! Writing of rows of keys and values into planes.

use half::{bf16, f16};

use super::super::KEY_TILE;
use super::codes::{FourBits, TwoBits};
use super::layout::TileRun;
use super::row::HeadRow;
use super::{KiviBits, KvFormat, KvLayout, KvPlaneMut, KvRole, float, per_token, q4, q8};
use crate::Kernels;
use crate::lanes::Lanes;

impl Kernels {
    /// Stores the keys or values of consecutive tokens in a plane, from position `first` of its
    /// block.
    ///
    /// # Shapes
    /// `rows`: `[tokens, n_kv_heads, head_dim]`. Other positions of the plane are unchanged.
    ///
    /// # Numerics
    /// `F16` and `BF16` round to nearest, ties to even. Quantized formats round scale (and minimum)
    /// to half precision first, then values to the nearest step of the *rounded* scale. A group
    /// with a non-finite value, or whose scale or minimum overflows half precision, gets the scale
    /// NaN, so that garbage cannot pass as a number. Bit-identical on every instruction set.
    ///
    /// # Panics
    /// If the rows are not whole tokens, the tokens exceed the block, the format is not appendable
    /// ([`KvFormat::keys_are_appendable`], [`KvFormat::values_are_appendable`]), or the plane is
    /// not aligned for the format's element type (64-byte alignment, as
    /// [`KvBuffer`](crate::attention::KvBuffer) has, is best).
    pub fn store_kv(&self, plane: KvPlaneMut<'_>, first: usize, rows: &[f32]) {
        let KvLayout { format, n_kv_heads, block_tokens, head_dim } = plane.layout;
        let width = n_kv_heads * head_dim;
        if width == 0 {
            return;
        }
        assert!(rows.len().is_multiple_of(width), "store_kv: rows of another width");
        let end = first.saturating_add(rows.len() / width);
        assert!(end <= block_tokens, "store_kv: more tokens than the block has room for");
        let (name, are_appendable) = match plane.role {
            KvRole::Keys => ("keys", format.keys_are_appendable()),
            KvRole::Values => ("values", format.values_are_appendable()),
        };
        assert!(are_appendable, "store_kv: {name} in {format} are written a block at a time, by convert_kv");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.store_kv)(plane, first, rows) }
    }
}

/// Stores rows from position `first`.
#[inline(always)]
pub(crate) fn store<L: Lanes>(l: L, plane: KvPlaneMut<'_>, first: usize, rows: &[f32]) {
    let KvPlaneMut { layout, role, bytes, .. } = plane;
    let KvLayout { format, n_kv_heads, block_tokens, head_dim } = layout;
    let run = layout.run(role);
    // Head by head: consecutive tokens of a head are adjacent.
    for head in 0..n_kv_heads {
        let tiles = &mut bytes[head * (block_tokens / KEY_TILE) * run.bytes()..];
        for (token, row) in rows.chunks_exact(n_kv_heads * head_dim).enumerate() {
            let position = first + token;
            let tile = &mut tiles[position / KEY_TILE * run.bytes()..];
            let values = &row[head * head_dim..][..head_dim];
            store_row(l, format, &run, HeadRow { role, values, slot: position % KEY_TILE }, tile);
        }
    }
}

/// Stores one row in the first tile of `bytes`, a run of its own.
#[inline(always)]
pub(super) fn store_row<L: Lanes>(l: L, format: KvFormat, run: &TileRun, row: HeadRow<'_>, bytes: &mut [u8]) {
    let (numbers, scales) = run.split_mut(&mut bytes[..run.bytes()]);
    let group = format.head_dim_multiple();
    match (format, row.role) {
        (KvFormat::F32, _) => float::store::<L, f32>(l, row, bytemuck::cast_slice_mut(numbers)),
        (KvFormat::F16, _) => float::store::<L, f16>(l, row, bytemuck::cast_slice_mut(numbers)),
        (KvFormat::BF16, _) => float::store::<L, bf16>(l, row, bytemuck::cast_slice_mut(numbers)),
        (KvFormat::Q8, _) => q8::store(l, row, numbers, scales),
        (KvFormat::Q4, KvRole::Keys) => q4::store(l, row, numbers, scales),
        (KvFormat::Q4 | KvFormat::Kivi { bits: KiviBits::Four, .. }, KvRole::Values) => {
            per_token::store::<L, FourBits>(
                l,
                row.values,
                row.values.len(),
                row.slot,
                group,
                numbers,
                scales,
            );
        }
        (KvFormat::Kivi { bits: KiviBits::Two, .. }, KvRole::Values) => {
            per_token::store::<L, TwoBits>(l, row.values, row.values.len(), row.slot, group, numbers, scales);
        }
        (KvFormat::Kivi { .. }, KvRole::Keys) | (KvFormat::Nuq3 | KvFormat::Turbo3, _) => {
            unreachable!("such rows are refused, or stored as a run")
        }
    }
}
