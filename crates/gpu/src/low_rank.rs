//! Low-rank (LoRA) updates of products, `y += s B (A x)`, for rows with different factors.

use half::f16;

use crate::dispatch::Dispatch;
use crate::error::{Error, Result, expect_multiple, expect_size};
use crate::gpu::Gpu;
use crate::kernel::Kernel;
use crate::low_rank_key::{LowRankKernel, LowRankRoom, LowRankStep, at_most, check_room, check_terms};
use crate::matrix::Activations;
use crate::memory::Buffer;
use crate::rows::check_groups;
use crate::wgsl;

/// Slot of an entry without an update; those behind it are not read.
pub const NO_SLOT: u32 = u32::MAX;

/// Rows of a workgroup where all rows have one list.
const TILE: u32 = 4;

/// Factors of low-rank updates of the products of one input, in slots on the device.
#[derive(Debug, Clone)]
pub struct LowRank {
    room: LowRankRoom,
    /// Per slot `A`, `[components, cols]`, then each `B`, `[rank, outputs]` with rows filled up to
    /// words of 4 values.
    factors: Buffer,
    /// Per slot the number of components, that of expansions, and for each the first component,
    /// the rank, the first output and the outputs in words, and the place in words.
    shapes: Buffer,
}

/// `B` of some components of a slot, transposed.
#[derive(Debug, Clone, Copy)]
pub struct LowRankExpansion<'a> {
    /// First component.
    pub first: u32,
    /// Number of components.
    pub rank: u32,
    /// First value of the output row that it changes: a multiple of 4.
    pub output: u32,
    /// Number of values that it changes: a multiple of 4, or up to the end of the row.
    pub outputs: u32,
    /// `[rank, outputs]`.
    pub b: &'a [f32],
}

/// Lists of the slots of rows, and memory for their components.
#[derive(Debug, Clone)]
pub struct LowRankRows {
    rows: u32,
    terms: u32,
    one_list: bool,
    lists: Buffer,
    components: Buffer,
}

impl LowRankRows {
    /// Allocates lists of `terms` entries, 1 to [`MAX_TERMS`](crate::MAX_TERMS), without updates:
    /// one per row, or one for all rows. Updates of up to `components` components can be added.
    ///
    /// # Errors
    /// [`Error::Shape`] for other numbers; those of [`Gpu::zeroed`].
    pub fn new(gpu: &Gpu, rows: u32, terms: u32, one_list: bool, components: u32) -> Result<Self> {
        expect_multiple("rows", 1, rows.into())?;
        check_terms(terms)?;
        let entries = u64::from(terms) * u64::from(if one_list { 1 } else { rows });
        let lists = gpu.upload(&vec![[NO_SLOT, 0]; entries as usize])?;
        let components = gpu.zeroed(u64::from(rows) * u64::from(terms) * u64::from(components) * 4)?;
        Ok(Self { rows, terms, one_list, lists, components })
    }

    /// Writes the first lists: slot and scale of each entry. Lists that are not given, and the rest
    /// of each, become empty. Ordered before later dispatches.
    ///
    /// # Errors
    /// [`Error::Shape`] for more lists or entries than there are; those of [`Gpu::write`].
    pub fn write(&self, gpu: &Gpu, lists: &[&[(u32, f32)]]) -> Result<()> {
        let terms = self.terms as usize;
        let all = self.lists.len() as usize / 8;
        let most = lists.iter().map(|list| list.len()).max().unwrap_or(0);
        if lists.len() * terms > all || most > terms {
            let expected = format!("{} lists of {terms}", all / terms);
            return Err(Error::Shape { what: "lists of slots", expected, found: most as u64 });
        }
        let mut entries = vec![[NO_SLOT, 0]; all];
        for (entries, list) in entries.chunks_exact_mut(terms).zip(lists) {
            for (entry, &(slot, scale)) in entries.iter_mut().zip(*list) {
                *entry = [slot, scale.to_bits()];
            }
        }
        gpu.write(&self.lists, &entries)
    }
}

impl LowRank {
    /// Allocates slots without updates.
    ///
    /// # Errors
    /// [`Error::Shape`] for sizes that kernels cannot address; those of [`Gpu::zeroed`].
    pub fn zeroed(gpu: &Gpu, room: LowRankRoom) -> Result<Self> {
        check_room(&room)?;
        let factors = gpu.zeroed(u64::from(room.slots) * u64::from(room.words) * room.word_bytes())?;
        let shapes = gpu.zeroed(u64::from(room.slots) * u64::from(room.shape_words()) * 4)?;
        Ok(Self { room, factors, shapes })
    }

    /// Sizes.
    pub fn room(&self) -> &LowRankRoom {
        &self.room
    }

