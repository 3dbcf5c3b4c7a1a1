//! Register tile of prefill: panels of 16 rows times tiles of four tokens.
//!
//! One vector is 16 rows: a panel step has eight vectors of four values, which `vpdpbusd`
//! multiplies by the same four values of a token in every lane. Two panels and three tiles (32
//! rows, 12 tokens) keep 24 integer sums in registers; a weight is then loaded once for 12 products
//! and a token's values once for two. The float accumulators stay in the L1 cache: they are used
//! once per 32 values.
//!
//! `vpdpbusd` takes unsigned weights: the offset of stored weights (128 for signed ones, see
//! `expand.rs`) times the sum of the activations is subtracted by the initial sums.

use std::arch::x86_64::*;

use bytemuck::Zeroable;

use super::vector::{load, load_f32, load_row, store_row};
use crate::lanes::LANES;
use crate::matmul::activations::{TILE_TOKENS, TileStep};
use crate::matmul::integer::SlotSums;
use crate::matmul::panel::{PANEL_ROWS, PanelStep, slot_len};
use crate::quant::QuantBlock;

/// One vector per tile, token and panel.
type Tile<X, const P: usize, const G: usize> = [[[X; P]; TILE_TOKENS]; G];

/// Offset of expanded quants: added by the expansion, or subtracted by the format.
pub(super) const fn offset<B: QuantBlock>() -> i16 {
    match B::MAX_QUANT {
        Some(_) => B::OFFSET as i16,
        None => super::SIGN_BIAS as i16,
    }
}

/// Products of `P` panels with `G` tiles, each `[sub-blocks in slot order]`. `out`: `[panels,
/// tokens]`, without duplicated panels.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn tile<B: QuantBlock, const P: usize, const G: usize>(
    panels: [&[PanelStep]; P],
    tiles: [&[TileStep]; G],
    tokens: usize,
    SlotSums(slots): &mut SlotSums,
    out: &mut [[f32; PANEL_ROWS]],
) {
    let n = panels[0].len();
    let mut start = 0;
    for (slot, sums) in slots.iter_mut().enumerate() {
        let end = start + slot_len(slot, n);
        if start == end {
            *sums = Zeroable::zeroed();
        }
        for i in start..end {
            let mut w = [&panels[0][i]; P];
            for p in 1..P {
                w[p] = &panels[p][i];
            }
            if B::HALF_SCALES {
                // The sums of both halves of one tile fill the registers.
                for g in 0..G {
                    let sums = &mut sums[g * TILE_TOKENS * P..(g + 1) * TILE_TOKENS * P];
                    step::<B, P, 1>(w, [&tiles[g][i]], i == start, sums);
                }
            } else {
                let mut x = [&tiles[0][i]; G];
                for g in 1..G {
                    x[g] = &tiles[g][i];
                }
                step::<B, P, G>(w, x, i == start, sums);
            }
        }
        start = end;
    }
    for (p, out) in out.chunks_exact_mut(tokens).enumerate() {
        for (t, out) in out.iter_mut().enumerate() {
            let mut s = [_mm512_setzero_ps(); LANES / 2];
            for (j, s) in s.iter_mut().enumerate() {
                *s =
                    _mm512_add_ps(load_row(&slots[j][t * P + p]), load_row(&slots[j + LANES / 2][t * P + p]));
            }
            store_row(out, _mm512_add_ps(_mm512_add_ps(s[0], s[2]), _mm512_add_ps(s[1], s[3])));
        }
    }
}

/// Adds one sub-block to the sums of its slot, `[tokens, panels]`, or begins them with it.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn step<B: QuantBlock, const P: usize, const G: usize>(
    w: [&PanelStep; P],
    x: [&TileStep; G],
    first: bool,
    sums: &mut [[f32; PANEL_ROWS]],
) {
    let isum = if B::HALF_SCALES { scaled_halves::<B, P, G>(w, x) } else { whole::<B, P, G>(w, x) };
    let sums = &mut sums[..G * TILE_TOKENS * P];
    if first {
        add_scaled::<B, P, G, true>(w, x, &isum, sums);
    } else {
        add_scaled::<B, P, G, false>(w, x, &isum, sums);
    }
}

