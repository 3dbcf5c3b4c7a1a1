//! `Q5_1`: 32 values of 5 bits with a half-precision scale and offset, `x = d * q + m`.
//!
//! Quant layout of `Q5_0`.

use bytemuck::{Pod, Zeroable};

use super::importance::Importance;
use super::search::fit_range;
use super::simple::{pack_fifth_bits, pack_nibbles, range_of, unpack_fifth_bits, unpack_nibbles};
use super::{Factors, QuantBlock, SUB_BLOCK, f32_to_half, half_to_f32};

/// One quant block: 24 bytes for 32 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Q5_1 {
    pub(crate) d: [u8; 2],
    pub(crate) m: [u8; 2],
    pub(crate) qh: [u8; 4],
    pub(crate) qs: [u8; 16],
}

impl QuantBlock for Q5_1 {
    const LEN: usize = 32;
    const MAX_QUANT: Option<u8> = Some(31);
    const HAS_MIN: bool = true;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        unpack_nibbles(&self.qs, &mut quants[0]);
        unpack_fifth_bits(self.qh, &mut quants[0]);
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        let (scale, min) = (half_to_f32(self.d), -half_to_f32(self.m));
        factors[0] = Factors { scale, min, ..Factors::UNIT };
    }

    /// Quantizes as ggml: `d` divides the range into 31 steps; quants round half up, before `d` and
    /// `m` are rounded to half precision.
    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        let block = |d, m, quants: [u8; SUB_BLOCK]| {
            let (qh, qs) = (pack_fifth_bits(&quants), pack_nibbles(&quants));
            Self { d: f32_to_half(d), m: f32_to_half(m), qh, qs }
        };
        if importance.is_given() {
            let (d, m, quants) = fit_range(values, importance, 31.0);
            return block(d, m, quants);
        }
        let (m, d, inverse) = range_of(values, 31.0);
        let quants = std::array::from_fn(|j| (((values[j] - m) * inverse + 0.5) as u8).min(31));
        block(d, m, quants)
    }
}
