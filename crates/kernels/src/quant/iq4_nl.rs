//! `IQ4_NL`: 32 values of 4 bits (non-linear codebook) with one half-precision scale, `x = d *
//! VALUES[q]`.
//!
//! Quant layout of `Q4_0`.

use bytemuck::{Pod, Zeroable};

use super::importance::Importance;
use super::non_linear::{NonLinear, decode, encode};
use super::search::fit_scale;
use super::simple::{pack_nibbles, unpack_nibbles};
use super::{Factors, QuantBlock, SUB_BLOCK, f32_to_half, half_to_f32};

/// One quant block: 18 bytes for 32 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Iq4Nl {
    pub(crate) d: [u8; 2],
    pub(crate) qs: [u8; 16],
}

impl QuantBlock for Iq4Nl {
    const LEN: usize = 32;
    const MAX_QUANT: Option<u8> = None;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        unpack_nibbles(&self.qs, &mut quants[0]);
        decode(&mut quants[0]);
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        factors[0] = Factors { scale: half_to_f32(self.d), ..Factors::UNIT };
    }

    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        let (d, numbers) = fit_scale::<NonLinear, SUB_BLOCK>(values, importance);
        Self { d: f32_to_half(d), qs: pack_nibbles(&numbers.map(encode)) }
    }
}