/// The float part of a step.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn add_scaled<B: QuantBlock, const P: usize, const G: usize, const FIRST: bool>(
    w: [&PanelStep; P],
    x: [&TileStep; G],
    isum: &Tile<__m512i, P, G>,
    sums: &mut [[f32; PANEL_ROWS]],
) {
    let (mut scales, mut mins) = ([_mm512_setzero_ps(); P], [_mm512_setzero_ps(); P]);
    for p in 0..P {
        (scales[p], mins[p]) = (load_f32(&w[p].scales), load_f32(&w[p].mins));
    }
    for g in 0..G {
        for t in 0..TILE_TOKENS {
            let x_scale = _mm512_set1_ps(x[g].scales[t]);
            for p in 0..P {
                let sum = &mut sums[(g * TILE_TOKENS + t) * P + p];
                let before = if FIRST { _mm512_setzero_ps() } else { load_row(sum) };
                let scale = _mm512_mul_ps(scales[p], x_scale);
                let mut after = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(isum[g][t][p]), before);
                if B::HALF_MINS {
                    let zero = _mm512_setzero_si512();
                    let imin = _mm512_dpwssd_epi32(zero, load(&w[p].min_halves), pair(x[g].halves[t]));
                    let scale = _mm512_mul_ps(mins[p], x_scale);
                    after = _mm512_fnmadd_ps(scale, _mm512_cvtepi32_ps(imin), after);
                } else if B::HAS_MIN {
                    after = _mm512_fnmadd_ps(mins[p], _mm512_set1_ps(x[g].sums[t]), after);
                }
                store_row(sum, after);
            }
        }
    }
}

/// Integer dot products of a sub-block.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn whole<B: QuantBlock, const P: usize, const G: usize>(
    w: [&PanelStep; P],
    x: [&TileStep; G],
) -> Tile<__m512i, P, G> {
    let mut isum = start(x, [-offset::<B>(); 2]);
    for piece in 0..8 {
        add_products(w, x, piece, &mut isum);
    }
    isum
}

/// The same where each half has an integer scale.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn scaled_halves<B: QuantBlock, const P: usize, const G: usize>(
    w: [&PanelStep; P],
    x: [&TileStep; G],
) -> Tile<__m512i, P, G> {
    let mut first = start(x, [-offset::<B>(), 0]);
    for piece in 0..4 {
        add_products(w, x, piece, &mut first);
    }
    multiply(&mut first, w, 0);
    let mut second = start(x, [0, -offset::<B>()]);
    for piece in 4..8 {
        add_products(w, x, piece, &mut second);
    }
    multiply(&mut second, w, 1);
    for g in 0..G {
        for t in 0..TILE_TOKENS {
            for p in 0..P {
                second[g][t][p] = _mm512_add_epi32(first[g][t][p], second[g][t][p]);
            }
        }
    }
    second
}

/// Multiplies sums of a half with its integer scales.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn multiply<const P: usize, const G: usize>(isum: &mut Tile<__m512i, P, G>, w: [&PanelStep; P], half: usize) {
    for p in 0..P {
        // Each scale is there twice, in 16 bits.
        let scales = _mm512_srai_epi32::<16>(load(&w[p].halves[half]));
        for g in 0..G {
            for t in 0..TILE_TOKENS {
                isum[g][t][p] = _mm512_mullo_epi32(isum[g][t][p], scales);
            }
        }
    }
}

/// Initial sums: the activations' sums of halves times `offsets`, the same for all rows.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn start<const P: usize, const G: usize>(x: [&TileStep; G], offsets: [i16; 2]) -> Tile<__m512i, P, G> {
    let zero = _mm512_setzero_si512();
    let mut isum = [[[zero; P]; TILE_TOKENS]; G];
    if offsets != [0; 2] {
        let offsets = pair(offsets);
        for g in 0..G {
            for t in 0..TILE_TOKENS {
                isum[g][t] = [_mm512_dpwssd_epi32(zero, pair(x[g].halves[t]), offsets); P];
            }
        }
    }
    isum
}

/// Adds the products of four values of all rows and tokens.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn add_products<const P: usize, const G: usize>(
    w: [&PanelStep; P],
    x: [&TileStep; G],
    piece: usize,
    isum: &mut Tile<__m512i, P, G>,
) {
    let mut weights = [_mm512_setzero_si512(); P];
    for p in 0..P {
        weights[p] = load(&w[p].quants[piece]);
    }
    for g in 0..G {
        for t in 0..TILE_TOKENS {
            let x = _mm512_set1_epi32(bytemuck::cast(x[g].quants[piece][t]));
            for p in 0..P {
                isum[g][t][p] = _mm512_dpbusd_epi32(isum[g][t][p], weights[p], x);
            }
        }
    }
    finish_step(isum);
}

/// A pair of sums in every lane.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn pair(halves: [i16; 2]) -> __m512i {
    _mm512_set1_epi32(bytemuck::cast(halves))
}

/// Forces the compiler to finish a step of all accumulators before the next one: see the AVX2 tile.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn finish_step<const P: usize, const G: usize>(acc: &mut Tile<__m512i, P, G>) {
    for acc in acc.as_flattened_mut().as_flattened_mut() {
        // SAFETY: no instruction is emitted; the value is only said to be changed, in order with
        // the others.
        unsafe {
            std::arch::asm!("/* {0} */", inout(zmm_reg) * acc, options(nomem, nostack, preserves_flags));
        }
    }
}
