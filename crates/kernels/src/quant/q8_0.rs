//! `Q8_0`: 32 values of 8 bits, signed, with one half-precision scale, `x = d * q`.

use bytemuck::{Pod, Zeroable};

use super::importance::Importance;
use super::{Factors, QuantBlock, SUB_BLOCK, f32_to_half, half_to_f32};

/// One quant block: 34 bytes for 32 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Q8_0 {
    pub(crate) d: [u8; 2],
    pub(crate) qs: [u8; 32],
}

impl QuantBlock for Q8_0 {
    const LEN: usize = 32;
    const MAX_QUANT: Option<u8> = None;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        quants[0] = self.qs;
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        factors[0] = Factors { scale: half_to_f32(self.d), ..Factors::UNIT };
    }

    /// Quantizes as ggml: `d` is the largest magnitude over 127; quants round half away from zero,
    /// before `d` is rounded to half precision.
    fn quantize(values: &[f32], _importance: Importance<'_>) -> Self {
        let largest = values.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        let d = largest / 127.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        let mut qs = [0; 32];
        for (q, x) in qs.iter_mut().zip(values) {
            *q = (x * inverse).round() as i8 as u8;
        }
        Self { d: f32_to_half(d), qs }
    }
}
