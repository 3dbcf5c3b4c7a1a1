//! `Q4_0`: 32 values of 4 bits, offset by 8, with one half-precision scale, `x = d * (q - 8)`.
//!
//! Byte `j` holds value `j` in its low nibble and value `j + 16` in its high nibble.

use bytemuck::{Pod, Zeroable};

use super::importance::Importance;
use super::search::{Integers, fit_scale};
use super::simple::{extreme_of, pack_nibbles, unpack_nibbles};
use super::{Factors, QuantBlock, SUB_BLOCK, f32_to_half, half_to_f32};

/// One quant block: 18 bytes for 32 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Q4_0 {
    pub(crate) d: [u8; 2],
    pub(crate) qs: [u8; 16],
}

impl QuantBlock for Q4_0 {
    const LEN: usize = 32;
    const MAX_QUANT: Option<u8> = Some(15);
    const OFFSET: i8 = 8;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        unpack_nibbles(&self.qs, &mut quants[0]);
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        factors[0] = Factors { scale: half_to_f32(self.d), ..Factors::UNIT };
    }

    /// Quantizes as ggml: the value of the largest magnitude (the first of equals) becomes quant 0,
    /// which is -8 times `d`; the others round half up and saturate at 15.
    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        if importance.is_given() {
            let (d, numbers) = fit_scale::<Integers<4>, SUB_BLOCK>(values, importance);
            let quants = numbers.map(|number| (number + f32::from(Self::OFFSET)) as u8);
            return Self { d: f32_to_half(d), qs: pack_nibbles(&quants) };
        }
        let (d, inverse) = extreme_of(values, -8.0);
        let quants = std::array::from_fn(|j| ((values[j] * inverse + 8.5) as i8).min(15) as u8);
        Self { d: f32_to_half(d), qs: pack_nibbles(&quants) }
    }
}