    /// Overwrites the factors of a slot, ordered before later dispatches. `a`: `[components,
    /// cols]`. In F16 values are rounded to the nearest, magnitudes from 65520 to infinity.
    ///
    /// # Errors
    /// [`Error::Shape`] for an update that does not fit; those of [`Gpu::write`].
    pub fn write(&self, gpu: &Gpu, slot: u32, a: &[f32], expansions: &[LowRankExpansion<'_>]) -> Result<()> {
        let room = &self.room;
        let cols = room.cols as usize;
        expect_multiple("values of A", cols as u64, a.len() as u64)?;
        let components = (a.len() / cols) as u32;
        at_most("components", room.components, components.into())?;
        at_most("expansions", room.expansions, expansions.len() as u64)?;
        let sizes = expansions.iter().map(|e| (e.rank, e.outputs));
        at_most("words of factors", room.words, LowRankRoom::words_of(room.cols, components, sizes))?;
        let mut shape = vec![components, expansions.len() as u32];
        let mut values = Vec::with_capacity(room.words as usize * 4);
        values.extend_from_slice(a);
        for &LowRankExpansion { first, rank, output, outputs, b } in expansions {
            at_most("components of an expansion", components, u64::from(first) + u64::from(rank))?;
            at_most("outputs of an expansion", room.width, u64::from(output) + u64::from(outputs))?;
            expect_size("values of B", u64::from(rank) * u64::from(outputs), b.len() as u64)?;
            let is_whole = outputs.is_multiple_of(4) || output + outputs == room.width;
            if !output.is_multiple_of(4) || !is_whole {
                let expected = "whole words of 4 outputs, or up to the end of the row".to_owned();
                return Err(Error::Shape {
                    what: "outputs of an expansion",
                    expected,
                    found: outputs.into(),
                });
            }
            let words = outputs.div_ceil(4);
            shape.extend([first, rank, output / 4, words, (values.len() / 4) as u32]);
            for row in b.chunks_exact(outputs.max(1) as usize) {
                values.extend_from_slice(row);
                values.resize(values.len().next_multiple_of(4), 0.0);
            }
        }
        let start = self.slot_start(slot)? * u64::from(room.words) * room.word_bytes();
        if room.f16 {
            let halves: Vec<f16> = values.iter().map(|&value| f16::from_f32(value)).collect();
            let bits: Vec<u16> = halves.iter().map(|half| half.to_bits()).collect();
            gpu.write_at(&self.factors, start, bytemuck::cast_slice(&bits))?;
        } else {
            gpu.write_at(&self.factors, start, bytemuck::cast_slice(&values))?;
        }
        self.write_shape(gpu, slot, &shape)
    }

    /// Makes the update of a slot none, ordered before later dispatches.
    ///
    /// # Errors
    /// As [`LowRank::write`].
    pub fn clear(&self, gpu: &Gpu, slot: u32) -> Result<()> {
        self.write_shape(gpu, slot, &[0, 0])
    }

    fn write_shape(&self, gpu: &Gpu, slot: u32, shape: &[u32]) -> Result<()> {
        let start = self.slot_start(slot)? * u64::from(self.room.shape_words()) * 4;
        gpu.write_at(&self.shapes, start, bytemuck::cast_slice(shape))
    }

    fn slot_start(&self, slot: u32) -> Result<u64> {
        if slot < self.room.slots {
            return Ok(slot.into());
        }
        let expected = format!("below {}", self.room.slots);
        Err(Error::Shape { what: "slot", expected, found: slot.into() })
    }

    /// Prepares `y += s B (A x)` for the entries of each row's list, in their order: two launches,
    /// to be run in order. An entry beyond the slots gives unspecified values.
    ///
    /// `x`: f32 or 8 bits, `[rows, cols]`; `y`: f32, `[rows, width]`, the buffer of `x` if it is
    /// to be changed in place.
    ///
    /// # Numerics
    /// `u_i = s (A_i x)`, a sum of products in a fixed order; then one chain of fused multiply-adds
    /// per value in the order of entries, expansions and components, starting at `y`. Over the
    /// activations and factors as stored, `|error| <= (n + 24) 2^-23 (|y| + sum |s| sum_i |b_i|
    /// sum_k |a_ik x_k|)`, with `n` the components plus a 256th of the columns. A row's bits are
    /// independent of the other rows, their lists, the length of its own list behind its entries,
    /// of slots, and of `one_list`; a row without entries keeps its bits.
    ///
    /// # Errors
    /// [`Error::Shape`] for operands of another size.
    pub fn add(&self, gpu: &Gpu, x: &Activations, rows: &LowRankRows, y: &Buffer) -> Result<[Dispatch; 2]> {
        let room = self.room;
        let &LowRankRows { rows: n, terms, one_list, ref lists, ref components } = rows;
        let values = u64::from(n) * u64::from(room.cols);
        let needed = u64::from(n) * u64::from(terms) * u64::from(room.components) * 4;
        if components.len() < needed {
            let (what, expected) = ("bytes of components", format!("at least {needed}"));
            return Err(Error::Shape { what, expected, found: components.len() });
        }
        let mut inputs = vec![self.factors.clone(), self.shapes.clone(), lists.clone()];
        let quantized = match x {
            Activations::F32(x) => {
                expect_size("bytes of f32 activations", values * 4, x.len())?;
                inputs.push(x.clone());
                false
            }
            Activations::Quantized(x) => {
                expect_size("values of quantized activations", values, x.values())?;
                inputs.extend([x.quants().clone(), x.scales().clone()]);
                true
            }
        };
        inputs.push(components.clone());
        expect_size("bytes of the output", u64::from(n) * u64::from(room.width) * 4, y.len())?;
        let tile = if one_list && n.is_multiple_of(TILE) { TILE } else { 1 };
        let key = |step| LowRankKernel { step, room, terms, one_list, tile };
        let shrink = key(LowRankStep::Shrink { quantized });
        let expand = key(LowRankStep::Expand);
        let outputs =
            vec![self.factors.clone(), self.shapes.clone(), lists.clone(), components.clone(), y.clone()];
        let launch = |key, buffers| {
            let (kernel, grid) = (Kernel::LowRank(key), wgsl::low_rank_grid(&key, n));
            kernel.check(gpu.info())?;
            check_groups("workgroups of components or outputs", grid.0.into())?;
            check_groups("rows times entries", grid.1.into())?;
            gpu.prepare(&kernel, buffers, grid)
        };
        Ok([launch(shrink, inputs)?, launch(expand, outputs)?])
    }
}
