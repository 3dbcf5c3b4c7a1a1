//! Panel expansion by vector transposition: eight rows and eight sub-blocks at a time.
//!
//! The format's scalar unpacking fills a buffer that stays in the L1 cache (its loops are
//! vectorized here); eight rows of 32 bytes are then transposed in registers.

use super::vector::{store, transpose_rows};
use crate::lanes::LANES;
use crate::matmul::panel::{PANEL_ROWS, PanelStep, slot_position};
use crate::quant::{Factors, QuantBlock, SUB_BLOCK};

/// Eight unpacked sub-blocks of eight rows; missing rows stay zeros.
struct Unpacked {
    quants: [[[u8; SUB_BLOCK]; LANES]; LANES], // [row, sub-block, value]
    scales: [[f32; LANES]; LANES],             // [row, sub-block]
    mins: [[f32; LANES]; LANES],
    halves: [[[[i16; 2]; LANES]; LANES]; 2], // [half, row, sub-block], each scale twice
    min_halves: [[[i16; 2]; LANES]; LANES],  // [row, sub-block]
}

impl Unpacked {
    const ZERO: Self = Self {
        quants: [[[0; SUB_BLOCK]; LANES]; LANES],
        scales: [[0.0; LANES]; LANES],
        mins: [[0.0; LANES]; LANES],
        halves: [[[[0; 2]; LANES]; LANES]; 2],
        min_halves: [[[0; 2]; LANES]; LANES],
    };
}

/// See [`expand`](crate::matmul::panel::expand).
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn expand<B: QuantBlock>(blocks: &[B], n: usize, panel: &mut [PanelStep]) {
    let blocks_per_row = n / B::SUB_BLOCKS;
    let blocks_per_group = LANES / B::SUB_BLOCKS;
    for v in 0..PANEL_ROWS / LANES {
        let rows = blocks.chunks_exact(blocks_per_row).skip(v * LANES).take(LANES);
        let mut unpacked = Unpacked::ZERO;
        for first in (0..n).step_by(LANES) {
            let group = first / B::SUB_BLOCKS..blocks_per_row.min(first / B::SUB_BLOCKS + blocks_per_group);
            for (r, row) in rows.clone().enumerate() {
                unpack(&row[group.clone()], r, &mut unpacked);
            }
            transpose::<B>(&unpacked, v, first, n, panel);
        }
    }
}

/// Unpacks up to eight sub-blocks of row `r`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn unpack<B: QuantBlock>(group: &[B], r: usize, to: &mut Unpacked) {
    let mut factors = [Factors::default(); LANES];
    for (i, block) in group.iter().enumerate() {
        let sub_blocks = i * B::SUB_BLOCKS..(i + 1) * B::SUB_BLOCKS;
        block.unpack(&mut to.quants[r][sub_blocks.clone()]);
        block.factors(&mut factors[sub_blocks]);
    }
    for (s, factors) in factors.iter().enumerate() {
        to.scales[r][s] = factors.scale;
        if B::HAS_MIN {
            to.mins[r][s] = factors.min;
        }
        if B::HALF_MINS {
            to.min_halves[r][s] = factors.min_halves.map(i16::from);
        }
        if B::HALF_SCALES {
            for (to, half) in to.halves.iter_mut().zip(factors.halves) {
                to[r][s] = [i16::from(half); 2];
            }
        }
    }
}

/// Writes up to eight sub-blocks, from sub-block `first`, into the steps of the panel.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn transpose<B: QuantBlock>(from: &Unpacked, v: usize, first: usize, n: usize, panel: &mut [PanelStep]) {
    let scales = transpose_rows(from.scales.each_ref());
    let mins = transpose_rows(from.mins.each_ref());
    let halves = from.halves.each_ref().map(|halves| transpose_rows(halves.each_ref()));
    let min_halves = transpose_rows(from.min_halves.each_ref());
    for s in 0..LANES.min(n - first) {
        let step = &mut panel[slot_position(first + s, n)];
        for (to, quants) in
            step.quants.iter_mut().zip(transpose_rows(from.quants.each_ref().map(|row| &row[s])))
        {
            store(&mut to[v], quants);
        }
        store(&mut step.scales[v], scales[s]);
        if B::HAS_MIN {
            store(&mut step.mins[v], mins[s]);
        }
        if B::HALF_MINS {
            store(&mut step.min_halves[v], min_halves[s]);
        }
        if B::HALF_SCALES {
            for (to, halves) in step.halves.iter_mut().zip(halves) {
                store(&mut to[v], halves[s]);
            }
        }
    }
}
