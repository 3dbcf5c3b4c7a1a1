//! Row products: weights in file layout times few tokens (decode).
//!
//! As in AVX2, eight sub-blocks at a time ([`WideGroup`]), with dot products in the eight lanes of
//! one vector: the unpacked quants are transposed once, so that a lane belongs to one sub-block,
//! and reused for every token.

use std::arch::x86_64::*;

use super::group::WideGroup;
use super::tile::offset;
use super::vector::load;
use crate::lanes::{Avx512Lanes, LANES};
use crate::matmul::activations::{Order, Q8Group, Q8Token};
use crate::matmul::avx2::rows::{PREFETCH_BYTES, finish};
use crate::matmul::avx2::vector::{load as load_half, load_f32, prefetch};
use crate::quant::{Factors, MAX_SUB_BLOCKS, QuantBlock};

/// Bytes of activations per column chunk, sized to stay in the L1 cache while rows reuse them.
const X_BYTES: usize = 24 << 10;

/// Rows that reuse a column chunk of activations while it is in the cache.
const FEW_ROWS: usize = 16;

/// A group of eight sub-blocks in registers.
struct Weights {
    /// Unsigned, in [`Order::Pieces`]: vector `i` holds pieces `2i` and `2i + 1`.
    quants: [__m512i; 4],
    scales: __m256,
    mins: __m256,
    /// The integer scales of the first and of the second halves.
    half_scales: [__m256i; 2],
    /// Factors of the sums of the activations' halves that remove the offset.
    offsets: __m256i,
    /// The integer minima of the halves.
    half_mins: __m256i,
}

/// Implements [`RowsLeaf::rows`](crate::matmul::integer::RowsLeaf::rows) for up to `MAX` tokens.
///
/// The last token stands in for missing ones: a compile-time number keeps the accumulators in
/// registers.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn rows<B: WideGroup, const MAX: usize>(
    lanes: Avx512Lanes,
    blocks: &[B],
    x: &[Q8Token<'_>],
    out: &mut [f32],
) {
    assert!((1..=MAX).contains(&x.len()), "{} tokens instead of {MAX}", x.len());
    let blocks_per_row = x[0].sub_blocks.len() / B::SUB_BLOCKS;
    let blocks_per_group = LANES / B::SUB_BLOCKS;
    let n_groups = blocks_per_row / blocks_per_group;
    let x_groups: [&[Q8Group]; MAX] =
        std::array::from_fn(|t| &x[t.min(x.len() - 1)].groups(Order::Pieces)[..n_groups]);
    let at_once = (X_BYTES / (MAX * size_of::<Q8Group>())).max(1);
    // With column chunks, the next data are in the next rows.
    let ahead = if at_once < n_groups { 2 * blocks_per_row * size_of::<B>() } else { PREFETCH_BYTES };
    let few_rows = blocks.chunks(FEW_ROWS * blocks_per_row).zip(out.chunks_mut(FEW_ROWS * x.len()));
    for (blocks, out) in few_rows {
        let mut sums = [[_mm256_setzero_ps(); MAX]; FEW_ROWS];
        for first in (0..n_groups).step_by(at_once) {
            let n = at_once.min(n_groups - first);
            for (row, sums) in blocks.chunks_exact(blocks_per_row).zip(&mut sums) {
                let groups =
                    row[first * blocks_per_group..][..n * blocks_per_group].chunks_exact(blocks_per_group);
                let mut acc = *sums;
                for (i, group) in (first..).zip(groups) {
                    prefetch(group, ahead);
                    let weights = weights(group);
                    for (x, acc) in x_groups.iter().zip(&mut acc) {
                        *acc = add_group::<B>(&weights, &x[i], *acc);
                    }
                }
                *sums = acc;
            }
        }
        let rows = blocks.chunks_exact(blocks_per_row).zip(out.chunks_exact_mut(x.len()));
        for ((row, out), sums) in rows.zip(sums) {
            let tail = &row[n_groups * blocks_per_group..];
            for ((out, x), acc) in out.iter_mut().zip(x).zip(sums) {
                *out = finish(lanes, acc, tail, n_groups * LANES, x);
            }
        }
    }
}

