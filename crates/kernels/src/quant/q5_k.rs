//! `Q5_K`: 256 values of 5 bits; scale and minimum of 6 bits per 32 values,
//! `x = d * sc * q - dmin * mn`.
//!
//! The low four bits have the layout of `Q4_K`; bit `s` of `qh[l]` is the fifth bit of value `l` of
//! sub-block `s`.

use bytemuck::{Pod, Zeroable};

use super::importance::Importance;
use super::k_quants::PackedScales;
use super::search::{AffineScales, fit_affine_block};
use super::{Factors, QuantBlock, SUB_BLOCK};

/// One quant block: 176 bytes for 256 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Q5K {
    pub(crate) scales: PackedScales,
    pub(crate) qh: [u8; 32],
    pub(crate) qs: [[u8; 32]; 4],
}

impl QuantBlock for Q5K {
    const LEN: usize = 256;
    const MAX_QUANT: Option<u8> = Some(31);
    const HAS_MIN: bool = true;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        for (pair, (qs, quants)) in self.qs.iter().zip(quants.chunks_exact_mut(2)).enumerate() {
            for l in 0..32 {
                let high = self.qh[l] >> (2 * pair);
                quants[0][l] = (qs[l] & 15) | (high & 1) << 4;
                quants[1][l] = (qs[l] >> 4) | (high & 2) << 3;
            }
        }
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        self.scales.factors(factors);
    }

    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        let (AffineScales { d, dmin, scales, mins }, quants) =
            fit_affine_block::<32, 8>(values, importance, 31, 63);
        let (mut qh, mut qs) = ([0; 32], [[0; 32]; 4]);
        for (s, quants) in quants.iter().enumerate() {
            for (l, q) in quants.iter().enumerate() {
                qs[s / 2][l] |= (q & 15) << (4 * (s % 2));
                qh[l] |= (q >> 4) << s;
            }
        }
        Self { scales: PackedScales::new(d, dmin, &scales, &mins), qh, qs }
    }
}
