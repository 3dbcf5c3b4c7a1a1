//! Weight panels: 16 rows expanded from any integer format into register tile order.
//!
//! A panel is expanded once per product and thread, stays in the L2 cache, and serves all tokens.
//! Rows are the lanes: a 32-byte vector holds four consecutive values of eight rows, multiplied by
//! the same four values of a token in every lane. Sub-blocks are stored in *slot order*
//! ([`slot_position`]): all of accumulator 0, then all of accumulator 1, and so on, so that a tile
//! works on one set of accumulators at a time.

use bytemuck::{Pod, Zeroable};

use crate::lanes::LANES;
use crate::quant::{Factors, MAX_SUB_BLOCKS, QuantBlock, SUB_BLOCK};

/// Rows per panel: two vectors of eight.
pub(crate) const PANEL_ROWS: usize = 16;

/// Largest number of panels per register tile.
pub(crate) const MAX_PANELS: usize = 2;

/// Index of sub-block `b` of `n` when sorted by accumulator (`b mod 8`), then by position.
#[inline(always)]
pub(crate) fn slot_position(b: usize, n: usize) -> usize {
    let (slot, step) = (b % LANES, b / LANES);
    slot * (n / LANES) + slot.min(n % LANES) + step
}

/// Number of sub-blocks of accumulator `slot`, of `n` in all.
#[inline(always)]
pub(crate) fn slot_len(slot: usize, n: usize) -> usize {
    n / LANES + usize::from(slot < n % LANES)
}

/// Sub-block of 16 rows; missing rows are zeros.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct PanelStep {
    /// `quants[g][v][4r..4r + 4]`: stored values `4g..4g + 4` of row `8v + r`.
    pub(crate) quants: [[[u8; 4 * LANES]; 2]; SUB_BLOCK / 4],
    pub(crate) scales: [[f32; LANES]; 2],
    pub(crate) mins: [[f32; LANES]; 2],
    /// `halves[h][v][r]`: the integer scale of half `h` of row `8v + r`, twice, to be multiplied
    /// with pairs of sums.
    pub(crate) halves: [[[[i16; 2]; LANES]; 2]; 2],
    /// `min_halves[v][r]`: the integer minima of both halves of row `8v + r`, to be multiplied with
    /// pairs of sums.
    pub(crate) min_halves: [[[i16; 2]; LANES]; 2],
}

/// Expands up to 16 rows, each `n` sub-blocks in `blocks`, into `panel`, `[n]`.
#[inline(always)]
pub(crate) fn expand<B: QuantBlock>(blocks: &[B], n: usize, panel: &mut [PanelStep]) {
    let blocks_per_row = n / B::SUB_BLOCKS;
    let n_rows = blocks.len() / blocks_per_row;
    if n_rows < PANEL_ROWS {
        panel.fill(PanelStep::zeroed());
    }
    let mut quants = [[0; SUB_BLOCK]; MAX_SUB_BLOCKS];
    let mut factors = [Factors::default(); MAX_SUB_BLOCKS];
    for (row, blocks) in blocks.chunks_exact(blocks_per_row).enumerate() {
        let (v, r) = (row / LANES, row % LANES);
        for (i, block) in blocks.iter().enumerate() {
            block.unpack(&mut quants[..B::SUB_BLOCKS]);
            block.factors(&mut factors[..B::SUB_BLOCKS]);
            for s in 0..B::SUB_BLOCKS {
                let step = &mut panel[slot_position(i * B::SUB_BLOCKS + s, n)];
                for (to, from) in step.quants.iter_mut().zip(quants[s].as_chunks::<4>().0) {
                    to[v][4 * r..4 * r + 4].copy_from_slice(from);
                }
                step.scales[v][r] = factors[s].scale;
                if B::HAS_MIN {
                    step.mins[v][r] = factors[s].min;
                }
                if B::HALF_MINS {
                    step.min_halves[v][r] = factors[s].min_halves.map(i16::from);
                }
                if B::HALF_SCALES {
                    for (to, half) in step.halves.iter_mut().zip(factors[s].halves) {
                        to[v][r] = [i16::from(half); 2];
                    }
                }
            }
        }
    }
}
