//! `Q2_K` rows: two vectors hold all quants, four sub-blocks in each; see `pairs.rs`. The minima of
//! the halves are integers too, and meet the sums of the activations.

use std::arch::x86_64::*;

use super::pairs;
use super::rows::Group;
use super::vector::{load, load_half};
use crate::matmul::activations::{Order, Q8Group};
use crate::quant::Q2K;

/// A quant block of `Q2_K` in registers.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Weights {
    pairs: pairs::Weights,
    /// The integer minima in the order of the values, as 16-bit numbers.
    mins: __m256i,
}

impl Group for Q2K {
    const ORDER: Order = Order::Pairs;

    type Weights = Weights;

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        let block = &group[0];
        let low_4 = _mm_set1_epi8(15);
        let both = load_half(&block.scales);
        let mins = _mm_and_si128(_mm_srli_epi16::<4>(both), low_4);
        Weights {
            pairs: pairs::weights::<Self>(pairs::unpack_two_bits(&block.qs), _mm_and_si128(both, low_4)),
            mins: _mm256_cvtepu8_epi16(mins),
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        (pairs::splat_half(group[0].d), pairs::splat_half(group[0].dmin))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        pairs::dot::<Self>(&weights.pairs, x)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn min_dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        _mm256_madd_epi16(load(&x.halves), weights.mins)
    }
}
