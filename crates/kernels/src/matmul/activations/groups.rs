//! Groups of consecutive rows, each the input of a product with a matrix of its own.
//!
//! A group is quantized in the layout that its own number of rows asks for, so that a product with
//! it is the product that its rows would have alone: row by row for few, tiles for many.

use std::cmp::Reverse;
use std::ops::Range;

use bytemuck::Zeroable;

use super::update::MIN_SHARED_VALUES;
use super::{Activations, Q8Input, Quantized, TILE_TOKENS, TileStep, min_tiled_tokens, orders};
use crate::pool::DisjointMut;
use crate::quant::SUB_BLOCK;
use crate::{Kernels, ThreadPool};

/// Division of rows into groups, one per matrix that has any.
///
/// Buffers are reused: after the largest number of matrices, nothing allocates.
#[derive(Debug, Default)]
pub struct RowGroups {
    /// Groups of most rows first, so that tiled ones precede the others.
    groups: Vec<RowGroup>,
    /// Groups that are quantized to tiles.
    n_tiled: usize,
    rows: usize,
    /// Rows of the other groups.
    untiled_rows: usize,
    tiles: usize,
}

/// One group of rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowGroup {
    /// Index of its matrix.
    pub(crate) matrix: usize,
    /// First row.
    pub(crate) first: usize,
    /// Number of rows, at least one.
    pub(crate) len: usize,
    /// First place among the tiles or, for a group without, among the quantized rows.
    place: usize,
    /// First place among the packed pairs of float products.
    pub(crate) pair: usize,
    is_tiled: bool,
}

impl RowGroups {
    /// No groups.
    pub fn new() -> Self {
        Self::default()
    }

    /// Divides rows into groups: the first `lens[0]` rows are those of matrix 0, and so on.
    pub fn fill(&mut self, kernels: &Kernels, lens: impl ExactSizeIterator<Item = usize>) {
        let min_tiled = min_tiled_tokens(kernels.isa());
        self.groups.clear();
        self.groups.reserve(lens.len());
        (self.rows, self.untiled_rows, self.tiles, self.n_tiled) = (0, 0, 0, 0);
        let mut pair = 0;
        for (matrix, len) in lens.enumerate() {
            if len == 0 {
                continue;
            }
            let is_tiled = len >= min_tiled;
            let place = if is_tiled { self.tiles } else { self.untiled_rows };
            self.groups.push(RowGroup { matrix, first: self.rows, len, place, pair, is_tiled });
            self.rows += len;
            pair += len.div_ceil(2);
            if is_tiled {
                self.tiles += len.div_ceil(TILE_TOKENS);
                self.n_tiled += 1;
            } else {
                self.untiled_rows += len;
            }
        }
        self.groups.sort_unstable_by_key(|group| (Reverse(group.len), group.matrix));
    }

    /// Number of rows of all groups.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Groups that are quantized to tiles, then the others; those of most rows first.
    pub(crate) fn split(&self) -> (&[RowGroup], &[RowGroup]) {
        self.groups.split_at(self.n_tiled)
    }

    /// All groups.
    pub(crate) fn all(&self) -> &[RowGroup] {
        &self.groups
    }
}

impl RowGroup {
    /// Steps of quantization: tiles, or as many rows at a time.
    fn steps(&self) -> usize {
        self.len.div_ceil(TILE_TOKENS)
    }
}

impl Activations {
    /// Quantizes the rows to 8 bits, unless already done, for products of these groups
    /// ([`Kernels::matmul_grouped`]). Numbers as [`quantize`](Self::quantize).
    ///
    /// # Panics
    /// If the groups have another number of rows.
    pub fn quantize_groups(&mut self, kernels: &Kernels, pool: &ThreadPool, groups: &RowGroups) {
        assert_eq!(groups.rows(), self.tokens, "quantize_groups: the groups are of other rows");
        if self.quantized == Quantized::Groups {
            return;
        }
        self.quantized = Quantized::Stale;
        let (cols, sub_blocks) = (self.cols, self.cols.div_ceil(SUB_BLOCK));
        self.q8.rows.resize(groups.untiled_rows, cols, orders(kernels.isa()));
        self.q8.tiles.resize(groups.tiles * sub_blocks, TileStep::zeroed());
        let (rows, tiles) = (self.q8.rows.parts(), DisjointMut::new(&mut self.q8.tiles));
        let values = &self.values;
        let step = |group: &RowGroup, step: usize| {
            let start = step * TILE_TOKENS;
            let here = start..group.len.min(start + TILE_TOKENS);
            let values = &values[(group.first + here.start) * cols..(group.first + here.end) * cols];
            if group.is_tiled {
                let tile = group.place + step;
                // SAFETY: each step of each group is done once, and no two have the same tile.
                let tile = unsafe { tiles.part(tile * sub_blocks..(tile + 1) * sub_blocks) };
                // SAFETY: `kernels` exists only where the slot's instruction set is present.
                unsafe { (kernels.slots.quantize_tiles)(values, cols, tile) };
            } else {
                let place = group.place + here.start..group.place + here.end;
                // SAFETY: as above; no two steps have the same rows.
                unsafe { (kernels.slots.quantize_rows)(values, cols, &rows, place) };
            }
        };
        for_each_step(pool, groups, self.tokens * cols, &step);
        self.quantized = Quantized::Groups;
    }

    /// Quantized rows of a group.
    ///
    /// # Panics
    /// If the groups were not quantized since the last change of the rows.
    pub(crate) fn q8_of_group(&self, group: &RowGroup) -> Q8Input<'_> {
        let q8 = self.q8_of_groups();
        if group.is_tiled {
            let n = self.cols.div_ceil(SUB_BLOCK);
            Q8Input::Tiles(&q8.tiles[group.place * n..][..group.steps() * n])
        } else {
            Q8Input::Rows { rows: &q8.rows, first: group.place }
        }
    }
}

/// Calls `step` for each step of each group, on several threads if that pays.
fn for_each_step(
    pool: &ThreadPool,
    groups: &RowGroups,
    n_values: usize,
    step: &(dyn Fn(&RowGroup, usize) + Sync),
) {
    let run = |range: Range<usize>| {
        let mut first = 0;
        for group in groups.all() {
            let end = first + group.steps();
            for at in range.start.max(first)..range.end.min(end) {
                step(group, at - first);
            }
            first = end;
        }
    };
    let n_steps = groups.all().iter().map(RowGroup::steps).sum();
    if n_values >= MIN_SHARED_VALUES {
        pool.for_each_chunk(n_steps, 1, &run);
    } else {
        run(0..n_steps);
    }
}
