//! `Q4_0` rows: blocks `p` and `p + 4` share a vector; transposed, the lanes are the blocks.

use std::arch::x86_64::*;

use super::rows::{Group, dot_pieces};
use super::vector::{load, load_pair, nibbles, transpose, widen_halves};
use crate::activations::{Order, Q8Group};
use crate::format::{Q4_0, QuantBlock};
use crate::lanes::LANES;

impl Group for Q4_0 {
    const ORDER: Order = Order::Pieces;

    type Weights = [__m256i; 8];

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        let group: &[Self; LANES] = group.as_array().expect("eight blocks");
        let mut packed = [_mm256_setzero_si256(); 4];
        for (p, packed) in packed.iter_mut().enumerate() {
            *packed = load_pair(&group[p].qs, &group[p + 4].qs);
        }
        let mut weights = [_mm256_setzero_si256(); 8];
        for (i, &packed) in transpose(packed).iter().enumerate() {
            (weights[i], weights[i + 4]) = nibbles(packed);
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
        let isum = dot_pieces::<Self>(weights, &x.quants);
        let offset = _mm256_set1_epi16(i16::from(Self::OFFSET));
        _mm256_sub_epi32(isum, _mm256_madd_epi16(load(&x.halves), offset))
    }
}
