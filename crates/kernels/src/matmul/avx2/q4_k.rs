//! `Q4_K` rows: the four vectors of a quant block, transposed, give the even sub-blocks in their
//! low halves of bytes and the odd ones in the high halves.

use std::arch::x86_64::*;

use super::rows::Group;
use super::vector::{load, nibbles, transpose};
use crate::matmul::activations::{Order, Q8Group};
use crate::quant::{PackedScales, Q4K};

impl Group for Q4K {
    const ORDER: Order = Order::EvenOdd;

    type Weights = [__m256i; 8];

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        let qs = &group[0].qs;
        let packed = transpose([load(&qs[0]), load(&qs[1]), load(&qs[2]), load(&qs[3])]);
        let mut weights = [_mm256_setzero_si256(); 8];
        for (i, &packed) in packed.iter().enumerate() {
            (weights[i], weights[i + 4]) = nibbles(packed);
        }
        weights
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
        let (mut even, mut odd) = (_mm256_setzero_si256(), _mm256_setzero_si256());
        for i in 0..4 {
            even = _mm256_add_epi16(even, _mm256_maddubs_epi16(weights[i], load(&x[i])));
            odd = _mm256_add_epi16(odd, _mm256_maddubs_epi16(weights[i + 4], load(&x[i + 4])));
        }
        // Eight products of 4-bit quants still fit into 16 bits.
        let pairs = _mm256_add_epi16(
            _mm256_permute2x128_si256::<0x20>(even, odd),
            _mm256_permute2x128_si256::<0x31>(even, odd),
        );
        in_order(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }
}

/// Sub-blocks 0, 2, 4, 6, 1, 3, 5, 7 to 0, 1, 2, ..., 7.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn in_order(even_odd: __m256i) -> __m256i {
    _mm256_permutevar8x32_epi32(even_odd, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

/// Scales and minima of the eight sub-blocks of a `Q4_K` or `Q5_K` quant block.
///
/// The 6-bit integers are unpacked in general registers, eight at a time: the vector units are the
/// bottleneck of these rows, the scalar units are idle.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn scales_and_mins(packed: &PackedScales) -> (__m256, __m256) {
    let (low, high) = packed.halves();
    let all = _mm_unpacklo_epi32(_mm_cvtsi64_si128(low as i64), _mm_cvtsi64_si128(high as i64));
    let scales = _mm256_cvtepu8_epi32(all);
    let mins = _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(all, all));
    let [d, m] = [packed.d, packed.dmin];
    let both = _mm256_cvtph_ps(_mm_set1_epi32(i32::from_le_bytes([d[0], d[1], m[0], m[1]])));
    let (d, dmin) = (_mm256_moveldup_ps(both), _mm256_movehdup_ps(both));
    (_mm256_mul_ps(d, _mm256_cvtepi32_ps(scales)), _mm256_mul_ps(dmin, _mm256_cvtepi32_ps(mins)))
}
