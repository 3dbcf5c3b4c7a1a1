//! `Q6_K`: 256 values of 6 bits, offset by 32; signed scale of 8 bits per 16 values,
//! `x = d * sc * (q - 32)`.
//!
//! 128 values take 64 bytes of low bits and 32 bytes of high bits: sub-blocks 0 and 1 are the low
//! nibbles of `ql[0]` and `ql[1]`, sub-blocks 2 and 3 the high nibbles; bits `2s` and `2s + 1` of
//! `qh[l]` belong to sub-block `s`.

use bytemuck::{Pod, Zeroable};

use super::importance::Importance;
use super::search::{Integers, SymmetricScales, fit_symmetric_block};
use super::{Factors, QuantBlock, SUB_BLOCK, f32_to_half, half_to_f32};

/// One quant block: 210 bytes for 256 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Q6K {
    pub(crate) ql: [[[u8; 32]; 2]; 2],
    pub(crate) qh: [[u8; 32]; 2],
    pub(crate) scales: [[i8; 2]; 8],
    pub(crate) d: [u8; 2],
}

impl QuantBlock for Q6K {
    const LEN: usize = 256;
    const MAX_QUANT: Option<u8> = Some(63);
    const OFFSET: i8 = 32;
    const HALF_SCALES: bool = true;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        for ((ql, qh), quants) in self.ql.iter().zip(&self.qh).zip(quants.chunks_exact_mut(4)) {
            for l in 0..32 {
                quants[0][l] = (ql[0][l] & 15) | (qh[l] & 3) << 4;
                quants[1][l] = (ql[1][l] & 15) | (qh[l] >> 2 & 3) << 4;
                quants[2][l] = (ql[0][l] >> 4) | (qh[l] >> 4 & 3) << 4;
                quants[3][l] = (ql[1][l] >> 4) | (qh[l] >> 6) << 4;
            }
        }
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        let scale = half_to_f32(self.d);
        for (factors, &halves) in factors.iter_mut().zip(&self.scales) {
            *factors = Factors { scale, halves, ..Factors::UNIT };
        }
    }

    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        let (SymmetricScales { d, scales }, quants) =
            fit_symmetric_block::<Integers<6>, 16, 16>(values, importance, -128.0);
        let mut block = Self { scales: bytemuck::cast(scales), d: f32_to_half(d), ..Self::zeroed() };
        for (i, &q) in quants.as_flattened().iter().enumerate() {
            let (half, s, l) = (i / 128, i / 32 % 4, i % 32);
            let stored = (q + f32::from(Self::OFFSET)) as u8;
            block.ql[half][s % 2][l] |= (stored & 15) << (4 * (s / 2));
            block.qh[half][l] |= (stored >> 4) << (2 * s);
        }
        block
    }
}
