//! `Q4_1` rows: as `Q4_0`, with an offset in place of the middle. See `pieces.rs`.

use std::arch::x86_64::*;

use super::pieces::unpack_nibbles;
use super::rows::{Group, dot_pieces};
use super::vector::{negate, widen_halves};
use crate::activations::{Order, Q8Group};
use crate::format::Q4_1;
use crate::lanes::LANES;

impl Group for Q4_1 {
    const ORDER: Order = Order::Pieces;

    type Weights = [__m256i; 8];

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        let group: &[Self; LANES] = group.as_array().expect("eight blocks");
        unpack_nibbles(group.each_ref().map(|block| &block.qs))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        let group: &[Self; LANES] = group.as_array().expect("eight blocks");
        let offsets = widen_halves(group.each_ref().map(|block| block.m));
        (widen_halves(group.each_ref().map(|block| block.d)), negate(offsets))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        dot_pieces::<Self>(weights, &x.quants)
    }
}
