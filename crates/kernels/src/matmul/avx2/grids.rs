//! `IQ2` and `IQ3` rows: magnitudes from the tables of grid points, eight values (or two times
//! four) per load; signs are applied to the activations. See `plain.rs`.

use std::arch::x86_64::*;

use super::pairs::splat_half;
use super::plain::{HalfScales, fours, scaled_sums};
use super::rows::Group;
use super::vector::{load, store, sums};
use crate::lanes::LANES;
use crate::matmul::activations::{Order, Q8Group};
use crate::quant::{Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, SignedGridBlock};

/// Quant block in registers.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Weights<S> {
    magnitudes: [__m256i; LANES],
    /// -1 or 1 per value.
    signs: [__m256i; LANES],
    /// [`HalfScales`] of the formats that have them.
    scales: S,
}

/// Loads the magnitudes of a quant block; bit `j` of `signs[s]` is set where value `j` is negative.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn weights<B: SignedGridBlock, S>(block: &B, signs: &[u32; LANES], scales: S) -> Weights<S> {
    let zero = _mm256_setzero_si256();
    let mut weights = Weights { magnitudes: [zero; LANES], signs: [zero; LANES], scales };
    // Byte `i / 8` of the bits to byte `i`, of which bit `i % 8` counts.
    let (low, high) = (0x0101_0101_0101_0101, 0x0303_0303_0303_0303);
    let place = _mm256_setr_epi64x(0, low, 2 * low, high);
    let single = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let one = _mm256_set1_epi8(1);
    for s in 0..LANES {
        let [a, b, c, d] = block.magnitudes(s).map(|eight| eight as i64);
        weights.magnitudes[s] = _mm256_setr_epi64x(a, b, c, d);
        let bits = _mm256_shuffle_epi8(_mm256_set1_epi32(signs[s] as i32), place);
        let negative = _mm256_cmpeq_epi8(_mm256_and_si256(bits, single), single);
        weights.signs[s] = _mm256_or_si256(negative, one);
    }
    weights
}

/// Products with the activations, added in fours.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn products<S>(weights: &Weights<S>, x: &Q8Group) -> [__m256i; LANES] {
    let mut products = [_mm256_setzero_si256(); LANES];
    for (s, product) in products.iter_mut().enumerate() {
        let x = _mm256_sign_epi8(load(&x.quants[s]), weights.signs[s]);
        *product = fours(weights.magnitudes[s], x);
    }
    products
}

/// Adds the eighth sign of every byte, so that the number of negative values is even.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn even_signs(seven: __m256i) -> [u32; LANES] {
    let odd = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0,
    ));
    let folded = _mm256_xor_si256(seven, _mm256_srli_epi16::<4>(seven));
    let parity = _mm256_shuffle_epi8(odd, _mm256_and_si256(folded, _mm256_set1_epi8(15)));
    let mut signs = [0; LANES];
    store(&mut signs, _mm256_or_si256(seven, parity));
    signs
}

/// Signs of sub-blocks from four times seven bits in each lane.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn four_even_signs(packed: __m256i) -> [u32; LANES] {
    let field = |v: __m256i, l: u32| _mm256_and_si256(v, _mm256_set1_epi32(127 << (8 * l)));
    let low = _mm256_or_si256(field(packed, 0), field(_mm256_slli_epi32::<1>(packed), 1));
    let high =
        _mm256_or_si256(field(_mm256_slli_epi32::<2>(packed), 2), field(_mm256_slli_epi32::<3>(packed), 3));
    even_signs(_mm256_or_si256(low, high))
}

/// `unit * d * (2 * s + 1)` of the 4-bit scales in the upper bits of the lanes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn upper_scales(d: [u8; 2], unit: f32, packed: __m256i) -> __m256 {
    let twice = _mm256_slli_epi32::<1>(_mm256_srli_epi32::<28>(packed));
    let factors = _mm256_cvtepi32_ps(_mm256_add_epi32(twice, _mm256_set1_epi32(1)));
    _mm256_mul_ps(_mm256_mul_ps(splat_half(d), _mm256_set1_ps(unit)), factors)
}

/// `2 * s + 1` of the nibbles of a 64-bit number, the low nibble of a byte first.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn odd_nibbles(scales: [u8; 8]) -> __m128i {
    let both = _mm_cvtsi64_si128(i64::from_le_bytes(scales));
    let nibbles = _mm_unpacklo_epi8(both, _mm_srli_epi16::<4>(both));
    let nibbles = _mm_and_si128(nibbles, _mm_set1_epi8(15));
    _mm_add_epi8(_mm_add_epi8(nibbles, nibbles), _mm_set1_epi8(1))
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

impl Group for Iq2Xxs {
    const ORDER: Order = Order::Plain;

    type Weights = Weights<()>;

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        weights(&group[0], &four_even_signs(packed_of_iq2_xxs(&group[0])), ())
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        let packed = packed_of_iq2_xxs(&group[0]);
        (upper_scales(group[0].d, Self::UNIT, packed), _mm256_setzero_ps())
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        sums(products(weights, x))
    }
}

impl Group for Iq3Xxs {
    const ORDER: Order = Order::Plain;

    type Weights = Weights<()>;

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        weights(&group[0], &four_even_signs(load(&group[0].packed)), ())
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        (upper_scales(group[0].d, Self::UNIT, load(&group[0].packed)), _mm256_setzero_ps())
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        sums(products(weights, x))
    }
}

impl Group for Iq3S {
    const ORDER: Order = Order::Plain;

    type Weights = Weights<()>;

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        weights(&group[0], &group[0].signs(), ())
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        let packed = _mm256_set1_epi32(i32::from_le_bytes(group[0].scales));
        // Nibble `s` to the upper bits of lane `s`.
        let packed = _mm256_sllv_epi32(packed, _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0));
        (upper_scales(group[0].d, 1.0, packed), _mm256_setzero_ps())
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        sums(products(weights, x))
    }
}

impl Group for Iq2Xs {
    const ORDER: Order = Order::Plain;

    type Weights = Weights<HalfScales>;

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        let block = &group[0];
        let [a, b]: &[[u8; 32]; 2] = bytemuck::cast_ref(&block.qs);
        let [a, b] = [a, b].map(|v| _mm256_srli_epi16::<9>(load(v)));
        let seven = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi16(a, b));
        weights(block, &even_signs(seven), HalfScales::new(odd_nibbles(block.scales)))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        let unit = _mm256_set1_ps(Self::UNIT);
        (_mm256_mul_ps(splat_half(group[0].d), unit), _mm256_setzero_ps())
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        scaled_sums(products(weights, x), &weights.scales)
    }
}

impl Group for Iq2S {
    const ORDER: Order = Order::Plain;

    type Weights = Weights<HalfScales>;

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        let block = &group[0];
        weights(block, &block.signs(), HalfScales::new(odd_nibbles(block.scales)))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        let unit = _mm256_set1_ps(Self::UNIT);
        (_mm256_mul_ps(splat_half(group[0].d), unit), _mm256_setzero_ps())
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        scaled_sums(products(weights, x), &weights.scales)
    }
}
