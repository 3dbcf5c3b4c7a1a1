//! Unpacking of each format's quants, 64 bytes at a time.
//!
//! A format without its own implementation uses the plain loops of its
//! [`QuantBlock`](crate::quant::QuantBlock), which the compiler vectorizes.

use std::arch::x86_64::*;

use super::SIGN_BIAS;
use super::vector::load;
use crate::lanes::LANES;
use crate::matmul::avx2::rows::Group;
use crate::matmul::avx2::vector::{load as load_half, load_half as load_quarter, load_twice};
use crate::quant::{
    Factors, Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Xs, MAX_SUB_BLOCKS, NON_LINEAR_CODEBOOK,
    NibbleBlock, Q2K, Q3K, Q4K, Q5K, Q6K, Q8_0, SUB_BLOCK, SignedGridBlock, Tq1, Tq2,
};

/// Unpacking of eight sub-blocks: one quant block of 256 values, or eight of 32.
pub(super) trait WideGroup: Group {
    /// True if one row at a time is the fastest with one token.
    const ROW_ALONE: bool = false;

    /// Stored quants in value order, signed ones plus [`SIGN_BIAS`]: sub-blocks `2j` and `2j + 1`
    /// in vector `j`.
    ///
    /// # Safety
    /// The CPU must have AVX2, FMA, F16C and AVX-512 F, BW, DQ, VL and VNNI.
    unsafe fn wide_quants(group: &[Self]) -> [__m512i; 4] {
        // SAFETY: the caller guarantees the features.
        unsafe { unpacked(group) }
    }

    /// The integer scales and the integer minima of the sixteen halves of sub-blocks.
    ///
    /// # Safety
    /// The CPU must have AVX2, FMA, F16C and AVX-512 F, BW, DQ, VL and VNNI.
    unsafe fn half_factors(group: &[Self]) -> (__m128i, __m128i) {
        let mut factors = [Factors::default(); MAX_SUB_BLOCKS];
        for (block, factors) in group.iter().zip(factors.chunks_exact_mut(Self::SUB_BLOCKS)) {
            block.factors(factors);
        }
        let scales: [[i8; 2]; LANES] = std::array::from_fn(|s| factors[s].halves);
        let mins: [[i8; 2]; LANES] = std::array::from_fn(|s| factors[s].min_halves);
        // SAFETY: the caller guarantees the features.
        unsafe { (load_quarter(&scales), load_quarter(&mins)) }
    }
}

/// Unpacks through memory, by the format's scalar code.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn unpacked<B: Group>(group: &[B]) -> [__m512i; 4] {
    let mut quants = [[0; SUB_BLOCK]; MAX_SUB_BLOCKS];
    for (block, quants) in group.iter().zip(quants.chunks_exact_mut(B::SUB_BLOCKS)) {
        block.unpack(quants);
    }
    let bias = _mm512_set1_epi8(if B::MAX_QUANT.is_none() { SIGN_BIAS as i8 } else { 0 });
    let mut vectors = [_mm512_setzero_si512(); 4];
    for (j, vector) in vectors.iter_mut().enumerate() {
        *vector = _mm512_xor_si512(two(load_half(&quants[2 * j]), load_half(&quants[2 * j + 1])), bias);
    }
    vectors
}

impl WideGroup for Iq1S {}
impl WideGroup for Iq1M {}
impl WideGroup for Tq1 {}

impl WideGroup for Tq2 {
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn wide_quants(group: &[Self]) -> [__m512i; 4] {
        two_bits(&group[0].qs)
    }
}

impl WideGroup for Q8_0 {
    const ROW_ALONE: bool = true;

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn wide_quants(group: &[Self]) -> [__m512i; 4] {
        let group: &[Self; LANES] = group.as_array().expect("eight blocks");
        let bias = _mm512_set1_epi8(SIGN_BIAS as i8);
        let mut vectors = [_mm512_setzero_si512(); 4];
        for (vector, pair) in vectors.iter_mut().zip(group.as_chunks::<2>().0) {
            *vector = _mm512_xor_si512(two(load_half(&pair[0].qs), load_half(&pair[1].qs)), bias);
        }
        vectors
    }
}

