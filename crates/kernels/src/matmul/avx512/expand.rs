//! Panels by vector transposition: sixteen rows and eight sub-blocks at a time; see
//! `avx2/expand.rs`.

use std::arch::x86_64::*;

use super::SIGN_BIAS;
use super::group::WideGroup;
use super::vector::{store, transpose_rows};
use crate::lanes::LANES;
use crate::matmul::avx2::vector::store_f32;
use crate::matmul::panel::{PANEL_ROWS, PanelStep, slot_position};
use crate::quant::{Factors, QuantBlock, SUB_BLOCK};

/// Eight unpacked sub-blocks of sixteen rows; missing rows stay zeros.
struct Unpacked {
    quants: [[[u8; SUB_BLOCK]; LANES]; PANEL_ROWS], // [row, sub-block, value]
    scales: [[f32; LANES]; PANEL_ROWS],             // [row, sub-block]
    mins: [[f32; LANES]; PANEL_ROWS],
    /// Integer scales of the halves, then their integer minima.
    integers: [[[i8; 4]; LANES]; PANEL_ROWS],
}

impl Unpacked {
    const ZERO: Self = Self {
        quants: [[[0; SUB_BLOCK]; LANES]; PANEL_ROWS],
        scales: [[0.0; LANES]; PANEL_ROWS],
        mins: [[0.0; LANES]; PANEL_ROWS],
        integers: [[[0; 4]; LANES]; PANEL_ROWS],
    };
}

/// See [`expand`](crate::matmul::panel::expand).
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn expand<B: WideGroup>(blocks: &[B], n: usize, panel: &mut [PanelStep]) {
    let blocks_per_row = n / B::SUB_BLOCKS;
    let blocks_per_group = LANES / B::SUB_BLOCKS;
    let mut unpacked = Unpacked::ZERO;
    for first in (0..n).step_by(LANES) {
        let group = first / B::SUB_BLOCKS..blocks_per_row.min(first / B::SUB_BLOCKS + blocks_per_group);
        for (r, row) in blocks.chunks_exact(blocks_per_row).enumerate() {
            unpack(&row[group.clone()], r, &mut unpacked);
        }
        transpose::<B>(&unpacked, first, n, panel);
    }
}

/// Unpacks up to eight sub-blocks of row `r`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn unpack<B: WideGroup>(group: &[B], r: usize, to: &mut Unpacked) {
    let full = group.len() * B::SUB_BLOCKS == LANES;
    if full {
        // SAFETY: this function enables the features.
        let (quants, (scales, mins)) = unsafe { (B::wide_quants(group), B::scales(group)) };
        for (to, quants) in to.quants[r].as_chunks_mut::<2>().0.iter_mut().zip(quants) {
            store(to, quants);
        }
        store_f32(&mut to.scales[r], scales);
        store_f32(&mut to.mins[r], mins);
    } else {
        for (block, quants) in group.iter().zip(to.quants[r].chunks_exact_mut(B::SUB_BLOCKS)) {
            block.unpack(quants);
            if B::MAX_QUANT.is_none() {
                quants.as_flattened_mut().iter_mut().for_each(|quant| *quant ^= SIGN_BIAS);
            }
        }
    }
    if full && !B::HALF_SCALES && !B::HALF_MINS {
        return;
    }
    let mut factors = [Factors::default(); LANES];
    for (block, factors) in group.iter().zip(factors.chunks_exact_mut(B::SUB_BLOCKS)) {
        block.factors(factors);
    }
    for (s, factors) in factors.iter().enumerate() {
        if !full {
            (to.scales[r][s], to.mins[r][s]) = (factors.scale, factors.min);
        }
        let ([a, b], [c, d]) = (factors.halves, factors.min_halves);
        to.integers[r][s] = [a, b, c, d];
    }
}

/// Writes up to eight sub-blocks, from sub-block `first`, into the steps of the panel.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn transpose<B: QuantBlock>(from: &Unpacked, first: usize, n: usize, panel: &mut [PanelStep]) {
    let scales = transpose_rows(|r| &from.scales[r]);
    let mins = transpose_rows(|r| &from.mins[r]);
    let integers = transpose_rows(|r| &from.integers[r]);
    for s in 0..LANES.min(n - first) {
        let step = &mut panel[slot_position(first + s, n)];
        let quants = transpose_rows(|r| &from.quants[r][s]);
        for (to, quants) in step.quants.iter_mut().zip(quants) {
            store(to, quants);
        }
        store(&mut step.scales, scales[s]);
        if B::HAS_MIN {
            store(&mut step.mins, mins[s]);
        }
        if B::HALF_MINS {
            store(&mut step.min_halves, widen_bytes(integers[s], [2, 3]));
        }
        if B::HALF_SCALES {
            store(&mut step.halves[0], widen_bytes(integers[s], [0; 2]));
            store(&mut step.halves[1], widen_bytes(integers[s], [1; 2]));
        }
    }
}

/// Widens two bytes of every four to 16-bit numbers.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn widen_bytes(v: __m512i, [low, high]: [u8; 2]) -> __m512i {
    // Each goes to the upper half of its number and is shifted down with its sign.
    let place = u32::from_le_bytes([low, low, high, high]);
    let quarter = [0, 1, 2, 3].map(|lane| (place + 0x0404_0404 * lane) as i32);
    let [a, b, c, d] = quarter;
    let place = _mm512_broadcast_i32x4(_mm_setr_epi32(a, b, c, d));
    _mm512_srai_epi16::<8>(_mm512_shuffle_epi8(v, place))
}
