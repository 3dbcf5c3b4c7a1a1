//! Row products: weights in file layout times few tokens (decode).
//!
//! Eight sub-blocks at a time: their dot products end in the eight lanes of one vector, in
//! accumulator order, so that one conversion, multiplication and fused multiply-add serve all
//! eight. A format implements the unpacking of a group of eight sub-blocks ([`Group`]), which is
//! done once for all tokens.

use std::arch::x86_64::*;

use bytemuck::Zeroable;

use super::vector::{load, load_f32, prefetch, store_f32};
use crate::lanes::{Avx2Lanes, LANES, Lanes};
use crate::matmul::activations::{Order, Q8Group, Q8Token};
use crate::matmul::integer::RowSums;
use crate::matmul::panel::PANEL_ROWS;
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

    /// True if [`dot_once`](Self::dot_once) is faster than unpacked weights; only for formats
    /// without minima.
    const ONCE: bool = false;

    /// [`dot`](Self::dot) with a group that serves one token: a part at a time, so that the weights
    /// are never in registers all at once.
    ///
    /// # Safety
    /// The CPU must have AVX2, FMA and F16C.
    unsafe fn dot_once(group: &[Self], x: &Q8Group) -> __m256i {
        // SAFETY: the caller guarantees the features.
        unsafe { Self::dot(&Self::quants(group), x) }
    }

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

/// Bytes of activations per column chunk, sized to stay in the L1 cache while rows reuse them.
pub(in crate::matmul) const X_BYTES: usize = 24 << 10;

/// Implements [`RowsLeaf::rows`](crate::matmul::integer::RowsLeaf::rows).
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn rows<B: Group>(
    lanes: Avx2Lanes,
    blocks: &[B],
    x: &[Q8Token<'_>],
    sums: &mut [RowSums],
    out: &mut [[f32; PANEL_ROWS]],
) {
    let blocks_per_row = x[0].sub_blocks.len() / B::SUB_BLOCKS;
    let blocks_per_group = LANES / B::SUB_BLOCKS;
    let n_groups = blocks_per_row / blocks_per_group;
    let at_once = (X_BYTES / (x.len() * size_of::<Q8Group>())).max(1);
    // With column chunks, the next data are in the next rows.
    let ahead = if at_once < n_groups { 2 * blocks_per_row * size_of::<B>() } else { PREFETCH_BYTES };
    sums.fill(Zeroable::zeroed());
    let sums: &mut [[f32; LANES]] = bytemuck::cast_slice_mut(sums);
    match x {
        [x] => {
            let x = &x.groups(B::ORDER)[..n_groups];
            for (row, sums) in blocks.chunks_exact(blocks_per_row).zip(&mut *sums) {
                let mut acc = _mm256_setzero_ps();
                for (group, x) in row.chunks_exact(blocks_per_group).zip(x) {
                    prefetch(group, ahead);
                    acc = if B::ONCE { add_once(group, x, acc) } else { add_group(&unpack(group), x, acc) };
                }
                store_f32(sums, acc);
            }
        }
        _ => {
            for first in (0..n_groups).step_by(at_once) {
                let rows = blocks.chunks_exact(blocks_per_row).zip(sums.chunks_exact_mut(x.len()));
                for (row, sums) in rows {
                    for i in first..n_groups.min(first + at_once) {
                        let group = &row[i * blocks_per_group..(i + 1) * blocks_per_group];
                        prefetch(group, ahead);
                        all_tokens(group, x, i, sums);
                    }
                }
            }
        }
    }
    if B::SUB_BLOCKS < LANES && n_groups * blocks_per_group < blocks_per_row {
        add_tails(blocks, x, blocks_per_row, sums);
    }
    for (r, sums) in sums.chunks_exact(x.len()).take(blocks.len() / blocks_per_row).enumerate() {
        for (out, sums) in out.iter_mut().zip(sums) {
            out[r] = lanes.sum(load_f32(sums));
        }
    }
}

/// Adds the products of the blocks behind the last whole group of each row, filled up to a group.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add_tails<B: Group>(blocks: &[B], x: &[Q8Token<'_>], blocks_per_row: usize, sums: &mut [[f32; LANES]]) {
    let blocks_per_group = LANES / B::SUB_BLOCKS;
    let n_groups = blocks_per_row / blocks_per_group;
    for (row, sums) in blocks.chunks_exact(blocks_per_row).zip(sums.chunks_exact_mut(x.len())) {
        let tail = &row[n_groups * blocks_per_group..];
        let filled = filled(tail);
        let group = unpack(&filled[..blocks_per_group]);
        for (x, sums) in x.iter().zip(sums) {
            let mut after = [0.0; LANES];
            store_f32(&mut after, add_group(&group, &x.groups(B::ORDER)[n_groups], load_f32(sums)));
            // The other accumulators have no product: adding one of zero could change the sign of a
            // zero.
            let slots = tail.len() * B::SUB_BLOCKS;
            sums[..slots].copy_from_slice(&after[..slots]);
        }
    }
}

/// Blocks of a group that is not whole, with zeros behind them. Their values may be others than
/// zero, which activations of zero cancel.
#[inline(always)]
pub(in crate::matmul) fn filled<B: QuantBlock>(tail: &[B]) -> [B; LANES] {
    let mut group = [B::zeroed(); LANES];
    group[..tail.len()].copy_from_slice(tail);
    group
}

/// Adds the products of group `i` with all tokens to their accumulators.
///
/// A function of its own, so that the weights are in registers and not in the frame of the caller.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
fn all_tokens<B: Group>(group: &[B], x: &[Q8Token<'_>], i: usize, sums: &mut [[f32; LANES]]) {
    let group = unpack(group);
    for (x, sums) in x.iter().zip(sums) {
        store_f32(sums, add_group(&group, &x.groups(B::ORDER)[i], load_f32(sums)));
    }
}

/// A group of one row in registers.
struct Unpacked<B: Group> {
    weights: B::Weights,
    scales: __m256,
    mins: __m256,
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn unpack<B: Group>(group: &[B]) -> Unpacked<B> {
    // SAFETY: this function enables the features.
    let (weights, (scales, mins)) = unsafe { (B::quants(group), B::scales(group)) };
    Unpacked { weights, scales, mins }
}

/// Adds the products of a group with one token to the accumulators.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add_group<B: Group>(group: &Unpacked<B>, x: &Q8Group, acc: __m256) -> __m256 {
    // SAFETY: this function enables the features.
    let isum = unsafe { B::dot(&group.weights, x) };
    let scale = _mm256_mul_ps(group.scales, load_f32(&x.scales));
    let mut after = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(isum), acc);
    if B::HALF_MINS {
        // SAFETY: this function enables the features.
        let imin = unsafe { B::min_dot(&group.weights, x) };
        let min = _mm256_mul_ps(group.mins, load_f32(&x.scales));
        after = _mm256_fnmadd_ps(min, _mm256_cvtepi32_ps(imin), after);
    } else if B::HAS_MIN {
        after = _mm256_fnmadd_ps(group.mins, load_f32(&x.sums), after);
    }
    after
}

/// [`add_group`] by [`Group::dot_once`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add_once<B: Group>(group: &[B], x: &Q8Group, acc: __m256) -> __m256 {
    const { assert!(!B::ONCE || !B::HAS_MIN) }
    // SAFETY: this function enables the features.
    let (isum, (scales, _)) = unsafe { (B::dot_once(group, x), B::scales(group)) };
    _mm256_fmadd_ps(_mm256_mul_ps(scales, load_f32(&x.scales)), _mm256_cvtepi32_ps(isum), acc)
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
