//! `Q8_0` rows: `|w| * sign(x, w)` through `maddubs`, 32 bits per pair at once.

use std::arch::x86_64::*;

use super::rows::Group;
use super::vector::{load, sums, widen_halves};
use crate::lanes::LANES;
use crate::matmul::activations::{Order, Q8Group};
use crate::quant::Q8_0;

impl Group for Q8_0 {
    const ORDER: Order = Order::Plain;

    type Weights = [__m256i; LANES];

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        let mut weights = [_mm256_setzero_si256(); LANES];
        for (w, block) in weights.iter_mut().zip(group) {
            *w = load(&block.qs);
        }
        weights
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        let group: &[Self; LANES] = group.as_array().expect("eight blocks");
        (widen_halves(group.each_ref().map(|block| block.d)), _mm256_setzero_ps())
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        let ones = _mm256_set1_epi16(1);
        let mut products = [_mm256_setzero_si256(); LANES];
        for ((product, &w), x) in products.iter_mut().zip(weights).zip(&x.quants) {
            // At most 2 * 128 * 127 per pair, which fits into 16 bits.
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(load(x), w));
            *product = _mm256_madd_epi16(pairs, ones);
        }
        sums(products)
    }
}
