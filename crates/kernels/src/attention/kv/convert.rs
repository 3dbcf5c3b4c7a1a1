//! Rewriting a plane in another format, and reading rows back.

use std::ops::Range;

use half::{bf16, f16};

use super::codes::{FourBits, TwoBits};
use super::float::Float;
use super::nuq::{self, NuqContext, NuqTile, Outlier};
use super::store::Row;
use super::{
    KEY_TILE, KiviBits, KvFormat, KvLayout, KvRole, KvTile, Line, SquatCorrection, as_lines_len, floats,
    kivi, per_token, q4, q8, squat, widen_keys, widen_values,
};
use crate::Kernels;
use crate::lanes::{LANES, WideLanes};

/// Working memory of [`Kernels::convert_kv`] and [`Kernels::read_kv`], to be kept from call to call: a few tiles in f32.
///
/// It holds nothing that matters between calls.
#[derive(Debug, Default)]
pub struct KvScratch {
    tiles: Vec<Line>,  // [tiles of a run, head_dim, 32] or [.., 32, head_dim]
    scales: Vec<Line>, // those of a tile
    outliers: Vec<Outlier>,
}

impl KvScratch {
    /// Scratch without memory; the first calls allocate what they need.
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

/// A plane to be converted.
pub(crate) struct ConvertJob<'a> {
    role: KvRole,
    from: &'a KvLayout,
    plane: &'a [u8],
    to: &'a KvLayout,
    corrections: Option<&'a [SquatCorrection]>, // [n_kv_heads]
    nuq: Option<NuqContext<'a>>,
}

impl ConvertJob<'_> {
    /// What tile `index` means if it is or will be in `nuq3`.
    #[inline(always)]
    fn nuq_tile(&self, index: usize) -> Option<NuqTile<'_>> {
        let per_head = self.to.block_tokens / KEY_TILE;
        self.nuq.map(|nuq| nuq.tile(index / per_head, index % per_head * KEY_TILE))
    }
}

/// Rows to be read.
pub(crate) struct ReadJob<'a> {
    role: KvRole,
    layout: &'a KvLayout,
    plane: &'a [u8],
    head: usize,
    positions: Range<usize>,
    nuq: Option<NuqContext<'a>>,
}

impl Kernels {
    /// Rewrites the keys or values of a whole block in another format.
    ///
    /// What is converted is the numbers that the old format stands for, so precision that is lost stays lost; floats and `q8`
    /// are what to convert from. Planes of the same format are copied.
    ///
    /// All positions count, also those that nothing was stored in: where keys share scales over positions
    /// ([`KvFormat::keys_are_appendable`]), garbage in one spoils its group.
    ///
    /// # Shapes
    /// `from_plane`, `to_plane`: [`KvLayout::plane_bytes`] bytes of their layouts, which differ in the format alone.
    ///
    /// # Numerics
    /// As [`store_keys`](Self::store_keys) and [`store_values`](Self::store_values) of the same numbers: the same bits, on every
    /// instruction set.
    ///
    /// # Panics
    /// If the layouts differ in more than the format, a plane has another length or is not aligned for the format's numbers, or a
    /// format needs a calibration.
    ///
    /// # Examples
    /// ```
    /// use ruvllm_kernels::attention::{KvBuffer, KvFormat, KvLayout, KvRole, KvScratch};
    /// use ruvllm_kernels::Kernels;
    ///
    /// let kernels = Kernels::detect()?;
    /// let half = KvLayout::new(KvFormat::F16, 1, 32, 32)?;
    /// let few = KvLayout::new("kivi2".parse()?, 1, 32, 32)?;
    /// let mut hot = KvBuffer::zeroed(half.plane_bytes()).expect("some memory");
    /// let mut cold = KvBuffer::zeroed(few.plane_bytes()).expect("some memory");
    /// let rows: Vec<f32> = (0..32 * 32).map(|i| (i % 4) as f32).collect();
    /// kernels.store_keys(&half, &rows, 0, hot.as_bytes_mut());
    ///
    /// let mut scratch = KvScratch::new();
    /// let role = KvRole::Keys;
    /// kernels.convert_kv(role, &half, hot.as_bytes(), &few, cold.as_bytes_mut(), &mut scratch);
    /// assert_eq!(hot.as_bytes().len() * 3, cold.as_bytes().len() * 16, "3 bits for 16");
    ///
    /// let mut row = [0.0; 32];
    /// kernels.read_kv(role, &few, cold.as_bytes(), 0, 7..8, None, &mut row, &mut scratch);
    /// assert_eq!(row, rows[..32]);
    /// # Ok::<(), ruvllm_kernels::Error>(())
    /// ```
    pub fn convert_kv(
        &self,
        role: KvRole,
        from: &KvLayout,
        from_plane: &[u8],
        to: &KvLayout,
        to_plane: &mut [u8],
        scratch: &mut KvScratch,
    ) {
        for KvLayout { format, .. } in [from, to] {
            assert!(!format.needs_calibration(), "convert_kv: {format} is for convert_kv_nuq");
        }
        let job = ConvertJob { role, from, plane: from_plane, to, corrections: None, nuq: None };
        self.rewrite(&job, to_plane, scratch);
    }

