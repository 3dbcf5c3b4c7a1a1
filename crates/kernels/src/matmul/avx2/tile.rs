//! Register tile of prefill: a panel of 16 rows times a tile of up to four tokens.
//!
//! Rows are lanes: two vectors of eight rows, times the tokens, with four values of a token
//! broadcast. Unsigned quants use `maddubs` and accumulate in 16 bits as long as their range
//! allows, then one `madd` widens (and multiplies by the integer scales of halves). Signed quants
//! need `|w| * sign(x, w)` and 32-bit accumulation. One accumulator slot at a time keeps the number
//! of float accumulators small.
//!
//! Sums of stored quants less their offset are smaller than those of stored quants: they begin with
//! the offset's share, wrap around modulo 2^16 on the way, and are exact at the end
//! ([`centered_pieces`]).

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::vector::{load, load_f32, store, store_f32};
use crate::lanes::LANES;
use crate::matmul::activations::{TILE_TOKENS, TileStep};
use crate::matmul::panel::{PANEL_ROWS, PanelStep, slot_len};
use crate::quant::QuantBlock;

/// Per-row vectors of a panel.
const V: usize = PANEL_ROWS / LANES;

/// One vector per token and eight rows.
type Tile<X, const T: usize> = [[X; V]; T];

/// See [`TileLeaf::tile`](crate::matmul::integer::TileLeaf::tile).
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tile<B: QuantBlock, const T: usize>(
    panel: &[PanelStep],
    tile: &[TileStep],
    out: &mut [[f32; PANEL_ROWS]; T],
) {
    // Not zeroed first, which would be a `memset` per tile.
    let mut slots = [const { MaybeUninit::<Tile<__m256, T>>::uninit() }; LANES];
    let mut start = 0;
    for (slot, acc) in slots.iter_mut().enumerate() {
        let end = start + slot_len(slot, panel.len());
        acc.write(slot_sums::<B, T>(&panel[start..end], &tile[start..end]));
        start = end;
    }
    // SAFETY: the loop has written every slot.
    let slots = slots.each_ref().map(|acc| unsafe { acc.assume_init_ref() });
    for (t, out) in out.iter_mut().enumerate() {
        for (v, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let mut s = [_mm256_setzero_ps(); LANES / 2];
            for (j, s) in s.iter_mut().enumerate() {
                *s = _mm256_add_ps(slots[j][t][v], slots[j + LANES / 2][t][v]);
            }
            store_f32(out, _mm256_add_ps(_mm256_add_ps(s[0], s[2]), _mm256_add_ps(s[1], s[3])));
        }
    }
}

/// Sums all sub-blocks of one accumulator.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn slot_sums<B: QuantBlock, const T: usize>(panel: &[PanelStep], tile: &[TileStep]) -> Tile<__m256, T> {
    let mut acc = [[_mm256_setzero_ps(); V]; T];
    for (w, x) in panel.iter().zip(tile) {
        let isum = match B::MAX_QUANT {
            Some(_) if const { centered_pieces::<B>() == 8 } => centered_dot::<B, T, 8>(w, x),
            Some(_) if const { centered_pieces::<B>() == 4 } && x.reach <= const { column_limit::<B>() } => {
                centered_dot::<B, T, 4>(w, x)
            }
            Some(_) => unsigned_dot::<B, T>(w, x),
            None => signed_dot::<T>(w, x),
        };
        for t in 0..T {
            for v in 0..V {
                let scale = _mm256_mul_ps(load_f32(&w.scales[v]), _mm256_set1_ps(x.scales[t]));
                acc[t][v] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(isum[t][v]), acc[t][v]);
                if B::HALF_MINS {
                    let imin = _mm256_madd_epi16(load(&w.min_halves[v]), pair(x.halves[t]));
                    let scale = _mm256_mul_ps(load_f32(&w.mins[v]), _mm256_set1_ps(x.scales[t]));
                    acc[t][v] = _mm256_fnmadd_ps(scale, _mm256_cvtepi32_ps(imin), acc[t][v]);
                } else if B::HAS_MIN {
                    acc[t][v] = _mm256_fnmadd_ps(load_f32(&w.mins[v]), _mm256_set1_ps(x.sums[t]), acc[t][v]);
                }
            }
        }
    }
    acc
}

/// Sum of magnitudes of activations up to which a 16-bit sum of centered quants is exact.
const fn column_limit<B: QuantBlock>() -> i32 {
    let (above, below) = match B::MAX_QUANT {
        Some(largest) => (largest as i32 - B::OFFSET as i32, B::OFFSET as i32),
        None => (i8::MAX as i32, i8::MAX as i32),
    };
    i16::MAX as i32 / if above > below { above } else { below }
}

/// Pieces per 16-bit sum of quants less their offset; 0 where stored quants allow as many.
///
/// A sum of eight pieces takes any activations. One of four takes those within [`column_limit`]: at
/// least three quarters of the largest sum of magnitudes, which few steps exceed.
const fn centered_pieces<B: QuantBlock>() -> usize {
    let pieces = match column_limit::<B>() {
        limit if limit >= 16 * 127 && !B::HALF_SCALES => 8,
        limit if limit >= 6 * 127 => 4,
        _ => 0,
    };
    if B::MAX_QUANT.is_some() && B::OFFSET != 0 && pieces > B::SUMS { pieces } else { 0 }
}

