//! `Q3_K` rows: as `Q2_K`, with the third bits put in after the transposition; no minima. See
//! `pairs.rs`.

use std::arch::x86_64::*;

use super::pairs;
use super::rows::Group;
use super::vector::{load, transpose};
use crate::matmul::activations::{Order, Q8Group};
use crate::quant::Q3K;

impl Group for Q3K {
    const ORDER: Order = Order::Pairs;

    type Weights = pairs::Weights;

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        let block = &group[0];
        let mut quants = pairs::unpack_two_bits(&block.qs);
        // Bit `s` of each byte becomes bit 2 in the lanes of sub-block `s`: 0, 1, 4, 5 in the first
        // vectors, 2, 3, 6, 7 in the others. Bits that cross into another byte are masked.
        let third = _mm256_set1_epi8(4);
        let by_lane = _mm256_setr_epi32(0, 1, 4, 5, 0, 1, 4, 5);
        let high = load(&block.hmask);
        for (i, &high) in transpose([high; 4]).iter().enumerate() {
            let others = _mm256_srlv_epi32(high, by_lane);
            let first = _mm256_srlv_epi32(_mm256_slli_epi32::<2>(high), by_lane);
            quants[i] = _mm256_or_si256(quants[i], _mm256_and_si256(first, third));
            quants[i + 4] = _mm256_or_si256(quants[i + 4], _mm256_and_si256(others, third));
        }
        let [first, last] = block.stored_scales();
        let stored = _mm_set_epi64x(last as i64, first as i64);
        pairs::weights::<Self>(quants, _mm_sub_epi8(stored, _mm_set1_epi8(Self::SCALE_OFFSET)))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        (pairs::splat_half(group[0].d), _mm256_setzero_ps())
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        pairs::dot::<Self>(weights, x)
    }
}
