//! `Q6_K` rows: the four vectors of low bits, transposed, give the sub-blocks 0, 1, 4, 5 in their low halves of bytes and
//! 2, 3, 6, 7 in the high ones; the high bits are brought into the same order. The lanes of the lower half of a vector
//! belong to the first 16 values of their sub-blocks, those of the upper half to the last 16, as do the integer scales.

use std::arch::x86_64::*;

use super::rows::Group;
use super::vector::{fold_halves, load, load_twice, nibbles, transpose};
use crate::activations::{Order, Q8Group};
use crate::format::{Q6K, QuantBlock};

/// A block of `Q6_K` in registers.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    /// In [`Order::Pairs`].
    quants: [__m256i; 8],
    /// The integer scales of sub-blocks 0, 1, 4, 5 and 2, 3, 6, 7, each twice, as 16-bit numbers.
    pairs: [__m256i; 2],
    /// The integer scales in the order of the values, as 16-bit numbers.
    halves: __m256i,
}

impl Group for Q6K {
    const ORDER: Order = Order::Pairs;

    type Weights = Weights;

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        let Q6K { ql, qh, scales, .. } = &group[0];
        let low = transpose([load(&ql[0][0]), load(&ql[0][1]), load(&ql[1][0]), load(&ql[1][1])]);
        // Each vector of high bits twice: for the sub-blocks 0 and 1 (bits 0..2 and 2..4), 4 and 5.
        let (h0, h1) = (load(&qh[0]), load(&qh[1]));
        let high = transpose([h0, h0, h1, h1]);
        let (left, right) = (_mm256_set1_epi64x(2 << 32 | 4), _mm256_set1_epi64x(2 << 32));
        let mask = _mm256_set1_epi8(0x30);
        let mut quants = [_mm256_setzero_si256(); 8];
        for i in 0..4 {
            let (a, b) = nibbles(low[i]);
            quants[i] = _mm256_or_si256(a, _mm256_and_si256(_mm256_sllv_epi32(high[i], left), mask));
            quants[i + 4] = _mm256_or_si256(b, _mm256_and_si256(_mm256_srlv_epi32(high[i], right), mask));
        }
        // Byte `2s + h` is the scale of half `h` of sub-block `s`; it goes to the upper byte of both 16-bit numbers of
        // its lane and is shifted down with its sign.
        let bytes = load_twice(scales);
        let place = _mm256_setr_epi8(
            0, 0, 0, 0, 2, 2, 2, 2, 8, 8, 8, 8, 10, 10, 10, 10, 1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 11, 11,
            11, 11,
        );
        let first = _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(bytes, place));
        let next = _mm256_add_epi8(place, _mm256_set1_epi8(4));
        let second = _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(bytes, next));
        let halves = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(bytes));
        Weights { quants, pairs: [first, second], halves }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        let d = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16::from_le_bytes(group[0].d))));
        (_mm256_broadcastss_ps(d), _mm256_setzero_ps())
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        let mut isums = [_mm256_setzero_si256(); 2];
        // Two products of 6-bit quants fit into 16 bits.
        for first in [0, 2] {
            for (set, isum) in isums.iter_mut().enumerate() {
                let i = 4 * set + first;
                let pairs = _mm256_add_epi16(
                    _mm256_maddubs_epi16(weights.quants[i], load(&x.quants[i])),
                    _mm256_maddubs_epi16(weights.quants[i + 1], load(&x.quants[i + 1])),
                );
                *isum = _mm256_add_epi32(*isum, _mm256_madd_epi16(pairs, weights.pairs[set]));
            }
        }
        // Sub-blocks 0, 1, 4, 5, 2, 3, 6, 7 to 0, 1, 2, ..., 7.
        let isum = _mm256_permute4x64_epi64::<0b11_01_10_00>(fold_halves(isums[0], isums[1]));
        const { assert!(Self::OFFSET == 32) };
        let offset = _mm256_slli_epi32::<5>(_mm256_madd_epi16(load(&x.halves), weights.halves));
        _mm256_sub_epi32(isum, offset)
    }
}
