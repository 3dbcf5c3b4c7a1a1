//! Shared code of formats with integer scales per half sub-block.
//!
//! Quants are in the order [`Order::Pairs`](crate::matmul::activations::Order::Pairs): lanes of the
//! lower half of a vector belong to the first 16 values of their sub-blocks, lanes of the upper
//! half to the last 16, as do the integer scales.

use std::arch::x86_64::*;

use super::vector::{fold_halves, load, transpose};
use crate::matmul::activations::Q8Group;
use crate::quant::QuantBlock;

/// Quant block in registers.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Weights {
    quants: [__m256i; 8],
    /// Integer scales of sub-blocks 0, 1, 4, 5 and 2, 3, 6, 7, each twice, as 16-bit numbers.
    scales: [__m256i; 2],
    /// Integer scales times the offset of the format, in value order, as 16-bit numbers.
    offsets: __m256i,
}

/// Combines quants and scales. `scales`: byte `2s + h` is the scale of half `h` of sub-block `s`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn weights<B: QuantBlock>(quants: [__m256i; 8], scales: __m128i) -> Weights {
    // A scale is placed in the upper byte of both 16-bit numbers of its lane and shifted down with
    // its sign.
    let bytes = _mm256_broadcastsi128_si256(scales);
    let place = _mm256_setr_epi8(
        0, 0, 0, 0, 2, 2, 2, 2, 8, 8, 8, 8, 10, 10, 10, 10, 1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 11, 11, 11,
        11,
    );
    let first = _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(bytes, place));
    let next = _mm256_add_epi8(place, _mm256_set1_epi8(4));
    let second = _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(bytes, next));
    let offset = _mm256_set1_epi16(i16::from(B::OFFSET));
    let offsets = _mm256_mullo_epi16(_mm256_cvtepi8_epi16(scales), offset);
    Weights { quants, scales: [first, second], offsets }
}

/// Integer dot product of each sub-block.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn dot<B: QuantBlock>(weights: &Weights, x: &Q8Group) -> __m256i {
    let together = const { if B::SUMS < 4 { B::SUMS } else { 4 } };
    let mut isums = [_mm256_setzero_si256(); 2];
    for (set, isum) in isums.iter_mut().enumerate() {
        for first in (0..4).step_by(together) {
            let mut pairs = _mm256_setzero_si256();
            for i in 4 * set + first..4 * set + first + together {
                pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(weights.quants[i], load(&x.quants[i])));
            }
            *isum = _mm256_add_epi32(*isum, _mm256_madd_epi16(pairs, weights.scales[set]));
        }
    }
    // Sub-blocks 0, 1, 4, 5, 2, 3, 6, 7 to 0, 1, 2, ..., 7.
    let isum = _mm256_permute4x64_epi64::<0b11_01_10_00>(fold_halves(isums[0], isums[1]));
    if B::OFFSET == 0 {
        return isum;
    }
    _mm256_sub_epi32(isum, _mm256_madd_epi16(load(&x.halves), weights.offsets))
}

/// Unpacks the 2-bit quants of a quant block: bits `2s` and `2s + 1` of each vector of `qs` belong
/// to its sub-block `s`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn unpack_two_bits(qs: &[[u8; 32]; 2]) -> [__m256i; 8] {
    // Each vector twice, transposed: its lanes are the sub-blocks 0, 1, 4, 5, still packed.
    let packed = transpose([load(&qs[0]), load(&qs[0]), load(&qs[1]), load(&qs[1])]);
    let mask = _mm256_set1_epi8(3);
    let shift = _mm256_set1_epi64x(2 << 32);
    let mut quants = [_mm256_setzero_si256(); 8];
    for (i, &packed) in packed.iter().enumerate() {
        // Bits that cross into another byte are masked.
        let first = _mm256_srlv_epi32(packed, shift);
        quants[i] = _mm256_and_si256(first, mask);
        quants[i + 4] = _mm256_and_si256(_mm256_srli_epi32::<4>(first), mask);
    }
    quants
}

/// Broadcasts the half-precision number of a quant block.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn splat_half(d: [u8; 2]) -> __m256 {
    _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16::from_le_bytes(d)))))
}
