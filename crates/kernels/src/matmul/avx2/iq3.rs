//! `IQ3_XXS` and `IQ3_S` rows: points of four values, in [`Order::Pieces`]. See `grids.rs`.

use std::arch::x86_64::*;

use super::grids::{Choice, Table, four_even_signs, fours, upper_factors};
use super::pairs::splat_half;
use super::rows::Group;
use super::vector::load;
use crate::lanes::LANES;
use crate::matmul::activations::{Order, Q8Group};
use crate::quant::codebook::grids;
use crate::quant::{Iq3S, Iq3Xxs, QuantBlock};

static IQ3_XXS: Table<u32, 256> = Table::new(&grids::IQ3_XXS);
/// `(15 + magnitude) / 2` instead of magnitudes.
static IQ3_S: Table<u32, 512> = Table::new(&halves_above(&grids::IQ3_S));

/// `(15 + magnitude) / 2` of odd magnitudes of at most 15.
const fn halves_above<const N: usize>(points: &[u32; N]) -> [u32; N] {
    let mut halves = *points;
    let mut i = 0;
    while i < N {
        // Sums are even and at most 30: nothing crosses a byte.
        halves[i] = (halves[i] + 0x0f0f_0f0f) >> 1;
        i += 1;
    }
    halves
}

/// Grid indices of a quant block as 16-bit numbers: vector `i` for pieces `i` and `i + 4` of all
/// sub-blocks. `qs`: low eight bits; bit `i` of `high[s]`: the ninth bit of index `i` of sub-block
/// `s`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn indices(qs: &[[u8; 8]; LANES], high: [u8; LANES]) -> [__m256i; 4] {
    let [first, last]: &[[u8; 32]; 2] = bytemuck::cast_ref(qs);
    // Transposed: indices 0 to 3 of four sub-blocks in the lower half, 4 to 7 in the upper half.
    let halves = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    let four_by_four =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    let [first, last] = [first, last]
        .map(|qs| _mm256_shuffle_epi8(_mm256_permutevar8x32_epi32(load(qs), halves), four_by_four));
    // Indices 0, 1, 4, 5 and 2, 3, 6, 7 of all sub-blocks.
    let low = [_mm256_unpacklo_epi32(first, last), _mm256_unpackhi_epi32(first, last)];
    let high = _mm256_set1_epi64x(i64::from_le_bytes(high));
    let bit = |i: u32| i64::from_ne_bytes([1 << i; 8]);
    let bits = [[0, 1, 4, 5], [2, 3, 6, 7]].map(|[a, b, c, d]| {
        let single = _mm256_setr_epi64x(bit(a), bit(b), bit(c), bit(d));
        _mm256_min_epu8(_mm256_and_si256(high, single), _mm256_set1_epi8(1))
    });
    [
        _mm256_unpacklo_epi8(low[0], bits[0]),
        _mm256_unpackhi_epi8(low[0], bits[0]),
        _mm256_unpacklo_epi8(low[1], bits[1]),
        _mm256_unpackhi_epi8(low[1], bits[1]),
    ]
}

/// Bytes for the signs of pieces `i` and `i + 4`. Bit `j` of a lane of `signs`: value `j` of its
/// sub-block.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn choose(choice: Choice, signs: __m256i, i: usize) -> [__m256i; 2] {
    let signs = if i.is_multiple_of(2) { signs } else { _mm256_srli_epi32::<4>(signs) };
    let byte = |at: i32| {
        let at = at * 0x0101_0101;
        let lanes = _mm_setr_epi32(at, at + 0x0404_0404, at + 0x0808_0808, at + 0x0c0c_0c0c);
        choice.of(_mm256_shuffle_epi8(signs, _mm256_broadcastsi128_si256(lanes)))
    };
    [byte(i as i32 / 2), byte(i as i32 / 2 + 2)]
}

impl Group for Iq3S {
    const ORDER: Order = Order::Pieces;

