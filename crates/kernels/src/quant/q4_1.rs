//! `Q4_1`: 32 values of 4 bits with a half-precision scale and offset, `x = d * q + m`.
//!
//! Quant layout of `Q4_0`.

use bytemuck::{Pod, Zeroable};

use super::importance::Importance;
use super::search::fit_range;
use super::simple::{pack_nibbles, range_of, unpack_nibbles};
use super::{Factors, QuantBlock, SUB_BLOCK, f32_to_half, half_to_f32};

/// One quant block: 20 bytes for 32 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Q4_1 {
    pub(crate) d: [u8; 2],
    pub(crate) m: [u8; 2],
    pub(crate) qs: [u8; 16],
}

impl QuantBlock for Q4_1 {
    const LEN: usize = 32;
    const MAX_QUANT: Option<u8> = Some(15);
    const HAS_MIN: bool = true;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        unpack_nibbles(&self.qs, &mut quants[0]);
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        let (scale, min) = (half_to_f32(self.d), -half_to_f32(self.m));
        factors[0] = Factors { scale, min, ..Factors::UNIT };
    }

    /// Quantizes as ggml: `d` divides the range into 15 steps; quants round half up, before `d` and
    /// `m` are rounded to half precision.
    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        if importance.is_given() {
            let (d, m, quants) = fit_range::<SUB_BLOCK>(values, importance, 15.0);
            return Self { d: f32_to_half(d), m: f32_to_half(m), qs: pack_nibbles(&quants) };
        }
        let (m, d, inverse) = range_of(values, 15.0);
        let quants = std::array::from_fn(|j| ((values[j] - m) * inverse + 0.5) as u8);
        Self { d: f32_to_half(d), m: f32_to_half(m), qs: pack_nibbles(&quants.map(|q: u8| q.min(15))) }
    }
}
