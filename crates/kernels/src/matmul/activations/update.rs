//! Fused update (a norm, the gate of a feed-forward network) and quantization, in one dispatch.
//!
//! A row is quantized while it is in the cache.

use std::ops::Range;

use bytemuck::Zeroable;

use super::{Activations, Quantized, TILE_TOKENS, TileStep, min_tiled_tokens, orders};
use crate::pool::DisjointMut;
use crate::quant::SUB_BLOCK;
use crate::{Kernels, ThreadPool};

/// Smallest number of values shared between threads: 4096 take about a microsecond, as much as
/// handing them out.
pub(super) const MIN_SHARED_VALUES: usize = 16 * 1024;

/// Calls `run` with ranges that cover `tokens` rows, on several threads if that pays.
fn for_each_range(pool: &ThreadPool, tokens: usize, cols: usize, run: &(dyn Fn(Range<usize>) + Sync)) {
    if tokens > 1 && tokens * cols >= MIN_SHARED_VALUES {
        pool.for_each_chunk(tokens, 1, run);
    } else {
        run(0..tokens);
    }
}

impl Activations {
    /// Calls `update` with ranges of tokens and their rows, `[range, cols]`, to be modified in
    /// place.
    ///
    /// The ranges cover all tokens. Many tokens are distributed over the threads in unspecified
    /// ranges, so a row may depend on its token only.
    ///
    /// Invalidates the result of an earlier [`quantize`](Self::quantize).
    pub fn update(&mut self, pool: &ThreadPool, update: &(dyn Fn(Range<usize>, &mut [f32]) + Sync)) {
        self.quantized = Quantized::Stale;
        let (tokens, cols) = (self.tokens, self.cols);
        let values = DisjointMut::new(&mut self.values);
        for_each_range(pool, tokens, cols, &|rows| {
            // SAFETY: ranges do not overlap, so neither do their parts.
            update(rows.clone(), unsafe { values.part(rows.start * cols..rows.end * cols) });
        });
    }

    /// Runs [`update`](Self::update) and [`quantize`](Self::quantize) in one pass, with the same
    /// result.
    ///
    /// If `update` panics, the rows count as not quantized.
    pub fn update_and_quantize(
        &mut self,
        kernels: &Kernels,
        pool: &ThreadPool,
        update: &(dyn Fn(Range<usize>, &mut [f32]) + Sync),
    ) {
        // First: a panic of `update` leaves rows and quants partly changed.
        self.quantized = Quantized::Stale;
        let (tokens, cols) = (self.tokens, self.cols);
        self.q8.tiled = tokens >= min_tiled_tokens(kernels.isa());
        if !self.q8.tiled {
            self.q8.rows.resize(tokens, cols, orders(kernels.isa()));
            let (rows, values) = (self.q8.rows.parts(), DisjointMut::new(&mut self.values));
            for_each_range(pool, tokens, cols, &|range| {
                // SAFETY: ranges do not overlap, so neither do their parts.
                let values = unsafe { values.part(range.start * cols..range.end * cols) };
                update(range.clone(), values);
                // SAFETY: `kernels` exists only where the slot's instruction set is present.
                unsafe { (kernels.slots.quantize_rows)(values, cols, &rows, range) };
            });
        } else {
            let steps = cols.div_ceil(SUB_BLOCK);
            let n_tiles = tokens.div_ceil(TILE_TOKENS);
            self.q8.tiles.resize(n_tiles * steps, TileStep::zeroed());
            let (tiles, values) = (DisjointMut::new(&mut self.q8.tiles), DisjointMut::new(&mut self.values));
            pool.for_each_chunk(n_tiles, 1, &|range| {
                // One tile at a time: its rows stay in the cache between the two steps.
                for tile in range {
                    let rows = tile * TILE_TOKENS..((tile + 1) * TILE_TOKENS).min(tokens);
                    // SAFETY: chunks do not overlap, so neither do the tiles in them and the rows
                    // of these.
                    let (values, tile) = unsafe {
                        (
                            values.part(rows.start * cols..rows.end * cols),
                            tiles.part(tile * steps..(tile + 1) * steps),
                        )
                    };
                    update(rows, values);
                    // SAFETY: `kernels` exists only where the slot's instruction set is present.
                    unsafe { (kernels.slots.quantize_tiles)(values, cols, tile) };
                }
            });
        }
        self.quantized = Quantized::Whole;
    }
}
