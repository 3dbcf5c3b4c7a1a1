//! `Q6_K` rows: the four vectors of low bits, transposed, give the sub-blocks 0, 1, 4, 5 in their
//! low halves of bytes and 2, 3, 6, 7 in the high ones; the high bits are brought into the same
//! order. See `pairs.rs`.

use std::arch::x86_64::*;

use super::pairs;
use super::rows::Group;
use super::vector::{load, load_half, nibbles, transpose};
use crate::matmul::activations::{Order, Q8Group};
use crate::quant::Q6K;

impl Group for Q6K {
    const ORDER: Order = Order::Pairs;

    type Weights = pairs::Weights;

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
        pairs::weights::<Self>(quants, load_half(scales))
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
