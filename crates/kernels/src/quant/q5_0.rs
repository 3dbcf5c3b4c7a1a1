//! `Q5_0`: 32 values of 5 bits, offset by 16, with one half-precision scale, `x = d * (q - 16)`.
//!
//! The low four bits have the layout of `Q4_0`; bit `j` of `qh` is the fifth bit of value `j`.

use bytemuck::{Pod, Zeroable};

use super::importance::Importance;
use super::search::{Integers, fit_scale};
use super::simple::{extreme_of, pack_fifth_bits, pack_nibbles, unpack_fifth_bits, unpack_nibbles};
use super::{Factors, QuantBlock, SUB_BLOCK, f32_to_half, half_to_f32};

/// One quant block: 22 bytes for 32 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Q5_0 {
    pub(crate) d: [u8; 2],
    pub(crate) qh: [u8; 4],
    pub(crate) qs: [u8; 16],
}

impl QuantBlock for Q5_0 {
    const LEN: usize = 32;
    const MAX_QUANT: Option<u8> = Some(31);
    const OFFSET: i8 = 16;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        unpack_nibbles(&self.qs, &mut quants[0]);
        unpack_fifth_bits(self.qh, &mut quants[0]);
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        factors[0] = Factors { scale: half_to_f32(self.d), ..Factors::UNIT };
    }

    /// Quantizes as ggml: the value of the largest magnitude (the first of equals) becomes quant 0,
    /// which is -16 times `d`; the others round half up and saturate at 31.
    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        if importance.is_given() {
            let (d, numbers) = fit_scale::<Integers<5>, SUB_BLOCK>(values, importance);
            let quants = numbers.map(|number| (number + f32::from(Self::OFFSET)) as u8);
            return Self { d: f32_to_half(d), qh: pack_fifth_bits(&quants), qs: pack_nibbles(&quants) };
        }
        let (d, inverse) = extreme_of(values, -16.0);
        let quants = std::array::from_fn(|j| ((values[j] * inverse + 16.5) as i8).min(31) as u8);
        Self { d: f32_to_half(d), qh: pack_fifth_bits(&quants), qs: pack_nibbles(&quants) }
    }
}