    /// As [`convert_kv`](Self::convert_kv), from or to [`KvFormat::Nuq3`].
    ///
    /// # Panics
    /// As `convert_kv`, and if `nuq` is not of so many heads and positions.
    #[allow(clippy::too_many_arguments)] // each is one object with a shape of its own
    pub fn convert_kv_nuq(
        &self,
        role: KvRole,
        from: &KvLayout,
        from_plane: &[u8],
        to: &KvLayout,
        to_plane: &mut [u8],
        nuq: NuqContext<'_>,
        scratch: &mut KvScratch,
    ) {
        nuq.check(to.n_kv_heads, to.head_dim, to.block_tokens);
        let job = ConvertJob { role, from, plane: from_plane, to, corrections: None, nuq: Some(nuq) };
        self.rewrite(&job, to_plane, scratch);
    }

    /// Rewrites the keys of a whole block as [`convert_kv`](Self::convert_kv) does, choosing the quants of
    /// [`KvFormat::Kivi`] so that the errors of a key matter little to queries like those that the corrections were made
    /// from. Other formats, and a plane that is in the format already, do not depend on the corrections.
    ///
    /// # Shapes
    /// `from_plane`, `to_plane`: as there; `corrections`: `[n_kv_heads]`.
    ///
    /// # Numerics
    /// Scales and minima are those of [`convert_kv`](Self::convert_kv). Each dimension is quantized to the nearest step after the
    /// errors of those before it, times the weights of the correction, were added in ascending order by fused multiply-adds. The same bits on every instruction set.
    /// [`SquatCorrection::none`] gives the bits of [`convert_kv`](Self::convert_kv). A number that is not finite spoils
    /// its own dimension and no other.
    ///
    /// # Panics
    /// As there, or if the corrections are not one for each head and of its size.
    pub fn convert_keys_squat(
        &self,
        from: &KvLayout,
        from_plane: &[u8],
        to: &KvLayout,
        to_plane: &mut [u8],
        corrections: &[SquatCorrection],
        scratch: &mut KvScratch,
    ) {
        for KvLayout { format, .. } in [from, to] {
            assert!(!format.needs_calibration(), "convert_keys_squat: {format} is for convert_kv_nuq");
        }
        assert!(
            corrections.len() == to.n_kv_heads && corrections.iter().all(|c| c.head_dim() == to.head_dim),
            "convert_keys_squat: {} corrections for {} heads of {} values",
            corrections.len(),
            to.n_kv_heads,
            to.head_dim
        );
        let corrections = Some(corrections);
        let job = ConvertJob { role: KvRole::Keys, from, plane: from_plane, to, corrections, nuq: None };
        self.rewrite(&job, to_plane, scratch);
    }

    fn rewrite(&self, job: &ConvertJob<'_>, to_plane: &mut [u8], scratch: &mut KvScratch) {
        let ConvertJob { role, from, plane, to, .. } = *job;
        assert!(
            KvLayout { format: to.format, ..*from } == *to,
            "convert_kv: the layouts differ in more than the format: {from:?}, {to:?}"
        );
        assert_eq!(plane.len(), from.plane_bytes(), "convert_kv: length of the plane to read");
        assert_eq!(to_plane.len(), to.plane_bytes(), "convert_kv: length of the plane to write");
        if from.format == to.format {
            to_plane.copy_from_slice(plane);
        } else if !to_plane.is_empty() {
            scratch.reserve(to.run(role).tiles, to.head_dim);
            // SAFETY: `self` exists only where the slot's instruction set is present.
            unsafe { (self.slots.convert_kv)(job, to_plane, scratch) }
        }
    }

    /// Reads the keys or values of one head at consecutive positions of a block: the numbers that attention counts with.
    ///
    /// # Shapes
    /// `plane`: [`KvLayout::plane_bytes`] bytes; `out`: `[positions.len(), head_dim]`, overwritten. `nuq` says what planes in
    /// [`KvFormat::Nuq3`] mean.
    ///
    /// # Panics
    /// If a length contradicts the layout, the layout has no such head or position, or `nuq` is missing for
    /// [`KvFormat::Nuq3`] or not of so many heads and positions.
    #[allow(clippy::too_many_arguments)] // each is one object with a shape of its own
    pub fn read_kv(
        &self,
        role: KvRole,
        layout: &KvLayout,
        plane: &[u8],
        head: usize,
        positions: Range<usize>,
        nuq: Option<NuqContext<'_>>,
        out: &mut [f32],
        scratch: &mut KvScratch,
    ) {
        let nuq = nuq.filter(|_| layout.format.needs_calibration());
        match nuq {
            Some(nuq) => nuq.check(layout.n_kv_heads, layout.head_dim, layout.block_tokens),
            None => assert!(!layout.format.needs_calibration(), "read_kv: {} needs a context", layout.format),
        }
        assert_eq!(plane.len(), layout.plane_bytes(), "read_kv: length of the plane");
        assert!(head < layout.n_kv_heads, "read_kv: head {head} of {}", layout.n_kv_heads);
        assert!(
            positions.end <= layout.block_tokens,
            "read_kv: positions {positions:?} of a block of {}",
            layout.block_tokens
        );
        assert_eq!(out.len(), positions.len() * layout.head_dim, "read_kv: length of the rows");
        if out.is_empty() {
            return;
        }
        scratch.reserve(1, layout.head_dim);
        let job = ReadJob { role, layout, plane, head, positions, nuq };
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.read_kv)(&job, out, scratch) }
    }
}

