//! Row products: weights in file layout times few tokens (decode).
//!
//! Eight sub-blocks at a time: their dot products end in the eight lanes of one vector, in
//! accumulator order, so that one conversion, multiplication and fused multiply-add serve all
//! eight. A format implements the unpacking of a group of eight sub-blocks ([`Group`]), which is
//! done once for all tokens.

use std::arch::x86_64::*;

use super::vector::{load, load_f32, prefetch, store_f32};
use crate::lanes::{Avx2Lanes, LANES, Lanes};
use crate::matmul::activations::{Order, Q8Group, Q8Token};
use crate::matmul::integer::join;
use crate::matmul::scalar::accumulate;
use crate::quant::QuantBlock;

/// Unpacking and dot product of eight sub-blocks: one quant block of 256 values, or eight of 32.
pub(in crate::matmul) trait Group: QuantBlock {
    /// Order of unpacked quants.
    const ORDER: Order;

    /// Unpacked weights in registers.
    type Weights: Copy;

    /// Unpacks the quants (and integer scales) of a group of `LANES / SUB_BLOCKS` quant blocks.
    ///
    /// # Safety
    /// The CPU must have AVX2, FMA and F16C.
    unsafe fn quants(group: &[Self]) -> Self::Weights;

    /// Scale and minimum of each sub-block.
    ///
    /// # Safety
    /// The CPU must have AVX2, FMA and F16C.
    unsafe fn scales(group: &[Self]) -> (__m256, __m256);

    /// Integer dot product of each sub-block with activations in [`ORDER`](Self::ORDER).
    ///
    /// # Safety
    /// The CPU must have AVX2, FMA and F16C.
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i;

    /// Integer minima of each sub-block times the sums of its halves, for
    /// [`HALF_MINS`](QuantBlock::HALF_MINS) only.
    ///
    /// # Safety
    /// The CPU must have AVX2, FMA and F16C.
    unsafe fn min_dot(_weights: &Self::Weights, _x: &Q8Group) -> __m256i {
        unreachable!("the format has no minima of halves")
    }
}

/// Prefetch distance of weights.
///
/// The hardware prefetcher alone stops at every page and leaves a fifth to a third of the bandwidth
/// unused (measured on Zen 5: 28 to 32 GB/s without, 32 to 42 GB/s with; 4 KiB is less effective,
/// 32 KiB no better).
pub(in crate::matmul) const PREFETCH_BYTES: usize = 8192;

/// Implements [`RowsLeaf::rows`](crate::matmul::integer::RowsLeaf::rows) for `MAX` tokens if
/// `EXACT`, else up to `MAX`.
///
/// A small compile-time number of tokens keeps the accumulators in registers.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn rows<B: Group, const MAX: usize, const EXACT: bool>(
    lanes: Avx2Lanes,
    blocks: &[B],
    x: &[Q8Token<'_>],
    out: &mut [f32],
) {
    assert!(if EXACT { x.len() == MAX } else { x.len() <= MAX }, "{} tokens instead of {MAX}", x.len());
    let blocks_per_row = x[0].sub_blocks.len() / B::SUB_BLOCKS;
    let blocks_per_group = LANES / B::SUB_BLOCKS;
    let n_groups = blocks_per_row / blocks_per_group;
    let x_groups: [&[Q8Group]; MAX] =
        std::array::from_fn(|t| x.get(t).map_or(&[][..], |x| &x.groups(B::ORDER)[..n_groups]));
    for (blocks, out) in blocks.chunks_exact(blocks_per_row).zip(out.chunks_exact_mut(x.len())) {
        let groups = blocks.chunks_exact(blocks_per_group);
        let tail = groups.remainder();
        let mut acc = [_mm256_setzero_ps(); MAX];
        for (i, group) in groups.enumerate() {
            prefetch(group, PREFETCH_BYTES);
            // SAFETY: this function enables the features.
            let (weights, (scales, mins)) = unsafe { (B::quants(group), B::scales(group)) };
            for (x, acc) in x_groups[..x.len()].iter().zip(&mut acc) {
                let x = &x[i];
                // SAFETY: this function enables the features.
                let isum = unsafe { B::dot(&weights, x) };
                let scale = _mm256_mul_ps(scales, load_f32(&x.scales));
                *acc = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(isum), *acc);
                if B::HALF_MINS {
                    // SAFETY: this function enables the features.
                    let imin = unsafe { B::min_dot(&weights, x) };
                    let min = _mm256_mul_ps(mins, load_f32(&x.scales));
                    *acc = _mm256_fnmadd_ps(min, _mm256_cvtepi32_ps(imin), *acc);
                } else if B::HAS_MIN {
                    *acc = _mm256_fnmadd_ps(mins, load_f32(&x.sums), *acc);
                }
            }
        }
        for ((out, x), acc) in out.iter_mut().zip(x).zip(acc) {
            *out = finish(lanes, acc, tail, n_groups * LANES, x);
        }
    }
}

/// Sum of a row's accumulators, after the remaining sub-blocks, from `first` on, that fill no
/// group.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::matmul) fn finish<B: QuantBlock>(
    lanes: impl Lanes<V = __m256>,
    acc: __m256,
    tail: &[B],
    first: usize,
    x: &Q8Token<'_>,
) -> f32 {
    if tail.is_empty() {
        return lanes.sum(acc);
    }
    let mut slots = [0.0; LANES];
    store_f32(&mut slots, acc);
    accumulate(tail, first, x, &mut slots);
    join(slots)
}

/// Integer dot products of a group in the order [`Order::Pieces`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn dot_pieces<B: QuantBlock>(weights: &[__m256i; 8], x: &[[[i8; 4]; LANES]; 8]) -> __m256i {
    let ones = _mm256_set1_epi16(1);
    let mut isum = _mm256_setzero_si256();
    for first in (0..8).step_by(B::SUMS) {
        let mut pairs = _mm256_setzero_si256();
        for i in first..first + B::SUMS {
            pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(weights[i], load(&x[i])));
        }
        isum = _mm256_add_epi32(isum, _mm256_madd_epi16(pairs, ones));
    }
    isum
}
