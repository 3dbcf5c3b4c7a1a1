//! Unpacking against the description of each format.

use super::*;
use crate::quant::{Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1};

/// Blocks of arbitrary bytes.
fn group<B: WideGroup>(seed: usize) -> Vec<B> {
    let mut group = vec![B::zeroed(); LANES / B::SUB_BLOCKS];
    for (i, byte) in bytemuck::cast_slice_mut(&mut group).iter_mut().enumerate() {
        *byte = ((i + seed) * 7919 % 1009) as u8;
    }
    group
}

fn check<B: WideGroup>() {
    if !crate::Isa::Avx512.is_available() {
        println!("the AVX-512 unpacking is not compared: this CPU has no AVX-512 VNNI");
        return;
    }
    for seed in 0..8 {
        let group = group::<B>(seed);
        // SAFETY: the CPU has the features.
        let (found, expected) = unsafe { (B::wide_quants(&group), unpacked(&group)) };
        // SAFETY: as above.
        let different = |j: usize| unsafe { _mm512_cmpneq_epi8_mask(found[j], expected[j]) };
        assert_eq!([0, 1, 2, 3].map(different), [0; 4]);
    }
}

#[test]
fn quants_are_those_of_the_description() {
    check::<Q8_0>();
    check::<Q4_0>();
    check::<Q4_1>();
    check::<Q5_0>();
    check::<Q5_1>();
    check::<Q2K>();
    check::<Q3K>();
    check::<Iq4Nl>();
    check::<Iq4Xs>();
    check::<Q4K>();
    check::<Q5K>();
    check::<Q6K>();
    check::<Mxfp4>();
    check::<Iq1S>();
    check::<Iq1M>();
    check::<Iq2Xxs>();
    check::<Iq2Xs>();
    check::<Iq2S>();
    check::<Iq3Xxs>();
    check::<Iq3S>();
    check::<Tq1>();
    check::<Tq2>();
}
