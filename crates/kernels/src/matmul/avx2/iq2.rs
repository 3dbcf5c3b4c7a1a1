//! `IQ2_XXS`, `IQ2_XS` and `IQ2_S` rows: points of eight values, in [`Order::Eights`]; signs are
//! applied to the activations. See `grids.rs`.

use std::arch::x86_64::*;

use super::grids::{Choice, Table, add_even_sign, eights, four_even_signs, nibbles_of_words, upper_factors};
use super::pairs::splat_half;
use super::rows::Group;
use super::vector::{load, load_half};
use crate::matmul::activations::{Order, Q8Group};
use crate::quant::codebook::grids;
use crate::quant::{Iq2S, Iq2Xs, Iq2Xxs};

static IQ2_XXS: Table<u64, 256> = Table::new(&grids::IQ2_XXS);
static IQ2_XS: Table<u64, 512> = Table::new(&grids::IQ2_XS);
static IQ2_S: Table<u64, 1024> = Table::new(&grids::IQ2_S);

/// Four sub-blocks in registers.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Four {
    magnitudes: [__m256i; 4],
    /// -1 or 1 per value.
    signs: [__m256i; 4],
    /// Integer scales of the first and of the second halves of the sub-blocks, as 16-bit numbers.
    scales: [__m256i; 2],
}

/// Bytes for the signs, a bit each, in 16-bit numbers: [`nibbles_of_words`] of a sign byte per
/// eight values.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn signs(words: __m256i) -> [__m256i; 4] {
    let (choice, nibbles) = (Choice::new(-1, 1), nibbles_of_words(words));
    // Two sub-blocks in each half: word `l` of both, each of its bytes for four values.
    let of = |l: i64| {
        let word = |at: i64| (at * 0x0101_0101) | ((at + 1) * 0x0101_0101_0000_0000);
        let (first, second) = (word(2 * l), word(8 + 2 * l));
        choice.of(_mm256_shuffle_epi8(nibbles, _mm256_setr_epi64x(first, second, first, second)))
    };
    [of(0), of(1), of(2), of(3)]
}

/// `2 * s + 1` of the 4-bit scales, the low nibble of byte `s` that of the first half of sub-block
/// `s`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn half_scales(scales: [u8; 8]) -> [[__m256i; 2]; 2] {
    let both = _mm_cvtsi64_si128(i64::from_le_bytes(scales));
    let nibbles = _mm_unpacklo_epi8(both, _mm_srli_epi16::<4>(both));
    let nibbles = _mm_and_si128(nibbles, _mm_set1_epi8(15));
    let odd = _mm_add_epi8(_mm_add_epi8(nibbles, nibbles), _mm_set1_epi8(1));
    // Byte `2s + half` to the four 16-bit numbers of lane `s`.
    let odd = _mm256_broadcastsi128_si256(odd);
    let of = |first: i64| {
        let byte = |at: i64| (0x8000_i64 | at).wrapping_mul(0x0001_0001_0001_0001);
        let place = _mm256_setr_epi64x(byte(first), byte(first + 2), byte(first + 4), byte(first + 6));
        _mm256_shuffle_epi8(odd, place)
    };
    [[of(0), of(1)], [of(8), of(9)]]
}

impl Four {
    /// Integer dot products, of each sub-block two numbers to add. `set`: 0 for sub-blocks 0 to 3,
    /// 1 for 4 to 7.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn isums(&self, x: &Q8Group, set: usize) -> __m256i {
        let product = |l: usize| {
            let x = _mm256_sign_epi8(load(&x.quants[4 * set + l]), self.signs[l]);
            _mm256_maddubs_epi16(self.magnitudes[l], x)
        };
        // At most 2 * 2 * 43 * 127 = 21844.
        let first = _mm256_add_epi16(product(0), product(1));
        let second = _mm256_add_epi16(product(2), product(3));
        let [scale, scale_of_second] = self.scales;
        _mm256_add_epi32(_mm256_madd_epi16(first, scale), _mm256_madd_epi16(second, scale_of_second))
    }
}

/// Sums of neighbours in the numbers of sub-blocks 0 to 3 and 4 to 7.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn join(low: __m256i, high: __m256i) -> __m256i {
    let (low, high) = (_mm256_castsi256_ps(low), _mm256_castsi256_ps(high));
    let even = _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(low, high));
    let odd = _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(low, high));
    // Sub-blocks 0, 1, 4, 5, 2, 3, 6, 7 to 0, 1, 2, ..., 7.
    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_add_epi32(even, odd))
}

