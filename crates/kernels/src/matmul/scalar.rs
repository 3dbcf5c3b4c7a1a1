//! Integer-dot leaves in portable Rust for every format: the shipped reference of all instruction
//! sets.

use super::integer::{RowSums, RowsLeaf, TileLeaf, join};
use super::panel::{PANEL_ROWS, PanelStep, expand, slot_len};
use crate::lanes::{Fused, LANES, ScalarLanes};
use crate::matmul::activations::{Q8Token, TileStep};
use crate::quant::{Factors, MAX_SUB_BLOCKS, QuantBlock, SUB_BLOCK, quant_value};

impl<B: QuantBlock> RowsLeaf<B> for ScalarLanes {
    #[inline(always)]
    fn rows(self, blocks: &[B], x: &[Q8Token<'_>], _: &mut [RowSums], out: &mut [[f32; PANEL_ROWS]]) {
        let blocks_per_row = x[0].sub_blocks.len() / B::SUB_BLOCKS;
        for (row, blocks) in blocks.chunks_exact(blocks_per_row).enumerate() {
            for (x, out) in x.iter().zip(&mut *out) {
                let mut acc = [0.0; LANES];
                accumulate(blocks, 0, x, &mut acc);
                out[row] = join(acc);
            }
        }
    }
}

/// Adds the products of the quant blocks that start at sub-block `first` of a row to its
/// accumulators.
#[inline(always)]
pub(super) fn accumulate<B: QuantBlock>(blocks: &[B], first: usize, x: &Q8Token<'_>, acc: &mut [f32; LANES]) {
    let mut quants = [[0; SUB_BLOCK]; MAX_SUB_BLOCKS];
    let mut factors = [Factors::default(); MAX_SUB_BLOCKS];
    for (i, block) in blocks.iter().enumerate() {
        block.unpack(&mut quants[..B::SUB_BLOCKS]);
        block.factors(&mut factors[..B::SUB_BLOCKS]);
        for (s, (quants, f)) in quants.iter().zip(&factors).take(B::SUB_BLOCKS).enumerate() {
            let b = first + i * B::SUB_BLOCKS + s;
            let x = &x.sub_blocks[b];
            let halves: [i32; 2] = std::array::from_fn(|h| {
                let range = h * SUB_BLOCK / 2..(h + 1) * SUB_BLOCK / 2;
                let pairs = quants[range.clone()].iter().zip(&x.quants[range]);
                pairs.map(|(&w, &x)| quant_value::<B>(w) * i32::from(x)).sum()
            });
            let isum = i32::from(f.halves[0]) * halves[0] + i32::from(f.halves[1]) * halves[1];
            let acc = &mut acc[b % LANES];
            *acc = (f.scale * x.scale).fma(isum as f32, *acc);
            if B::HALF_MINS {
                *acc = (-f.min * x.scale).fma(half_mins(f.min_halves.map(i16::from), x.halves), *acc);
            } else if B::HAS_MIN {
                *acc = (-f.min).fma(x.sum, *acc);
            }
        }
    }
}

impl<B: QuantBlock> TileLeaf<B> for ScalarLanes {
    #[inline(always)]
    fn expand(self, blocks: &[B], n: usize, panel: &mut [PanelStep]) {
        expand(blocks, n, panel);
    }

    #[inline(always)]
    fn tile<const T: usize>(self, panel: &[PanelStep], tile: &[TileStep], out: &mut [[f32; PANEL_ROWS]; T]) {
        for (t, out) in out.iter_mut().enumerate() {
            for (row, out) in out.iter_mut().enumerate() {
                let mut acc = [0.0; LANES];
                let mut steps = panel.iter().zip(tile);
                for (slot, acc) in acc.iter_mut().enumerate() {
                    for (w, x) in steps.by_ref().take(slot_len(slot, panel.len())) {
                        *acc = step::<B>(w, row, x, t, *acc);
                    }
                }
                *out = join(acc);
            }
        }
    }
}

/// Adds one sub-block of one row and token to its accumulator.
#[inline(always)]
fn step<B: QuantBlock>(w: &PanelStep, row: usize, x: &TileStep, t: usize, acc: f32) -> f32 {
    let (v, r) = (row / LANES, row % LANES);
    let mut halves = [0; 2];
    for (g, (w, x)) in w.quants.iter().zip(&x.quants).enumerate() {
        let pairs = w[v][4 * r..4 * r + 4].iter().zip(&x[t]);
        halves[g / 4] += pairs.map(|(&w, &x)| quant_value::<B>(w) * i32::from(x)).sum::<i32>();
    }
    let isum = if B::HALF_SCALES {
        i32::from(w.halves[0][v][r][0]) * halves[0] + i32::from(w.halves[1][v][r][0]) * halves[1]
    } else {
        halves[0] + halves[1]
    };
    let acc = (w.scales[v][r] * x.scales[t]).fma(isum as f32, acc);
    if B::HALF_MINS {
        (-w.mins[v][r] * x.scales[t]).fma(half_mins(w.min_halves[v][r], x.halves[t]), acc)
    } else if B::HAS_MIN {
        (-w.mins[v][r]).fma(x.sums[t], acc)
    } else {
        acc
    }
}

/// Sum that the integer minima of two halves subtract, in units of both scales; exact.
#[inline(always)]
fn half_mins(mins: [i16; 2], sums: [i16; 2]) -> f32 {
    (i32::from(mins[0]) * i32::from(sums[0]) + i32::from(mins[1]) * i32::from(sums[1])) as f32
}