/// Integer dot products of one sub-block of quants less their offset, `N` pieces per 16-bit sum.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn centered_dot<B: QuantBlock, const T: usize, const N: usize>(
    w: &PanelStep,
    x: &TileStep,
) -> Tile<__m256i, T> {
    let offset = _mm256_set1_epi16(-i16::from(B::OFFSET));
    let mut shares = _mm256_mullo_epi16(load(&x.columns), offset);
    if N == 8 {
        shares = _mm256_add_epi16(shares, _mm256_permute2x128_si256::<1>(shares, shares));
    }
    let mut starts = [[[0_i16; 2]; TILE_TOKENS]; 2];
    store(&mut starts, shares);
    let mut isum = [[_mm256_setzero_si256(); V]; T];
    for part in 0..8 / N {
        let mut pairs = [[_mm256_setzero_si256(); V]; T];
        for t in 0..T {
            pairs[t] = [pair(starts[part][t]); V];
        }
        for g in part * N..(part + 1) * N {
            add_products(w, x, g, &mut pairs);
        }
        for t in 0..T {
            for v in 0..V {
                let scale = if B::HALF_SCALES { load(&w.halves[part][v]) } else { _mm256_set1_epi16(1) };
                isum[t][v] = _mm256_add_epi32(isum[t][v], _mm256_madd_epi16(pairs[t][v], scale));
            }
        }
    }
    isum
}

/// Integer dot products of one sub-block of unsigned quants.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn unsigned_dot<B: QuantBlock, const T: usize>(w: &PanelStep, x: &TileStep) -> Tile<__m256i, T> {
    let ones = _mm256_set1_epi16(1);
    let mut isum = [[_mm256_setzero_si256(); V]; T];
    for first in (0..8).step_by(B::SUMS) {
        let mut pairs = products::<T>(w, x, first);
        finish_step(&mut pairs);
        for g in first + 1..first + B::SUMS {
            add_products(w, x, g, &mut pairs);
        }
        for t in 0..T {
            for v in 0..V {
                let scale = if B::HALF_SCALES { load(&w.halves[first / 4][v]) } else { ones };
                isum[t][v] = _mm256_add_epi32(isum[t][v], _mm256_madd_epi16(pairs[t][v], scale));
            }
        }
    }
    if B::OFFSET != 0 {
        for t in 0..T {
            let x_halves = pair(x.halves[t]);
            for v in 0..V {
                let offset = _mm256_set1_epi16(i16::from(B::OFFSET));
                let offset = if B::HALF_SCALES {
                    // Scales of the first and the second half side by side; 32 * 128 fits.
                    let both =
                        _mm256_blend_epi16::<0b1010_1010>(load(&w.halves[0][v]), load(&w.halves[1][v]));
                    _mm256_mullo_epi16(both, offset)
                } else {
                    offset
                };
                isum[t][v] = _mm256_sub_epi32(isum[t][v], _mm256_madd_epi16(x_halves, offset));
            }
        }
    }
    isum
}

/// Products of four values of all rows and tokens, added in pairs.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn products<const T: usize>(w: &PanelStep, x: &TileStep, g: usize) -> Tile<__m256i, T> {
    let mut products = [[_mm256_setzero_si256(); V]; T];
    for t in 0..T {
        for v in 0..V {
            products[t][v] = _mm256_maddubs_epi16(load(&w.quants[g][v]), broadcast(x.quants[g][t]));
        }
    }
    products
}

/// Adds the [`products`] of four values.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add_products<const T: usize>(w: &PanelStep, x: &TileStep, g: usize, pairs: &mut Tile<__m256i, T>) {
    let products = products::<T>(w, x, g);
    for t in 0..T {
        for v in 0..V {
            pairs[t][v] = _mm256_add_epi16(pairs[t][v], products[t][v]);
        }
    }
    finish_step(pairs);
}

/// Broadcasts four values to every lane.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn broadcast(values: [i8; 4]) -> __m256i {
    _mm256_set1_epi32(bytemuck::cast(values))
}

/// Broadcasts a pair of sums to every lane.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn pair(halves: [i16; 2]) -> __m256i {
    _mm256_set1_epi32(bytemuck::cast(halves))
}

/// Integer dot products of one sub-block of signed bytes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn signed_dot<const T: usize>(w: &PanelStep, x: &TileStep) -> Tile<__m256i, T> {
    let ones = _mm256_set1_epi16(1);
    let mut isum = [[_mm256_setzero_si256(); V]; T];
    for g in 0..8 {
        for v in 0..V {
            let w = load(&w.quants[g][v]);
            let magnitude = _mm256_abs_epi8(w);
            for t in 0..T {
                let x = broadcast(x.quants[g][t]);
                // At most 2 * 128 * 127: a pair of products fits into 16 bits, two pairs do not.
                let pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(x, w));
                isum[t][v] = _mm256_add_epi32(isum[t][v], _mm256_madd_epi16(pairs, ones));
            }
        }
        finish_step(&mut isum);
    }
    isum
}

/// Forces the compiler to finish a step of all accumulators before the next one.
///
/// Otherwise it computes one accumulator after the other over all steps, which needs every weight
/// and activation in a register at once, and spills most of them: 20 % slower.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn finish_step<const T: usize>(acc: &mut Tile<__m256i, T>) {
    for acc in acc.as_flattened_mut() {
        // SAFETY: no instruction is emitted; the value is only declared as changed, in order with
        // the others.
        unsafe {
            std::arch::asm!("/* {0} */", inout(ymm_reg) * acc, options(nomem, nostack, preserves_flags));
        }
    }
}
