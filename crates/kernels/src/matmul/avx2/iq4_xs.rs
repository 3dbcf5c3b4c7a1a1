//! `IQ4_XS` rows: as `IQ4_NL`, the eight sub-blocks in one quant block with integer scales. See
//! `pieces.rs`.

use std::arch::x86_64::*;

use super::pairs::splat_half;
use super::pieces::{dot_signed, look_up, unpack_nibbles};
use super::rows::Group;
use crate::matmul::activations::{Order, Q8Group};
use crate::quant::{Iq4Xs, NON_LINEAR_CODEBOOK};

impl Group for Iq4Xs {
    const ORDER: Order = Order::Pieces;

    type Weights = [__m256i; 8];

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        look_up(unpack_nibbles(group[0].qs.each_ref()), NON_LINEAR_CODEBOOK)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        let block = &group[0];
        // Each lane shifts down its own bits: four of the low part, two of the high part.
        let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let two_lanes = _mm256_add_epi32(lane, lane);
        let low = _mm256_set1_epi32(i32::from_le_bytes(block.scales_low));
        let low = _mm256_srlv_epi32(low, _mm256_add_epi32(two_lanes, two_lanes));
        let high = _mm256_set1_epi32(i32::from(u16::from_le_bytes(block.scales_high)) << 4);
        let high = _mm256_srlv_epi32(high, two_lanes);
        let stored = _mm256_or_si256(
            _mm256_and_si256(low, _mm256_set1_epi32(0x0f)),
            _mm256_and_si256(high, _mm256_set1_epi32(0x30)),
        );
        let scales = _mm256_sub_epi32(stored, _mm256_set1_epi32(i32::from(Iq4Xs::SCALE_OFFSET)));
        (_mm256_mul_ps(splat_half(block.d), _mm256_cvtepi32_ps(scales)), _mm256_setzero_ps())
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        dot_signed(weights, &x.quants)
    }
}
