//! Conversion of planes between formats, and reading of rows.

use std::ops::Range;

use half::{bf16, f16};

use super::codes::{FourBits, TwoBits};
use super::float::Float;
use super::nuq::{self, Outlier};
use super::row::HeadRow;
use super::{
    KEY_TILE, KiviBits, KvFormat, KvLayout, KvPlane, KvPlaneMut, KvRole, KvTile, Line, as_lines_len, floats,
    kivi, per_token, q4, q8, squat, turbo, widen_keys, widen_values,
};
use crate::Kernels;
use crate::lanes::{LANES, WideLanes};

/// Scratch memory of [`Kernels::convert_kv`] and [`Kernels::read_kv`], reused between calls: a few
/// tiles in f32.
///
/// No state is carried between calls.
#[derive(Debug, Default)]
pub struct KvScratch {
    tiles: Vec<Line>,  // [tiles of a run, head_dim, 32] or [.., 32, head_dim]
    scales: Vec<Line>, // of a tile
    outliers: Vec<Outlier>,
}

impl KvScratch {
    /// Creates empty scratch; the first calls allocate.
    pub fn new() -> Self {
        Self::default()
    }

    fn reserve(&mut self, tiles: usize, head_dim: usize) {
        let tile = as_lines_len(KEY_TILE * head_dim);
        for (buffer, len) in [(&mut self.tiles, tiles * tile), (&mut self.scales, as_lines_len(2 * head_dim))]
        {
            if buffer.len() < len {
                buffer.resize(len, Line::default());
            }
        }
    }
}

impl Kernels {
    /// Converts the keys or values of a whole block to the format of another plane.
    ///
    /// Converts the dequantized values, so lost precision stays lost; convert from floats or `q8`.
    /// Planes of the same format are copied.
    ///
    /// All positions count, also those never stored: where keys share scales over positions
    /// (formats without [`KvFormat::keys_are_appendable`]), garbage in one position corrupts its
    /// group.
    ///
    /// # Numerics
    /// Bit-identical to [`store_kv`](Self::store_kv) of the same values, on every instruction set.
    /// With [corrections](KvPlaneMut::with_corrections), scales and minima of `kivi` keys are
    /// unchanged; each dimension is quantized to the nearest step after the errors of the earlier
    /// dimensions, times the weights of the correction, were added in ascending order by fused
    /// multiply-adds. [`SquatCorrection::none`](crate::attention::SquatCorrection::none) has no
    /// effect. A non-finite value affects only its own dimension.
    ///
    /// # Panics
    /// If the planes differ in more than the format, are not aligned for the format's element type,
    /// or lack a required [context](KvPlane::with_nuq).
    ///
    /// # Examples
    /// ```
    /// use ruvllm_kernels::attention::{KvBuffer, KvFormat, KvLayout, KvPlane, KvPlaneMut, KvRole, KvScratch};
    /// use ruvllm_kernels::Kernels;
    ///
    /// let kernels = Kernels::detect()?;
    /// let half = KvLayout::new(KvFormat::F16, 1, 32, 32)?;
    /// let few = KvLayout::new("kivi2".parse()?, 1, 32, 32)?;
    /// let mut hot = KvBuffer::zeroed(half.plane_bytes()).expect("some memory");
    /// let mut cold = KvBuffer::zeroed(few.plane_bytes()).expect("some memory");
    /// let rows: Vec<f32> = (0..32 * 32).map(|i| (i % 4) as f32).collect();
    /// let role = KvRole::Keys;
    /// kernels.store_kv(KvPlaneMut::new(half, role, hot.as_bytes_mut()), 0, &rows);
    ///
    /// let mut scratch = KvScratch::new();
    /// let from = KvPlane::new(half, role, hot.as_bytes());
    /// kernels.convert_kv(from, KvPlaneMut::new(few, role, cold.as_bytes_mut()), &mut scratch);
    /// assert_eq!(hot.as_bytes().len() * 3, cold.as_bytes().len() * 16, "3 bits for 16");
    ///
    /// let mut row = [0.0; 32];
    /// kernels.read_kv(KvPlane::new(few, role, cold.as_bytes()), 0, 7..8, &mut row, &mut scratch);
    /// assert_eq!(row, rows[..32]);
    /// # Ok::<(), ruvllm_kernels::Error>(())
    /// ```
    pub fn convert_kv(&self, from: KvPlane<'_>, to: KvPlaneMut<'_>, scratch: &mut KvScratch) {
        from.check_context();
        to.check_context();
        assert_eq!(from.role(), to.role, "convert_kv: keys for values");
        assert!(
            KvLayout { format: to.layout.format, ..from.layout() } == to.layout,
            "convert_kv: the layouts differ in more than the format: {:?}, {:?}",
            from.layout(),
            to.layout
        );
        if from.format() == to.layout.format {
            to.bytes.copy_from_slice(from.bytes());
        } else if !to.bytes.is_empty() {
            scratch.reserve(to.layout.run(to.role).tiles, to.layout.head_dim);
            // SAFETY: `self` exists only where the slot's instruction set is present.
            unsafe { (self.slots.convert_kv)(&from, to, scratch) }
        }
    }

