//! `Q4_0`: 32 values of 4 bits around 8 under one half-precision scale, `x = d * (q - 8)`.
//!
//! Byte `j` holds value `j` in its low half and value `j + 16` in its high half.

use bytemuck::{Pod, Zeroable};

use super::{Factors, QuantBlock, SUB_BLOCK, f32_to_half, half_to_f32};

/// One block: 18 bytes for 32 values.
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
        let (low, high) = quants[0].split_at_mut(16);
        for j in 0..16 {
            low[j] = self.qs[j] & 15;
            high[j] = self.qs[j] >> 4;
        }
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        factors[0] = Factors { scale: half_to_f32(self.d), min: 0.0, halves: [1; 2] };
    }

    /// The value of the largest magnitude (the first of equals) becomes quant 0, that is -8 times `d`; the others
    /// round half up and saturate at 15.
    fn quantize(values: &[f32]) -> Self {
        let extreme = values.iter().fold(0.0_f32, |m, &x| if x.abs() > m.abs() { x } else { m });
        let d = extreme / -8.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        let quant = |x: f32| ((x * inverse + 8.5) as i8).min(15) as u8;
        let mut qs = [0; 16];
        for (j, q) in qs.iter_mut().enumerate() {
            *q = (quant(values[j]) & 15) | quant(values[j + 16]) << 4;
        }
        Self { d: f32_to_half(d), qs }
    }
}
