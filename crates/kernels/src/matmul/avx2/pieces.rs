//! Shared code of the formats whose sub-blocks have 16 bytes of 4-bit quants each: sub-blocks `p`
//! and `p + 4` share a vector; transposed, the lanes are the sub-blocks.

use std::arch::x86_64::*;

use super::vector::{load, load_pair, load_twice, nibbles, transpose};
use crate::lanes::LANES;

/// Unpacks the 4-bit quants of eight sub-blocks in the order
/// [`Order::Pieces`](crate::matmul::activations::Order::Pieces).
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn unpack_nibbles(qs: [&[u8; 16]; LANES]) -> [__m256i; 8] {
    let mut packed = [_mm256_setzero_si256(); 4];
    for (p, packed) in packed.iter_mut().enumerate() {
        *packed = load_pair(qs[p], qs[p + 4]);
    }
    let mut quants = [_mm256_setzero_si256(); 8];
    for (i, &packed) in transpose(packed).iter().enumerate() {
        (quants[i], quants[i + 4]) = nibbles(packed);
    }
    quants
}

/// Adds the fifth bits: bit `j` of `qh[s]` belongs to value `j` of sub-block `s`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn add_fifth_bits(quants: &mut [__m256i; 8], qh: [[u8; 4]; LANES]) {
    let fifth = _mm256_set1_epi8(16);
    // The upper four bits of a byte belong to an odd piece; shifted up by four, the lower four take
    // their place.
    let [a, b, c, d, e, f, g, h] = qh.map(i32::from_le_bytes);
    let odd = _mm256_setr_epi32(a, b, c, d, e, f, g, h);
    let even = _mm256_slli_epi16::<4>(odd);
    let single = _mm256_set1_epi32(i32::from_le_bytes([0x10, 0x20, 0x40, 0x80]));
    let mut place = _mm256_setr_epi8(
        0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12,
        12,
    );
    for pair in quants.as_chunks_mut::<2>().0 {
        for (quants, bits) in pair.iter_mut().zip([even, odd]) {
            // All bits of these values are at 16 or above: the minimum with 16 moves the bit to its
            // position.
            let bit = _mm256_and_si256(_mm256_shuffle_epi8(bits, place), single);
            *quants = _mm256_or_si256(*quants, _mm256_min_epu8(bit, fifth));
        }
        place = _mm256_add_epi8(place, _mm256_set1_epi8(1));
    }
}

/// Maps quants to the stored values of their codebook.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn look_up(mut quants: [__m256i; 8], codebook: [u8; 16]) -> [__m256i; 8] {
    let table = load_twice(&codebook);
    for q in &mut quants {
        *q = _mm256_shuffle_epi8(table, *q);
    }
    quants
}

/// Integer dot products with signed weights, none of them -128.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn dot_signed(weights: &[__m256i; 8], x: &[[[i8; 4]; LANES]; 8]) -> __m256i {
    let ones = _mm256_set1_epi16(1);
    let mut isum = _mm256_setzero_si256();
    for (&w, x) in weights.iter().zip(x) {
        // At most 2 * 127 * 127: a pair of products fits into 16 bits, two pairs do not.
        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(load(x), w));
        isum = _mm256_add_epi32(isum, _mm256_madd_epi16(pairs, ones));
    }
    isum
}
