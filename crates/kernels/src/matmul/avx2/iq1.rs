//! `IQ1` rows: grid points plus 1 from a table, without signs; the eighth that values move by goes
//! with the sums of the activations (`IQ1_S`) or into the quants (`IQ1_M`). See `plain.rs`.

use std::arch::x86_64::*;

use super::pairs::splat_half;
use super::plain::{HalfScales, dot_unsigned, scaled_sums};
use super::rows::Group;
use super::vector::{load, load_half, sums};
use crate::lanes::LANES;
use crate::matmul::activations::{Order, Q8Group};
use crate::quant::{Iq1M, Iq1S, QuantBlock};

/// A quant block of `IQ1_S` in registers.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Weights {
    /// Points plus 1: 0 to 2.
    points: [__m256i; LANES],
    /// Per sub-block, twice: what the sum of the activations is multiplied with.
    offsets: __m256i,
}

impl Group for Iq1S {
    const ORDER: Order = Order::Plain;

    type Weights = Weights;

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        let block = &group[0];
        let mut points = [_mm256_setzero_si256(); LANES];
        for (s, points) in points.iter_mut().enumerate() {
            let [a, b, c, d] = block.points(s).map(|eight| eight as i64);
            *points = _mm256_setr_epi64x(a, b, c, d);
        }
        // `8 * (p - 1) +- 1`: -7, or -9 where the upper bit is set.
        let qh = load_half(&block.qh);
        let down = _mm_slli_epi16::<1>(_mm_srai_epi16::<15>(qh));
        let offsets = _mm_sub_epi16(down, _mm_set1_epi16(7));
        let twice =
            _mm256_set_m128i(_mm_unpackhi_epi16(offsets, offsets), _mm_unpacklo_epi16(offsets, offsets));
        Weights { points, offsets: twice }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        let block = &group[0];
        let qh = _mm256_cvtepu16_epi32(load_half(&block.qh));
        let scales = _mm256_and_si256(_mm256_srli_epi32::<12>(qh), _mm256_set1_epi32(7));
        let odd = _mm256_add_epi32(_mm256_add_epi32(scales, scales), _mm256_set1_epi32(1));
        let unit = _mm256_mul_ps(splat_half(block.d), _mm256_set1_ps(Self::UNIT));
        (_mm256_mul_ps(unit, _mm256_cvtepi32_ps(odd)), _mm256_setzero_ps())
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        let isum = _mm256_slli_epi32::<3>(sums(dot_unsigned(&weights.points, x)));
        _mm256_add_epi32(isum, _mm256_madd_epi16(load(&x.halves), weights.offsets))
    }
}

/// A quant block of `IQ1_M` in registers.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct ScaledWeights {
    /// Stored quants: 0 to 18.
    quants: [__m256i; LANES],
    scales: HalfScales,
    /// Scales times the offset of the format, in value order, as 16-bit numbers.
    offsets: __m256i,
}

impl Group for Iq1M {
    const ORDER: Order = Order::Plain;

    type Weights = ScaledWeights;

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        let block = &group[0];
        let low = 0x0101_0101_0101_0101;
        let place = _mm256_setr_epi64x(0, 0, low, low);
        // The bit of each eight values that is set where they move down.
        let bit = _mm256_blend_epi32::<0b1100_1100>(_mm256_set1_epi8(8), _mm256_set1_epi8(-128));
        let mut quants = [_mm256_setzero_si256(); LANES];
        for (s, quants) in quants.iter_mut().enumerate() {
            let [a, b, c, d] = block.points(s).map(|eight| eight as i64);
            let points = _mm256_slli_epi16::<3>(_mm256_setr_epi64x(a, b, c, d));
            let qh = _mm256_set1_epi16(i16::from_le_bytes(block.qh[s]));
            let down = _mm256_and_si256(_mm256_shuffle_epi8(qh, place), bit);
            let up = _mm256_cmpeq_epi8(down, _mm256_setzero_si256());
            *quants = _mm256_add_epi8(points, _mm256_and_si256(up, _mm256_set1_epi8(2)));
        }
        let scales = load_half(&block.half_scales());
        let offset = _mm256_set1_epi16(i16::from(Self::OFFSET));
        let offsets = _mm256_mullo_epi16(_mm256_cvtepi8_epi16(scales), offset);
        ScaledWeights { quants, scales: HalfScales::new(scales), offsets }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        let unit = _mm256_set1_ps(Self::UNIT);
        (_mm256_mul_ps(splat_half(group[0].d()), unit), _mm256_setzero_ps())
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        let isum = scaled_sums(dot_unsigned(&weights.quants, x), &weights.scales);
        _mm256_sub_epi32(isum, _mm256_madd_epi16(load(&x.halves), weights.offsets))
    }
}
