//! `Q4_K`: 256 values of 4 bits; scale and minimum of 6 bits per 32 values,
//! `x = d * sc * q - dmin * mn`.
//!
//! 32 bytes of quants hold two sub-blocks: the even one in the low nibbles, the odd one in the high
//! nibbles.

use bytemuck::{Pod, Zeroable};

use super::importance::Importance;
use super::k_quants::PackedScales;
use super::search::{AffineScales, fit_affine_block};
use super::{Factors, QuantBlock, SUB_BLOCK};

/// One quant block: 144 bytes for 256 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Q4K {
    pub(crate) scales: PackedScales,
    pub(crate) qs: [[u8; 32]; 4],
}

impl QuantBlock for Q4K {
    const LEN: usize = 256;
    const MAX_QUANT: Option<u8> = Some(15);
    const HAS_MIN: bool = true;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        for (qs, quants) in self.qs.iter().zip(quants.chunks_exact_mut(2)) {
            for l in 0..32 {
                quants[0][l] = qs[l] & 15;
                quants[1][l] = qs[l] >> 4;
            }
        }
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        self.scales.factors(factors);
    }

    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        let (AffineScales { d, dmin, scales, mins }, quants) =
            fit_affine_block::<32, 8>(values, importance, 15, 63);
        let mut qs = [[0; 32]; 4];
        for (pair, qs) in qs.iter_mut().enumerate() {
            for (l, q) in qs.iter_mut().enumerate() {
                *q = quants[2 * pair][l] | quants[2 * pair + 1][l] << 4;
            }
        }
        Self { scales: PackedScales::new(d, dmin, &scales, &mins), qs }
    }
}