    /// Reads the keys or values of one head at consecutive positions of a block, as dequantized
    /// f32.
    ///
    /// # Shapes
    /// `out`: `[positions.len(), head_dim]`, overwritten.
    ///
    /// # Panics
    /// If `out` has another length, the layout has no such head or position, or the plane lacks a
    /// required [context](KvPlane::with_nuq).
    pub fn read_kv(
        &self,
        plane: KvPlane<'_>,
        head: usize,
        positions: Range<usize>,
        out: &mut [f32],
        scratch: &mut KvScratch,
    ) {
        let KvLayout { n_kv_heads, block_tokens, head_dim, .. } = plane.layout();
        plane.check_context();
        assert!(head < n_kv_heads, "read_kv: head {head} of {n_kv_heads}");
        assert!(
            positions.end <= block_tokens,
            "read_kv: positions {positions:?} of a block of {block_tokens}"
        );
        assert_eq!(Some(out.len()), positions.len().checked_mul(head_dim), "read_kv: length of the rows");
        if out.is_empty() {
            return;
        }
        scratch.reserve(1, head_dim);
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.read_kv)(&plane, head, positions, out, scratch) }
    }
}

/// Converts a plane, one run of the new format at a time.
#[inline(always)]
pub(crate) fn convert<L: WideLanes>(l: L, from: &KvPlane<'_>, to: KvPlaneMut<'_>, scratch: &mut KvScratch) {
    let (role, KvLayout { format, block_tokens, head_dim: dim, .. }) = (to.role, to.layout);
    let run = to.layout.run(role);
    let KvScratch { tiles, scales: wide_scales, outliers } = scratch;
    let tile_lines = as_lines_len(KEY_TILE * dim);
    let (tiles_of_head, runs_of_head) = (block_tokens / KEY_TILE, block_tokens / (KEY_TILE * run.tiles));
    let KvPlaneMut { bytes, nuq, corrections, .. } = to;
    for (index, to) in bytes.chunks_exact_mut(run.bytes()).enumerate() {
        let tiles = &mut tiles[..run.tiles * tile_lines];
        for (i, wide) in tiles.chunks_exact_mut(tile_lines).enumerate() {
            let index = index * run.tiles + i;
            let tile = from.tile(index / tiles_of_head, index % tiles_of_head * KEY_TILE);
            widen(l, role, tile, dim, wide_scales, wide);
        }
        let (numbers, scales) = run.split_mut(to);
        let group = format.head_dim_multiple();
        let correction = corrections.map(|corrections| &corrections[index / runs_of_head]);
        match (format, role) {
            (KvFormat::F32, _) => round::<L, f32>(l, tiles, numbers),
            (KvFormat::F16, _) => round::<L, f16>(l, tiles, numbers),
            (KvFormat::BF16, _) => round::<L, bf16>(l, tiles, numbers),
            (KvFormat::Kivi { bits: KiviBits::Four, .. }, KvRole::Keys) => {
                kivi::store::<L, FourBits>(l, tiles, dim, numbers, scales);
                if let Some(correction) = correction {
                    squat::choose::<L, FourBits>(l, correction, tiles, numbers, scales);
                }
            }
            (KvFormat::Kivi { bits: KiviBits::Two, .. }, KvRole::Keys) => {
                kivi::store::<L, TwoBits>(l, tiles, dim, numbers, scales);
                if let Some(correction) = correction {
                    squat::choose::<L, TwoBits>(l, correction, tiles, numbers, scales);
                }
            }
            (KvFormat::Q8, KvRole::Keys) => q8::store_tile(l, tiles, numbers, scales),
            (KvFormat::Q4, KvRole::Keys) => q4::store_tile(l, tiles, numbers, scales),
            (KvFormat::Q8, KvRole::Values) => {
                for (slot, values) in floats(tiles)[..KEY_TILE * dim].chunks_exact(dim).enumerate() {
                    q8::store(l, HeadRow { role, values, slot }, numbers, scales);
                }
            }
            (KvFormat::Q4 | KvFormat::Kivi { bits: KiviBits::Four, .. }, KvRole::Values) => {
                per_token::store::<L, FourBits>(l, floats(tiles), dim, 0, group, numbers, scales);
            }
            (KvFormat::Kivi { bits: KiviBits::Two, .. }, KvRole::Values) => {
                per_token::store::<L, TwoBits>(l, floats(tiles), dim, 0, group, numbers, scales);
            }
            (KvFormat::Turbo3, KvRole::Keys) => turbo::store_keys(l, tiles, dim, numbers, scales),
            (KvFormat::Turbo3, KvRole::Values) => turbo::store_values(l, tiles, dim, numbers, scales),
            (KvFormat::Nuq3, role) => {
                let nuq = nuq.expect("`convert_kv` checks that the context is there");
                let nuq = nuq.tile(index / tiles_of_head, index % tiles_of_head * KEY_TILE);
                match role {
                    KvRole::Keys => nuq::store_keys(l, tiles, nuq, dim, numbers, scales, outliers),
                    KvRole::Values => nuq::store_values(l, tiles, nuq, dim, numbers, scales),
                }
            }
        }
    }
}

