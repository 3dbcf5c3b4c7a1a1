//! Shared code of the formats that unpack sub-block by sub-block
//! ([`Order::Plain`](crate::matmul::activations::Order::Plain)): vector `s` holds sub-block `s`,
//! the first half of its values in the lower half.

use std::arch::x86_64::*;

use super::vector::{fold_halves, load, sums_of_four};
use crate::lanes::LANES;
use crate::matmul::activations::Q8Group;

/// Products of unsigned bytes (at most 128) and activations, added in fours.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fours(weights: __m256i, x: __m256i) -> __m256i {
    _mm256_madd_epi16(_mm256_maddubs_epi16(weights, x), _mm256_set1_epi16(1))
}

/// Integer dot products of unsigned bytes (at most 128), one per sub-block.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn dot_unsigned(weights: &[__m256i; LANES], x: &Q8Group) -> [__m256i; LANES] {
    let mut products = [_mm256_setzero_si256(); LANES];
    for ((product, &w), x) in products.iter_mut().zip(weights).zip(&x.quants) {
        *product = fours(w, load(x));
    }
    products
}

/// Integer scales of halves in the order of [`scaled_sums`].
#[derive(Clone, Copy)]
pub(in crate::matmul) struct HalfScales([__m256i; 2]);

impl HalfScales {
    /// `scales`: byte `2s + h` is the scale of half `h` of sub-block `s`; not negative.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn new(scales: __m128i) -> Self {
        // First halves of sub-blocks 0 to 3, second halves of these; the same for 4 to 7.
        let order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
        let ordered = _mm_shuffle_epi8(scales, order);
        Self([_mm256_cvtepu8_epi32(ordered), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(ordered))])
    }
}

/// Sum of each sub-block's products, those of each half times its scale.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn scaled_sums(products: [__m256i; LANES], HalfScales(scales): &HalfScales) -> __m256i {
    let [a, b, c, d, e, f, g, h] = products;
    let first = _mm256_mullo_epi32(sums_of_four([a, b, c, d]), scales[0]);
    let last = _mm256_mullo_epi32(sums_of_four([e, f, g, h]), scales[1]);
    fold_halves(first, last)
}
