//! Panels by vector transposition: four rows at a time, quant block by quant block.

use std::arch::aarch64::*;

use super::Values;
use super::dot::{IntegerDot, PairedQuants};
use super::formats::Group;
use super::vector::store;
use crate::lanes::LANES;
use crate::matmul::panel::{PANEL_ROWS, PanelStep, slot_position};
use crate::quant::{Factors, MAX_SUB_BLOCKS, QuantBlock};

/// Rows that are transposed together.
const ROWS: usize = 4;

/// One quant block of each of four rows, unpacked; rows that do not exist stay zeros.
/// `[row][sub-block]`.
struct Unpacked {
    values: [[Values; MAX_SUB_BLOCKS]; ROWS],
    factors: [[Factors; MAX_SUB_BLOCKS]; ROWS],
}

/// See [`expand`](crate::matmul::panel::expand). The quants are signed, their offset subtracted,
/// and, if the level wants them so, in pairs of rows.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn expand<L: IntegerDot, B: Group>(_: L, blocks: &[B], n: usize, panel: &mut [PanelStep]) {
    let blocks_per_row = n / B::SUB_BLOCKS;
    for first_row in (0..PANEL_ROWS).step_by(ROWS) {
        let rows = blocks.chunks_exact(blocks_per_row).skip(first_row).take(ROWS);
        let mut unpacked = Unpacked {
            values: [[[vdupq_n_s8(0); 2]; MAX_SUB_BLOCKS]; ROWS],
            factors: [[Factors::default(); MAX_SUB_BLOCKS]; ROWS],
        };
        for i in 0..blocks_per_row {
            for (r, row) in rows.clone().enumerate() {
                // SAFETY: this function enables NEON.
                unsafe { row[i].values(&mut unpacked.values[r][..B::SUB_BLOCKS]) };
                row[i].factors(&mut unpacked.factors[r][..B::SUB_BLOCKS]);
            }
            for s in 0..B::SUB_BLOCKS {
                let step = &mut panel[slot_position(i * B::SUB_BLOCKS + s, n)];
                let values = unpacked.values.each_ref().map(|row| row[s]);
                if L::PAIRED {
                    store_pairs(values, first_row, step);
                } else {
                    store_pieces(values, first_row, step);
                }
                store_factors::<B>(unpacked.factors.each_ref().map(|row| &row[s]), first_row, step);
            }
        }
    }
}

/// Pieces of four values, those of four rows side by side.
#[target_feature(enable = "neon")]
#[inline]
fn store_pieces(rows: [Values; ROWS], first_row: usize, step: &mut PanelStep) {
    let (v, quad) = (first_row / LANES, first_row % LANES / ROWS);
    for half in 0..2 {
        let [a, b, c, d] = rows.map(|row| vreinterpretq_s32_s8(row[half]));
        let [ab, cd] = [[vzip1q_s32(a, b), vzip2q_s32(a, b)], [vzip1q_s32(c, d), vzip2q_s32(c, d)]];
        for i in 0..2 {
            let (ab, cd) = (vreinterpretq_s64_s32(ab[i]), vreinterpretq_s64_s32(cd[i]));
            for (j, piece) in [vzip1q_s64(ab, cd), vzip2q_s64(ab, cd)].into_iter().enumerate() {
                let to = &mut step.quants[4 * half + 2 * i + j][v].as_chunks_mut::<16>().0[quad];
                store(to, vreinterpretq_u8_s64(piece));
            }
        }
    }
}

/// Pieces of eight values, those of two rows side by side: [`PairedQuants`].
#[target_feature(enable = "neon")]
#[inline]
fn store_pairs(rows: [Values; ROWS], first_row: usize, step: &mut PanelStep) {
    let quants: &mut PairedQuants = bytemuck::cast_mut(&mut step.quants);
    let v = first_row / LANES;
    for (i, [a, b]) in rows.as_chunks::<2>().0.iter().enumerate() {
        let pair = first_row % LANES / 2 + i;
        for half in 0..2 {
            let (a, b) = (vreinterpretq_s64_s8(a[half]), vreinterpretq_s64_s8(b[half]));
            store(&mut quants[2 * half][v][pair], vreinterpretq_u8_s64(vzip1q_s64(a, b)));
            store(&mut quants[2 * half + 1][v][pair], vreinterpretq_u8_s64(vzip2q_s64(a, b)));
        }
    }
}

/// Scales and minima of four rows.
#[target_feature(enable = "neon")]
#[inline]
fn store_factors<B: QuantBlock>(rows: [&Factors; ROWS], first_row: usize, step: &mut PanelStep) {
    let v = first_row / LANES;
    for (r, factors) in rows.into_iter().enumerate() {
        let r = first_row % LANES + r;
        step.scales[v][r] = factors.scale;
        if B::HAS_MIN {
            step.mins[v][r] = factors.min;
        }
        if B::HALF_MINS {
            step.min_halves[v][r] = factors.min_halves.map(i16::from);
        }
        if B::HALF_SCALES {
            for (to, half) in step.halves.iter_mut().zip(factors.halves) {
                to[v][r] = [i16::from(half); 2];
            }
        }
    }
}