/// Unpacks a group into registers.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn weights<B: WideGroup>(group: &[B]) -> Weights {
    // SAFETY: this function enables the features.
    let (quants, (scales, mins)) = unsafe { (B::wide_quants(group), B::scales(group)) };
    let offset = _mm256_set1_epi16(-offset::<B>());
    let mut weights = Weights {
        quants: transpose(quants),
        scales,
        mins,
        half_scales: [_mm256_setzero_si256(); 2],
        offsets: offset,
        half_mins: _mm256_setzero_si256(),
    };
    if B::HALF_SCALES || B::HALF_MINS {
        let mut factors = [Factors::default(); MAX_SUB_BLOCKS];
        for (block, factors) in group.iter().zip(factors.chunks_exact_mut(B::SUB_BLOCKS)) {
            block.factors(factors);
        }
        let scales: [[i8; 2]; LANES] = std::array::from_fn(|s| factors[s].halves);
        let mins: [[i8; 2]; LANES] = std::array::from_fn(|s| factors[s].min_halves);
        let (scales, mins) = (load_bytes(scales), load_bytes(mins));
        let by_sub_block = _mm256_cvtepi8_epi16(scales);
        let first = _mm256_srai_epi32::<16>(_mm256_slli_epi32::<16>(by_sub_block));
        weights.half_scales = [first, _mm256_srai_epi32::<16>(by_sub_block)];
        weights.offsets = _mm256_mullo_epi16(by_sub_block, offset);
        weights.half_mins = _mm256_cvtepi8_epi16(mins);
    }
    weights
}

/// One number per half of a sub-block.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn load_bytes(halves: [[i8; 2]; LANES]) -> __m128i {
    // SAFETY: 16 readable, initialized bytes; `loadu` has no alignment rule.
    unsafe { _mm_loadu_si128(halves.as_ptr().cast()) }
}

/// Adds the products with one token to its accumulators.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn add_group<B: QuantBlock>(weights: &Weights, x: &Q8Group, acc: __m256) -> __m256 {
    let x_quants: &[[u8; 64]; 4] = bytemuck::cast_ref(&x.quants);
    let [first, second] = [[0, 1], [2, 3]].map(|[a, b]| {
        let isum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), weights.quants[a], load(&x_quants[a]));
        _mm512_dpbusd_epi32(isum, weights.quants[b], load(&x_quants[b]))
    });
    let mut isum = if B::HALF_SCALES {
        let [first_scales, second_scales] = weights.half_scales;
        _mm256_add_epi32(
            _mm256_mullo_epi32(fold(first), first_scales),
            _mm256_mullo_epi32(fold(second), second_scales),
        )
    } else {
        fold(_mm512_add_epi32(first, second))
    };
    if offset::<B>() != 0 {
        isum = _mm256_dpwssd_epi32(isum, load_half(&x.halves), weights.offsets);
    }
    let x_scales = load_f32(&x.scales);
    let scale = _mm256_mul_ps(weights.scales, x_scales);
    let acc = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(isum), acc);
    if B::HALF_MINS {
        let imin = _mm256_madd_epi16(load_half(&x.halves), weights.half_mins);
        _mm256_fnmadd_ps(_mm256_mul_ps(weights.mins, x_scales), _mm256_cvtepi32_ps(imin), acc)
    } else if B::HAS_MIN {
        _mm256_fnmadd_ps(weights.mins, load_f32(&x.sums), acc)
    } else {
        acc
    }
}

/// Adds the two halves.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn fold(v: __m512i) -> __m256i {
    _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64::<1>(v))
}

/// Reorders quants from value order (eight pieces of two sub-blocks per vector) to
/// [`Order::Pieces`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn transpose(v: [__m512i; 4]) -> [__m512i; 4] {
    // Of two vectors, piece by piece, the four sub-blocks: pieces 0 to 3, and with four more 4
    // to 7.
    let low = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
    let high = _mm512_add_epi32(low, _mm512_set1_epi32(4));
    let ([a, b], [c, d]) = ([v[0], v[1]], [v[2], v[3]]);
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
