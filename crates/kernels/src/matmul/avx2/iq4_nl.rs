//! `IQ4_NL` rows: as `Q4_0`, with a table look-up after the transposition. See `pieces.rs`.

use std::arch::x86_64::*;

use super::pieces::{dot_signed, look_up, unpack_nibbles};
use super::rows::Group;
use super::vector::widen_halves;
use crate::activations::{Order, Q8Group};
use crate::format::Iq4Nl;
use crate::lanes::LANES;

impl Group for Iq4Nl {
    const ORDER: Order = Order::Pieces;

    type Weights = [__m256i; 8];

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        let group: &[Self; LANES] = group.as_array().expect("eight blocks");
        look_up(unpack_nibbles(group.each_ref().map(|block| &block.qs)))
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
        dot_signed(weights, &x.quants)
    }
}
