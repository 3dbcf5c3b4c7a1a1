//! Rows of any integer-dot format against few tokens, through the format's own description: the leaf of formats that
//! have no tuned one.
//!
//! Eight sub-blocks at a time, whose dot products end up in the eight lanes of one vector, in the order of the
//! accumulators; one conversion, multiplication and fused multiply-add then serve all eight.

use std::arch::x86_64::*;

use super::vector::{load, load_f32, store_f32, sums};
use crate::activations::Q8Token;
use crate::format::{Factors, QuantBlock, SUB_BLOCK};
use crate::lanes::LANES;
use crate::matmul::integer::join;
use crate::matmul::scalar::accumulate;

/// See [`RowsLeaf::rows`](crate::matmul::integer::RowsLeaf::rows).
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn rows<B: QuantBlock, const T: usize>(blocks: &[B], x: &[Q8Token<'_>; T], out: &mut [f32]) {
    let n_rows = out.len() / T;
    let blocks_per_row = blocks.len() / n_rows.max(1);
    let blocks_per_group = LANES / B::SUB_BLOCKS;
    for (row, out) in out.chunks_exact_mut(T).enumerate() {
        let blocks = &blocks[row * blocks_per_row..(row + 1) * blocks_per_row];
        let groups = blocks.chunks_exact(blocks_per_group);
        let tail = groups.remainder();
        let mut acc = [_mm256_setzero_ps(); T];
        for (i, group) in groups.enumerate() {
            add_group(group, i, x, &mut acc);
        }
        for t in 0..T {
            let mut lanes = [0.0; LANES];
            store_f32(&mut lanes, acc[t]);
            accumulate(tail, (blocks_per_row - tail.len()) * B::SUB_BLOCKS, &x[t], &mut lanes);
            out[t] = join(lanes);
        }
    }
}

/// Adds the products of eight sub-blocks, the `i`-th such group of the row.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add_group<B: QuantBlock, const T: usize>(
    group: &[B],
    i: usize,
    x: &[Q8Token<'_>; T],
    acc: &mut [__m256; T],
) {
    let ones = _mm256_set1_epi16(1);
    let mut quants = [[0_u8; SUB_BLOCK]; LANES];
    let mut factors = [Factors::default(); LANES];
    for (s, block) in group.iter().enumerate() {
        block.unpack(&mut quants[s * B::SUB_BLOCKS..(s + 1) * B::SUB_BLOCKS]);
        block.factors(&mut factors[s * B::SUB_BLOCKS..(s + 1) * B::SUB_BLOCKS]);
    }
    let halves: [[i16; 2]; LANES] = factors.map(|f| f.halves.map(i16::from));
    let scales = load_f32(&factors.map(|f| f.scale));
    let mins = load_f32(&factors.map(|f| f.min));
    for t in 0..T {
        let range = i * LANES..(i + 1) * LANES;
        let mut products = [_mm256_setzero_si256(); LANES];
        for (s, x) in x[t].quants[range.clone()].iter().enumerate() {
            let (w, x) = (load(&quants[s]), load(x));
            let pairs = if B::MAX_QUANT.is_some() {
                _mm256_maddubs_epi16(w, x)
            } else {
                _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
            };
            let halves = if B::HALF_SCALES {
                let [a, b] = halves[s];
                _mm256_set_m128i(_mm_set1_epi16(b), _mm_set1_epi16(a))
            } else {
                ones
            };
            products[s] = _mm256_madd_epi16(pairs, halves);
        }
        let mut isum = sums(products);
        if B::OFFSET != 0 {
            let x_halves: &[[i16; 2]; LANES] =
                x[t].halves[range.clone()].as_array().expect("eight sub-blocks");
            let weighted = _mm256_madd_epi16(load(x_halves), load(&halves));
            isum =
                _mm256_sub_epi32(isum, _mm256_mullo_epi32(weighted, _mm256_set1_epi32(i32::from(B::OFFSET))));
        }
        let x_scales: &[f32; LANES] = x[t].scales[range.clone()].as_array().expect("eight sub-blocks");
        let scale = _mm256_mul_ps(scales, load_f32(x_scales));
        acc[t] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(isum), acc[t]);
        if B::HAS_MIN {
            let x_sums: &[f32; LANES] = x[t].sums[range].as_array().expect("eight sub-blocks");
            acc[t] = _mm256_fnmadd_ps(mins, load_f32(x_sums), acc[t]);
        }
    }
}