    /// Numbers from 0 to 15: twice as much, less 15, is a value.
    type Weights = [__m256i; 8];

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        let indices = indices(&group[0].qs, group[0].qh);
        let pair = |i: usize| pair_of_iq3_s(&group[0], indices[i], i);
        let ([a, e], [b, f], [c, g], [d, h]) = (pair(0), pair(1), pair(2), pair(3));
        [a, b, c, d, e, f, g, h]
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        let packed = _mm256_set1_epi32(i32::from_le_bytes(group[0].scales));
        // Nibble `s` to the upper bits of lane `s`.
        let packed = _mm256_sllv_epi32(packed, _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0));
        (_mm256_mul_ps(splat_half(group[0].d), upper_factors(packed)), _mm256_setzero_ps())
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        let product = |i: usize| _mm256_maddubs_epi16(weights[i], load(&x.quants[i]));
        // At most 8 * 2 * 15 * 127 = 30480.
        let pairs = (1..8).fold(product(0), |pairs, i| _mm256_add_epi16(pairs, product(i)));
        isum_of_iq3_s(pairs, x)
    }

    const ONCE: bool = true;

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot_once(group: &[Self], x: &Q8Group) -> __m256i {
        let indices = indices(&group[0].qs, group[0].qh);
        let products = |i: usize| {
            let [a, b] = pair_of_iq3_s(&group[0], indices[i], i);
            let b = _mm256_maddubs_epi16(b, load(&x.quants[i + 4]));
            _mm256_add_epi16(_mm256_maddubs_epi16(a, load(&x.quants[i])), b)
        };
        let first = _mm256_add_epi16(products(0), products(1));
        isum_of_iq3_s(_mm256_add_epi16(_mm256_add_epi16(first, products(2)), products(3)), x)
    }
}

/// Pieces `i` and `i + 4`, as numbers from 0 to 15.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn pair_of_iq3_s(block: &Iq3S, indices: __m256i, i: usize) -> [__m256i; 2] {
    let [a, b] = fours(&IQ3_S, indices);
    // Negation is `15 - q`.
    let [flip_a, flip_b] = choose(Choice::new(15, 0), load(&block.signs), i);
    [_mm256_xor_si256(a, flip_a), _mm256_xor_si256(b, flip_b)]
}

/// Integer dot products from those of the numbers from 0 to 15, added in pairs.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn isum_of_iq3_s(pairs: __m256i, x: &Q8Group) -> __m256i {
    let twice = _mm256_madd_epi16(pairs, _mm256_set1_epi16(2));
    let offset = _mm256_set1_epi16(i16::from(Iq3S::OFFSET));
    _mm256_sub_epi32(twice, _mm256_madd_epi16(load(&x.halves), offset))
}

/// Pieces `i` and `i + 4` of a quant block of `IQ3_XXS`.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Pair {
    magnitudes: [__m256i; 2],
    /// -1 or 1 per value.
    signs: [__m256i; 2],
}

impl Pair {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn new(indices: __m256i, signs: __m256i, i: usize) -> Self {
        Self { magnitudes: fours(&IQ3_XXS, indices), signs: choose(Choice::new(-1, 1), signs, i) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn isum(&self, x: &Q8Group, i: usize) -> __m256i {
        let product = |p: usize| {
            let x = _mm256_sign_epi8(load(&x.quants[i + 4 * p]), self.signs[p]);
            _mm256_maddubs_epi16(self.magnitudes[p], x)
        };
        // At most 2 * 2 * 62 * 127 = 31496.
        _mm256_madd_epi16(_mm256_add_epi16(product(0), product(1)), _mm256_set1_epi16(1))
    }
}

/// Sum of four vectors of 32-bit numbers.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn sum([a, b, c, d]: [__m256i; 4]) -> __m256i {
    _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d))
}

impl Group for Iq3Xxs {
    const ORDER: Order = Order::Pieces;

    type Weights = [Pair; 4];

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        let indices = indices(&group[0].qs, [0; LANES]);
        let signs = four_even_signs(load(&group[0].packed));
        let pair = |i: usize| Pair::new(indices[i], signs, i);
        [pair(0), pair(1), pair(2), pair(3)]
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        let unit = _mm256_mul_ps(splat_half(group[0].d), _mm256_set1_ps(Self::UNIT));
        (_mm256_mul_ps(unit, upper_factors(load(&group[0].packed))), _mm256_setzero_ps())
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        let isum = |i: usize| weights[i].isum(x, i);
        sum([isum(0), isum(1), isum(2), isum(3)])
    }

    const ONCE: bool = true;

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot_once(group: &[Self], x: &Q8Group) -> __m256i {
        let indices = indices(&group[0].qs, [0; LANES]);
        let signs = four_even_signs(load(&group[0].packed));
        let isum = |i: usize| Pair::new(indices[i], signs, i).isum(x, i);
        sum([isum(0), isum(1), isum(2), isum(3)])
    }
}