/// The products of a format from its function that unpacks four sub-blocks.
macro_rules! products {
    ($four:ident) => {
        const ORDER: Order = Order::Eights;

        type Weights = [Four; 2];

        #[target_feature(enable = "avx2,fma,f16c")]
        #[inline]
        unsafe fn quants(group: &[Self]) -> Self::Weights {
            [$four(&group[0], 0), $four(&group[0], 1)]
        }

        #[target_feature(enable = "avx2,fma,f16c")]
        #[inline]
        unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
            join(weights[0].isums(x, 0), weights[1].isums(x, 1))
        }

        const ONCE: bool = true;

        #[target_feature(enable = "avx2,fma,f16c")]
        #[inline]
        unsafe fn dot_once(group: &[Self], x: &Q8Group) -> __m256i {
            join($four(&group[0], 0).isums(x, 0), $four(&group[0], 1).isums(x, 1))
        }
    };
}

/// 32 bits per sub-block of `IQ2_XXS`: signs and scale.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn packed_of_iq2_xxs(block: &Iq2Xxs) -> __m256i {
    let [a, b]: &[[u8; 32]; 2] = bytemuck::cast_ref(&block.qs);
    let [a, b] = [a, b].map(|v| _mm256_castsi256_ps(load(v)));
    // Of two sub-blocks each: 0, 1, 4, 5, 2, 3, 6, 7.
    let odd = _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(a, b));
    _mm256_permute4x64_epi64::<0b11_01_10_00>(odd)
}

/// Half `set` of two.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn half_of(v: __m256i, set: usize) -> __m128i {
    if set == 0 { _mm256_castsi256_si128(v) } else { _mm256_extracti128_si256::<1>(v) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn four_of_iq2_xxs(block: &Iq2Xxs, set: usize) -> Four {
    let halves: &[[u8; 32]; 2] = bytemuck::cast_ref(&block.qs);
    // The first four bytes of each sub-block, as 16-bit numbers.
    let place =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 1, -1, 2, -1, 3, -1, 8, -1, 9, -1, 10, -1, 11, -1));
    let sign_bytes = half_of(four_even_signs(packed_of_iq2_xxs(block)), set);
    Four {
        magnitudes: eights(&IQ2_XXS, _mm256_shuffle_epi8(load(&halves[set]), place)),
        signs: signs(_mm256_cvtepu8_epi16(sign_bytes)),
        scales: [_mm256_set1_epi16(1); 2],
    }
}

impl Group for Iq2Xxs {
    products!(four_of_iq2_xxs);

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        let unit = _mm256_mul_ps(splat_half(group[0].d), _mm256_set1_ps(Self::UNIT));
        (_mm256_mul_ps(unit, upper_factors(packed_of_iq2_xxs(&group[0]))), _mm256_setzero_ps())
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn four_of_iq2_xs(block: &Iq2Xs, set: usize) -> Four {
    let halves: &[[u8; 32]; 2] = bytemuck::cast_ref(&block.qs);
    let codes = load(&halves[set]);
    let seven = _mm256_srli_epi16::<9>(codes);
    let words = add_even_sign(seven, _mm256_xor_si256(seven, _mm256_srli_epi16::<13>(codes)));
    Four { magnitudes: eights(&IQ2_XS, codes), signs: signs(words), scales: half_scales(block.scales)[set] }
}

impl Group for Iq2Xs {
    products!(four_of_iq2_xs);

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        let unit = _mm256_set1_ps(Self::UNIT);
        (_mm256_mul_ps(splat_half(group[0].d), unit), _mm256_setzero_ps())
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn four_of_iq2_s(block: &Iq2S, set: usize) -> Four {
    let [low, sign_bytes] = [&block.qs, &block.signs].map(|bytes| {
        let halves: &[[u8; 16]; 2] = bytemuck::cast_ref(bytes);
        _mm256_cvtepu8_epi16(load_half(&halves[set]))
    });
    // Bits `2l` and `2l + 1` of byte `s` to bits 8 and 9 of number `l` of lane `s`.
    let byte = |s: i64| (0x8000 | (4 * set as i64 + s)).wrapping_mul(0x0001_0001_0001_0001);
    let place = _mm256_setr_epi64x(byte(0), byte(1), byte(2), byte(3));
    let high = _mm256_shuffle_epi8(_mm256_set1_epi64x(i64::from_le_bytes(block.qh)), place);
    let high = _mm256_mullo_epi16(high, _mm256_set1_epi64x(0x0004_0010_0040_0100));
    let high = _mm256_and_si256(high, _mm256_set1_epi16(0x300));
    Four {
        magnitudes: eights(&IQ2_S, _mm256_or_si256(low, high)),
        signs: signs(sign_bytes),
        scales: half_scales(block.scales)[set],
    }
}

impl Group for Iq2S {
    products!(four_of_iq2_s);

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        let unit = _mm256_set1_ps(Self::UNIT);
        (_mm256_mul_ps(splat_half(group[0].d), unit), _mm256_setzero_ps())
    }
}