/// Reads rows, one tile at a time.
#[inline(always)]
pub(crate) fn read<L: WideLanes>(
    l: L,
    plane: &KvPlane<'_>,
    head: usize,
    positions: Range<usize>,
    out: &mut [f32],
    scratch: &mut KvScratch,
) {
    let (role, dim) = (plane.role(), plane.layout().head_dim);
    let mut start = positions.start;
    let mut out = out;
    while start < positions.end {
        let end = positions.end.min(start / KEY_TILE * KEY_TILE + KEY_TILE);
        let tile = plane.tile(head, start / KEY_TILE * KEY_TILE);
        widen(l, role, tile, dim, &mut scratch.scales, &mut scratch.tiles);
        let slots = start % KEY_TILE..start % KEY_TILE + (end - start);
        let (rows, rest) = out.split_at_mut(slots.len() * dim);
        match role {
            KvRole::Keys => transpose(floats(&scratch.tiles), dim, slots, rows),
            KvRole::Values => {
                rows.copy_from_slice(&floats(&scratch.tiles)[slots.start * dim..slots.end * dim]);
            }
        }
        (start, out) = (end, rest);
    }
}

/// Widens a tile to f32, in the tile's order.
#[inline(always)]
fn widen<L: WideLanes>(
    l: L,
    role: KvRole,
    tile: KvTile<'_>,
    dim: usize,
    scales: &mut [Line],
    to: &mut [Line],
) {
    // Float tiles are contiguous in either role and may not fill wide rows; read in units of 32,
    // they always do.
    if tile.format.is_float() || role == KvRole::Keys {
        widen_keys(l, tile, dim, scales, to);
    } else {
        widen_values(l, tile, dim, scales, to);
    }
}

/// Rounds a tile to a float format, in the tile's order.
#[inline(always)]
fn round<L: WideLanes, T: Float>(l: L, tile: &[Line], to: &mut [u8]) {
    let to: &mut [T] = bytemuck::cast_slice_mut(to);
    for (x, to) in floats(tile).as_chunks().0.iter().zip(to.as_chunks_mut::<LANES>().0) {
        *to = T::round(l, x);
    }
}

/// Transposes `slots` of a tile of keys, `[dim, 32]`, to rows.
#[inline(always)]
fn transpose(tile: &[f32], dim: usize, slots: Range<usize>, rows: &mut [f32]) {
    let columns = tile.as_chunks::<KEY_TILE>().0;
    for (slot, row) in slots.zip(rows.chunks_exact_mut(dim)) {
        for (x, column) in row.iter_mut().zip(columns) {
            *x = column[slot];
        }
    }
}