impl<B: NibbleBlock> WideGroup for B {
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn wide_quants(group: &[Self]) -> [__m512i; 4] {
        let mut vectors = nibbles(|s| group[s].qs());
        if B::FIFTH {
            vectors = add_fifth_bits(vectors, |s| group[s].qh());
        }
        let bias = if B::MAX_QUANT.is_none() { SIGN_BIAS } else { 0 };
        match B::CODEBOOK {
            Some(codebook) => look_up(vectors, codebook.map(|value| value ^ bias)),
            None => vectors,
        }
    }
}

impl WideGroup for Iq4Xs {
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn wide_quants(group: &[Self]) -> [__m512i; 4] {
        look_up(nibbles(|s| &group[0].qs[s]), NON_LINEAR_CODEBOOK.map(|value| value ^ SIGN_BIAS))
    }
}

impl WideGroup for Q2K {
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn wide_quants(group: &[Self]) -> [__m512i; 4] {
        two_bits(&group[0].qs)
    }
}

impl WideGroup for Q3K {
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn wide_quants(group: &[Self]) -> [__m512i; 4] {
        let mut vectors = two_bits(&group[0].qs);
        // Bit `s` of every byte (sub-block `s`) moves to bit 2 of the same byte.
        let mut bits = _mm512_rolv_epi64(twice(&group[0].hmask), shift_two(2, 1));
        for vector in &mut vectors {
            let third = _mm512_and_si512(bits, _mm512_set1_epi8(4));
            *vector = _mm512_or_si512(*vector, third);
            bits = _mm512_ror_epi64::<2>(bits);
        }
        vectors
    }
}

impl WideGroup for Q4K {
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn wide_quants(group: &[Self]) -> [__m512i; 4] {
        pairs_of_nibbles(&group[0].qs)
    }
}

impl WideGroup for Q5K {
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn wide_quants(group: &[Self]) -> [__m512i; 4] {
        let mut vectors = pairs_of_nibbles(&group[0].qs);
        // Bit `s` of every byte, of sub-block `s`, goes to bit 4 of the same byte, for two
        // sub-blocks at a time.
        let mut bits = _mm512_rolv_epi64(twice(&group[0].qh), shift_two(4, 3));
        for vector in &mut vectors {
            let fifth = _mm512_and_si512(bits, _mm512_set1_epi8(16));
            *vector = _mm512_or_si512(*vector, fifth);
            bits = _mm512_ror_epi64::<2>(bits);
        }
        vectors
    }
}

impl WideGroup for Q6K {
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn wide_quants(group: &[Self]) -> [__m512i; 4] {
        let Self { ql, qh, .. } = &group[0];
        let mut vectors = [_mm512_setzero_si512(); 4];
        let mask = _mm512_set1_epi8(0x30);
        for ((ql, qh), vectors) in ql.iter().zip(qh).zip(vectors.as_chunks_mut::<2>().0) {
            let (low, high) = (load(ql), twice(qh));
            // Bits `2s` and `2s + 1` of every byte, of sub-block `s`, go to bits 4 and 5 of the
            // same byte.
            let first = _mm512_and_si512(_mm512_rolv_epi64(high, shift_two(4, 2)), mask);
            let second = _mm512_and_si512(_mm512_rolv_epi64(high, shift_two(0, 62)), mask);
            vectors[0] = _mm512_or_si512(low_nibbles(low), first);
            vectors[1] = _mm512_or_si512(low_nibbles(_mm512_srli_epi64::<4>(low)), second);
        }
        vectors
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn half_factors(group: &[Self]) -> (__m128i, __m128i) {
        (load_quarter(&group[0].scales), _mm_setzero_si128())
    }
}

/// Unpacking of a format with signed grid points.
macro_rules! signed_grid {
    ($($block:ident)*) => { $(
        impl WideGroup for $block {
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
            #[inline]
            unsafe fn wide_quants(group: &[Self]) -> [__m512i; 4] {
                signed_points(&group[0])
            }
        }
    )* };
}
signed_grid!(Iq2Xxs Iq2Xs Iq2S Iq3Xxs Iq3S);

/// Magnitudes from the grid, added to the offset or subtracted from it.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn signed_points<B: SignedGridBlock>(block: &B) -> [__m512i; 4] {
    let offset = _mm512_set1_epi8(B::OFFSET);
    let signs = block.signs();
    let mut vectors = [_mm512_setzero_si512(); 4];
    for (j, vector) in vectors.iter_mut().enumerate() {
        let ([a, b, c, d], [e, f, g, h]) = (block.magnitudes(2 * j), block.magnitudes(2 * j + 1));
        let [a, b, c, d, e, f, g, h] = [a, b, c, d, e, f, g, h].map(|eight| eight as i64);
        let magnitudes = _mm512_setr_epi64(a, b, c, d, e, f, g, h);
        let negative = u64::from(signs[2 * j]) | u64::from(signs[2 * j + 1]) << 32;
        let positive = _mm512_add_epi8(offset, magnitudes);
        *vector = _mm512_mask_sub_epi8(positive, negative, offset, magnitudes);
    }
    vectors
}

