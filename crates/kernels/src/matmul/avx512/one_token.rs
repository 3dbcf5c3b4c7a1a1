//! Row products with one token (decode): each weight is used once.
//!
//! Measured with weights in the third-level cache, against the loops over tokens of `rows.rs`: four
//! rows at a time are faster by a tenth with 4 to 6 bits, one row at a time with 8 bits, which need
//! no unpacking. With weights in memory all forms are equal.

use std::arch::x86_64::*;

use super::group::WideGroup;
use super::pair::{PAIRS, add_group, weights};
use super::tile::offset;
use super::vector::{load, store};
use crate::lanes::LANES;
use crate::matmul::activations::Q8Group;
use crate::matmul::avx2::rows::PREFETCH_BYTES;
use crate::matmul::avx2::vector::{load as load_half, load_f32, prefetch, prefetch_far, store_f32};
use crate::matmul::integer::RowSums;

/// Sets the accumulators of up to 16 rows to the products of whole groups with one token.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub(super) fn one_token<B: WideGroup>(
    blocks: &[B],
    x: &[Q8Group],
    blocks_per_row: usize,
    sums: &mut [RowSums],
) {
    if B::ROW_ALONE {
        by_rows(blocks, x, blocks_per_row, sums);
    } else {
        by_fours(blocks, x, blocks_per_row, sums);
    }
}

/// One row at a time: vectors hold two pieces of eight sub-blocks.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn by_rows<B: WideGroup>(blocks: &[B], x: &[Q8Group], blocks_per_row: usize, sums: &mut [RowSums]) {
    debug_assert!(!B::HALF_SCALES && !B::HALF_MINS && !B::HAS_MIN, "a row alone has scales only");
    let offsets = _mm256_set1_epi16(-offset::<B>());
    for (r, row) in blocks.chunks_exact(blocks_per_row).enumerate() {
        let mut acc = _mm256_setzero_ps();
        for (group, x) in row.chunks_exact(LANES / B::SUB_BLOCKS).zip(x) {
            prefetch(group, PREFETCH_BYTES);
            // SAFETY: this function enables the features.
            let (quants, (scales, _)) = unsafe { (B::wide_quants(group), B::scales(group)) };
            let weights = transpose(quants);
            let x_quants: &[[u8; 64]; 4] = bytemuck::cast_ref(&x.quants);
            let mut isum = [_mm512_setzero_si512(); 2];
            for i in 0..4 {
                isum[i % 2] = _mm512_dpbusd_epi32(isum[i % 2], weights[i], load(&x_quants[i]));
            }
            let isum = _mm512_add_epi32(isum[0], isum[1]);
            let isum = _mm256_add_epi32(_mm512_castsi512_si256(isum), _mm512_extracti64x4_epi64::<1>(isum));
            let isum = _mm256_dpwssd_epi32(isum, load_half(&x.halves), offsets);
            acc = _mm256_fmadd_ps(_mm256_mul_ps(scales, load_f32(&x.scales)), _mm256_cvtepi32_ps(isum), acc);
        }
        store_f32(&mut sums[r % LANES].0[r / LANES], acc);
    }
}

/// Two row pairs at a time.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn by_fours<B: WideGroup>(blocks: &[B], x: &[Q8Group], blocks_per_row: usize, sums: &mut [RowSums]) {
    let blocks_per_group = LANES / B::SUB_BLOCKS;
    let n_rows = blocks.len() / blocks_per_row;
    for (quad, sums) in sums.as_chunks_mut::<PAIRS>().0.iter_mut().enumerate() {
        if quad * PAIRS >= n_rows {
            break;
        }
        // The last row stands in for missing ones.
        let row = |pair: usize, half: usize| {
            let row = (quad * PAIRS + pair + half * LANES).min(n_rows - 1);
            blocks[row * blocks_per_row..][..blocks_per_row].chunks_exact(blocks_per_group)
        };
        let first = row(0, 0).zip(row(0, 1));
        let second = row(1, 0).zip(row(1, 1));
        let mut acc = [_mm512_setzero_ps(); PAIRS];
        for (((a, b), (c, d)), x) in first.zip(second).zip(x) {
            for group in [a, b, c, d] {
                prefetch_far(group, size_of_val(blocks));
            }
            acc = add_group::<B, PAIRS>(&[weights(a, b), weights(c, d)], x, acc);
        }
        for (sums, acc) in sums.iter_mut().zip(acc) {
            store(sums, _mm512_castps_si512(acc));
        }
    }
}

/// Reorders the quants of a row from value order (eight pieces of two sub-blocks per vector) to
/// [`Order::Pieces`](crate::matmul::activations::Order::Pieces).
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn transpose(v: [__m512i; 4]) -> [__m512i; 4] {
    // Of two vectors, piece by piece, the four sub-blocks: pieces 0 to 3, and with four more 4
    // to 7.
    let low = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
    let high = _mm512_add_epi32(low, _mm512_set1_epi32(4));
    let [a, b, c, d] = v;
    let first = [_mm512_permutex2var_epi32(a, low, b), _mm512_permutex2var_epi32(a, high, b)];
    let last = [_mm512_permutex2var_epi32(c, low, d), _mm512_permutex2var_epi32(c, high, d)];
    // Of each piece the sub-blocks 0 to 3 and 4 to 7.
    let low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    let high = _mm512_add_epi64(low, _mm512_set1_epi64(4));
    [
        _mm512_permutex2var_epi64(first[0], low, last[0]),
        _mm512_permutex2var_epi64(first[0], high, last[0]),
        _mm512_permutex2var_epi64(first[1], low, last[1]),
        _mm512_permutex2var_epi64(first[1], high, last[1]),
    ]
}
