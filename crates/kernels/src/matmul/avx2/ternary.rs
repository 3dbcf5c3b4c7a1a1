//! `TQ2_0` rows: as `Q2_K`, with equal scales (see `pairs.rs`). `TQ1_0` rows: the digits of eight
//! sub-blocks, by multiplication with powers of 3 (see `plain.rs`).

use std::arch::x86_64::*;

use super::pairs::{self, splat_half};
use super::plain::dot_unsigned;
use super::rows::Group;
use super::vector::{load, load_half, sums};
use crate::lanes::LANES;
use crate::matmul::activations::{Order, Q8Group};
use crate::quant::{QuantBlock, Tq1, Tq2};

impl Group for Tq2 {
    const ORDER: Order = Order::Pairs;

    type Weights = pairs::Weights;

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        pairs::weights::<Self>(pairs::unpack_two_bits(&group[0].qs), _mm_set1_epi8(1))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        (splat_half(group[0].d), _mm256_setzero_ps())
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        pairs::dot::<Self>(weights, x)
    }
}

/// First digits of fractions in base 3: the carries of three times each byte.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn digits(bytes: __m256i) -> __m256i {
    // The mean of the byte and its half, rounded down, is `3 / 4` of it: the carries are its two
    // upper bits. Means are rounded up; one less before rounds both down.
    let less = _mm256_subs_epu8(bytes, _mm256_set1_epi8(1));
    let mean = _mm256_avg_epu8(less, _mm256_avg_epu8(less, _mm256_setzero_si256()));
    _mm256_and_si256(_mm256_srli_epi16::<6>(mean), _mm256_set1_epi8(3))
}

/// Bytes times 3, without carries.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn thrice(bytes: __m256i) -> __m256i {
    _mm256_add_epi8(bytes, _mm256_add_epi8(bytes, bytes))
}

/// The 16 digits of four bytes: the first of all bytes first.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn last_digits(bytes: [u8; 4]) -> __m128i {
    let powers = _mm256_setr_epi16(1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27);
    let wide = _mm256_cvtepu8_epi16(_mm_set1_epi32(i32::from_le_bytes(bytes)));
    let rest = _mm256_and_si256(_mm256_mullo_epi16(wide, powers), _mm256_set1_epi16(255));
    let digits = _mm256_srli_epi16::<8>(_mm256_mullo_epi16(rest, _mm256_set1_epi16(3)));
    _mm_packus_epi16(_mm256_castsi256_si128(digits), _mm256_extracti128_si256::<1>(digits))
}

impl Group for Tq1 {
    const ORDER: Order = Order::Plain;

    type Weights = [__m256i; LANES];

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        let block = &group[0];
        let mut quants = [_mm256_setzero_si256(); LANES];
        let mut bytes = load(&block.qs);
        for quants in &mut quants[..5] {
            *quants = digits(bytes);
            bytes = thrice(bytes);
        }
        // Digits 0 and 1 of the 16 bytes, 2 and 3, then 4 and the last four bytes.
        let first = _mm256_broadcastsi128_si256(load_half(&block.tail));
        let pair = _mm256_blend_epi32::<0b1111_0000>(first, thrice(first));
        quants[5] = digits(pair);
        let pair = thrice(thrice(pair));
        quants[6] = digits(pair);
        let fifth = digits(thrice(thrice(pair)));
        quants[7] = _mm256_inserti128_si256::<1>(fifth, last_digits(block.qh));
        quants
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        (splat_half(group[0].d), _mm256_setzero_ps())
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        let isum = sums(dot_unsigned(weights, x));
        let offset = _mm256_set1_epi16(i16::from(Self::OFFSET));
        _mm256_sub_epi32(isum, _mm256_madd_epi16(load(&x.halves), offset))
    }
}
