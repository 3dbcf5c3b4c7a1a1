//! Rows of the formats with 32 values and 4-bit quants ([`NibbleBlock`]): the lanes are the quant
//! blocks. Fifth bits, table look-up and offset of a format are compile-time constants. See
//! `pieces.rs`.

use std::arch::x86_64::*;

use super::pieces::{add_fifth_bits, dot_signed, look_up, unpack_nibbles};
use super::rows::{Group, dot_pieces};
use super::vector::{load, load_f32, negate, widen_halves};
use crate::lanes::LANES;
use crate::matmul::activations::{Order, Q8Group};
use crate::quant::NibbleBlock;

impl<B: NibbleBlock> Group for B {
    const ORDER: Order = Order::Pieces;

    type Weights = [__m256i; 8];

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn quants(group: &[Self]) -> Self::Weights {
        let group: &[Self; LANES] = group.as_array().expect("eight blocks");
        let mut quants = unpack_nibbles(group.each_ref().map(B::qs));
        if B::FIFTH {
            add_fifth_bits(&mut quants, group.each_ref().map(B::qh));
        }
        match B::CODEBOOK {
            Some(codebook) => look_up(quants, codebook),
            None => quants,
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(group: &[Self]) -> (__m256, __m256) {
        let group: &[Self; LANES] = group.as_array().expect("eight blocks");
        let mins =
            if B::HAS_MIN { negate(widen_halves(group.each_ref().map(B::m))) } else { _mm256_setzero_ps() };
        let scales = if B::E8M0 {
            load_f32(&group.each_ref().map(B::scale))
        } else {
            widen_halves(group.each_ref().map(B::d))
        };
        (scales, mins)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn dot(weights: &Self::Weights, x: &Q8Group) -> __m256i {
        if B::MAX_QUANT.is_none() {
            return dot_signed(weights, &x.quants);
        }
        let isum = dot_pieces::<B>(weights, &x.quants);
        if B::OFFSET == 0 {
            return isum;
        }
        let offset = _mm256_set1_epi16(i16::from(B::OFFSET));
        _mm256_sub_epi32(isum, _mm256_madd_epi16(load(&x.halves), offset))
    }
}
