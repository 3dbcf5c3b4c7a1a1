//! `Q5_K` rows: as `Q4_K`, with the fifth bits put in before the transposition.

use std::arch::x86_64::*;

use super::q4_k::{in_order, scales_and_mins};
use super::rows::Group;
use super::vector::{fold_halves, load, nibbles, transpose};
use crate::matmul::activations::{Order, Q8Group};
use crate::quant::Q5K;

impl Group for Q5K {
    const ORDER: Order = Order::EvenOdd;

    type Weights = [__m256i; 8];

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        let block = &group[0];
        let fifth = _mm256_set1_epi8(16);
        // Bit 4 of each byte: the fifth bit of sub-block 0; a shift moves that of another sub-block
        // there. Bits that cross into the next byte are masked.
        let high = load(&block.qh);
        let fifths = [
            _mm256_slli_epi16::<4>(high),
            _mm256_slli_epi16::<3>(high),
            _mm256_slli_epi16::<2>(high),
            _mm256_slli_epi16::<1>(high),
            high,
            _mm256_srli_epi16::<1>(high),
            _mm256_srli_epi16::<2>(high),
            _mm256_srli_epi16::<3>(high),
        ];
        let (mut even, mut odd) = ([_mm256_setzero_si256(); 4], [_mm256_setzero_si256(); 4]);
        for (pair, qs) in block.qs.iter().enumerate() {
            let (low, high) = nibbles(load(qs));
            even[pair] = _mm256_or_si256(low, _mm256_and_si256(fifths[2 * pair], fifth));
            odd[pair] = _mm256_or_si256(high, _mm256_and_si256(fifths[2 * pair + 1], fifth));
        }
        let ([a, b, c, d], [e, f, g, h]) = (transpose(even), transpose(odd));
        [a, b, c, d, e, f, g, h]
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        scales_and_mins(&group[0].scales)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        let x = &x.quants;
        let ones = _mm256_set1_epi16(1);
        let (mut even, mut odd) = (_mm256_setzero_si256(), _mm256_setzero_si256());
        // Four products of 5-bit quants fit into 16 bits, eight do not.
        for i in 0..4 {
            even = _mm256_add_epi16(even, _mm256_maddubs_epi16(weights[i], load(&x[i])));
            odd = _mm256_add_epi16(odd, _mm256_maddubs_epi16(weights[i + 4], load(&x[i + 4])));
        }
        in_order(fold_halves(_mm256_madd_epi16(even, ones), _mm256_madd_epi16(odd, ones)))
    }
}