/// Converts a plane, run by run of the new format.
#[inline(always)]
pub(crate) fn convert<L: WideLanes>(l: L, job: &ConvertJob<'_>, to: &mut [u8], scratch: &mut KvScratch) {
    let ConvertJob { role, from, corrections, .. } = *job;
    let (format, dim) = (job.to.format, from.head_dim);
    let (from_run, run) = (from.run(role), job.to.run(role));
    let KvScratch { tiles, scales: wide_scales, outliers } = scratch;
    let tile_lines = as_lines_len(KEY_TILE * dim);
    let runs_of_head = from.block_tokens / (KEY_TILE * run.tiles);
    for (index, to) in to.chunks_exact_mut(run.bytes()).enumerate() {
        let tiles = &mut tiles[..run.tiles * tile_lines];
        for (i, wide) in tiles.chunks_exact_mut(tile_lines).enumerate() {
            let index = index * run.tiles + i;
            let nuq = if from.format.needs_calibration() { job.nuq_tile(index) } else { None };
            let tile = KvTile { nuq, ..from_run.tile(from.format, job.plane, index) };
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
                    q8::store(l, Row { role, values, slot }, numbers, scales);
                }
            }
            (KvFormat::Q4 | KvFormat::Kivi { bits: KiviBits::Four, .. }, KvRole::Values) => {
                per_token::store::<L, FourBits>(l, floats(tiles), dim, 0, group, numbers, scales);
            }
            (KvFormat::Kivi { bits: KiviBits::Two, .. }, KvRole::Values) => {
                per_token::store::<L, TwoBits>(l, floats(tiles), dim, 0, group, numbers, scales);
            }
            (KvFormat::Nuq3, role) => {
                let nuq = job.nuq_tile(index).expect("convert_kv asks for it");
                match role {
                    KvRole::Keys => nuq::store_keys(l, tiles, nuq, dim, numbers, scales, outliers),
                    KvRole::Values => nuq::store_values(l, tiles, nuq, dim, numbers, scales),
                }
            }
        }
    }
}

/// Reads rows, tile by tile.
#[inline(always)]
pub(crate) fn read<L: WideLanes>(l: L, job: &ReadJob<'_>, out: &mut [f32], scratch: &mut KvScratch) {
    let ReadJob { role, layout, ref positions, .. } = *job;
    let (dim, run) = (layout.head_dim, layout.run(role));
    let mut start = positions.start;
    let mut out = out;
    while start < positions.end {
        let end = positions.end.min(start / KEY_TILE * KEY_TILE + KEY_TILE);
        let index = (job.head * layout.block_tokens + start) / KEY_TILE;
        let nuq = job.nuq.map(|nuq| nuq.tile(job.head, start / KEY_TILE * KEY_TILE));
        let tile = KvTile { nuq, ..run.tile(layout.format, job.plane, index) };
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

/// The numbers of a tile in f32, in its order.
#[inline(always)]
fn widen<L: WideLanes>(
    l: L,
    role: KvRole,
    tile: KvTile<'_>,
    dim: usize,
    scales: &mut [Line],
    to: &mut [Line],
) {
    // Floats are one run of numbers whatever the role, and need not fill wide rows: 32 at a time always do.
    if tile.format.is_float() || role == KvRole::Keys {
        widen_keys(l, tile, dim, scales, to);
    } else {
        widen_values(l, tile, dim, scales, to);
    }
}

/// Rounds a tile to a float format, in its order.
#[inline(always)]
fn round<L: WideLanes, T: Float>(l: L, tile: &[Line], to: &mut [u8]) {
    let to: &mut [T] = bytemuck::cast_slice_mut(to);
    for (x, to) in floats(tile).as_chunks().0.iter().zip(to.as_chunks_mut::<LANES>().0) {
        *to = T::round(l, x);
    }
}

/// Rows of a tile of keys, `[dim, 32]`.
#[inline(always)]
fn transpose(tile: &[f32], dim: usize, slots: Range<usize>, rows: &mut [f32]) {
    let columns = tile.as_chunks::<KEY_TILE>().0;
    for (slot, row) in slots.zip(rows.chunks_exact_mut(dim)) {
        for (x, column) in row.iter_mut().zip(columns) {
            *x = column[slot];
        }
    }
}
