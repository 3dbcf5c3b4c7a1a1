//! Register tile of prefill: a panel of 16 rows times a tile of up to four tokens.
//!
//! Rows are lanes: eight rows at a time, times the tokens, so that integer and float accumulators
//! stay in registers. One accumulator slot at a time, so the float accumulators are few.

use std::arch::aarch64::*;

use super::dot::{IntegerDot, QUADS, Tile};
use super::vector::{load, load_f32, pair_products, store_f32};
use crate::lanes::LANES;
use crate::matmul::activations::TileStep;
use crate::matmul::panel::{PANEL_ROWS, PanelStep, slot_len};
use crate::quant::QuantBlock;

/// See [`TileLeaf::tile`](crate::matmul::integer::TileLeaf::tile).
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn tile<L: IntegerDot, B: QuantBlock, const T: usize>(
    lanes: L,
    panel: &[PanelStep],
    tile: &[TileStep],
    out: &mut [[f32; PANEL_ROWS]; T],
) {
    for v in 0..PANEL_ROWS / LANES {
        let mut slots = [[[vdupq_n_f32(0.0); QUADS]; T]; LANES];
        let mut start = 0;
        for (slot, acc) in slots.iter_mut().enumerate() {
            let end = start + slot_len(slot, panel.len());
            *acc = slot_sums::<L, B, T>(lanes, &panel[start..end], v, &tile[start..end]);
            start = end;
        }
        for (t, out) in out.iter_mut().enumerate() {
            let out = &mut out.as_chunks_mut::<4>().0[v * QUADS..][..QUADS];
            for (q, out) in out.iter_mut().enumerate() {
                let s: [_; LANES / 2] =
                    std::array::from_fn(|j| vaddq_f32(slots[j][t][q], slots[j + LANES / 2][t][q]));
                store_f32(out, vaddq_f32(vaddq_f32(s[0], s[2]), vaddq_f32(s[1], s[3])));
            }
        }
    }
}

/// All sub-blocks of one accumulator, for the rows of group `v`.
#[target_feature(enable = "neon")]
#[inline]
fn slot_sums<L: IntegerDot, B: QuantBlock, const T: usize>(
    lanes: L,
    panel: &[PanelStep],
    v: usize,
    tile: &[TileStep],
) -> Tile<float32x4_t, T> {
    let mut acc = [[vdupq_n_f32(0.0); QUADS]; T];
    for (w, x) in panel.iter().zip(tile) {
        let isum = if B::HALF_SCALES {
            scaled_dot::<L, B, T>(lanes, w, v, x)
        } else {
            // SAFETY: this function enables NEON.
            unsafe { lanes.panel_dot::<B, T>(w, v, x, 0..2) }
        };
        let (scales, mins) = (w.scales[v].as_chunks::<4>().0, w.mins[v].as_chunks::<4>().0);
        for t in 0..T {
            for q in 0..QUADS {
                let acc = &mut acc[t][q];
                let scale = vmulq_n_f32(load_f32(&scales[q]), x.scales[t]);
                *acc = vfmaq_f32(*acc, scale, vcvtq_f32_s32(isum[t][q]));
                if B::HALF_MINS {
                    let mins_of_halves = vreinterpretq_s16_u8(load(&w.min_halves[v].as_chunks::<4>().0[q]));
                    let imin = vcvtq_f32_s32(pair_products(mins_of_halves, pair(x.halves[t])));
                    *acc = vfmsq_f32(*acc, vmulq_n_f32(load_f32(&mins[q]), x.scales[t]), imin);
                } else if B::HAS_MIN {
                    *acc = vfmsq_f32(*acc, load_f32(&mins[q]), vdupq_n_f32(x.sums[t]));
                }
            }
        }
    }
    acc
}

/// Integer dot products of one sub-block whose halves have integer scales.
#[target_feature(enable = "neon")]
#[inline]
fn scaled_dot<L: IntegerDot, B: QuantBlock, const T: usize>(
    lanes: L,
    w: &PanelStep,
    v: usize,
    x: &TileStep,
) -> Tile<int32x4_t, T> {
    let mut isum = [[vdupq_n_s32(0); QUADS]; T];
    for half in 0..2 {
        // SAFETY: this function enables NEON.
        let sums = unsafe { lanes.panel_dot::<B, T>(w, v, x, half..half + 1) };
        let scales = w.halves[half][v].as_chunks::<4>().0;
        for (q, scales) in scales.iter().enumerate() {
            // Each scale lies there twice, as 16-bit numbers; the upper one, shifted down, is it in
            // 32 bits.
            let scales = vshrq_n_s32::<16>(vreinterpretq_s32_u8(load(scales)));
            for t in 0..T {
                isum[t][q] = vmlaq_s32(isum[t][q], sums[t][q], scales);
            }
        }
    }
    isum
}

/// A pair of sums in every lane.
#[target_feature(enable = "neon")]
#[inline]
fn pair(halves: [i16; 2]) -> int16x8_t {
    let [a, b] = halves.map(i16::to_le_bytes);
    vreinterpretq_s16_s32(vdupq_n_s32(i32::from_le_bytes([a[0], a[1], b[0], b[1]])))
}