/// Unpacks 16 bytes per sub-block: low nibbles are the first 16 values, high nibbles the last 16.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn nibbles<'a>(qs: impl Fn(usize) -> &'a [u8; 16]) -> [__m512i; 4] {
    let shifts = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
    let mut vectors = [_mm512_setzero_si512(); 4];
    for (j, vector) in vectors.iter_mut().enumerate() {
        let packed = two(load_twice(qs(2 * j)), load_twice(qs(2 * j + 1)));
        *vector = low_nibbles(_mm512_srlv_epi64(packed, shifts));
    }
    vectors
}

/// Adds the fifth bits: bit `j` of `qh(s)` belongs to value `j` of sub-block `s`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn add_fifth_bits(mut vectors: [__m512i; 4], qh: impl Fn(usize) -> [u8; 4]) -> [__m512i; 4] {
    for (j, vector) in vectors.iter_mut().enumerate() {
        let [low, high] = [2 * j, 2 * j + 1].map(|s| u64::from(u32::from_le_bytes(qh(s))));
        let fifth = _mm512_maskz_set1_epi8(low | high << 32, 16);
        *vector = _mm512_or_si512(*vector, fifth);
    }
    vectors
}

/// Maps quants to the values of a codebook.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn look_up(mut vectors: [__m512i; 4], codebook: [u8; 16]) -> [__m512i; 4] {
    let table = _mm512_broadcast_i64x4(load_twice(&codebook));
    for vector in &mut vectors {
        *vector = _mm512_shuffle_epi8(table, *vector);
    }
    vectors
}

/// Unpacks 2-bit quants: bits `2s` and `2s + 1` of every byte of 32 belong to sub-block `s` of
/// four.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn two_bits(qs: &[[u8; 32]; 2]) -> [__m512i; 4] {
    let mask = _mm512_set1_epi8(3);
    let mut vectors = [_mm512_setzero_si512(); 4];
    for (qs, vectors) in qs.iter().zip(vectors.as_chunks_mut::<2>().0) {
        let packed = _mm512_srlv_epi64(twice(qs), shift_two(0, 2));
        vectors[0] = _mm512_and_si512(packed, mask);
        vectors[1] = _mm512_and_si512(_mm512_srli_epi64::<4>(packed), mask);
    }
    vectors
}

/// Unpacks 32 bytes per pair of sub-blocks: low nibbles are the first one, high nibbles the second.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn pairs_of_nibbles(qs: &[[u8; 32]; 4]) -> [__m512i; 4] {
    let mut vectors = [_mm512_setzero_si512(); 4];
    for (vector, qs) in vectors.iter_mut().zip(qs) {
        *vector = low_nibbles(_mm512_srlv_epi64(twice(qs), shift_two(0, 4)));
    }
    vectors
}

/// Low nibble of every byte.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn low_nibbles(v: __m512i) -> __m512i {
    _mm512_and_si512(v, _mm512_set1_epi8(15))
}

/// Shift counts for the 64-bit numbers of the lower and the upper half of a vector.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn shift_two(low: i64, high: i64) -> __m512i {
    _mm512_setr_epi64(low, low, low, low, high, high, high, high)
}

/// Broadcasts 32 bytes to both halves.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn twice(bytes: &[u8; 32]) -> __m512i {
    _mm512_broadcast_i64x4(load_half(bytes))
}

/// Concatenates two halves.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn two(low: __m256i, high: __m256i) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

#[cfg(test)]
mod tests;
