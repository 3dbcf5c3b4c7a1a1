//! `Q2_K`: 256 values of 2 bits; scale and minimum of 4 bits per 16 values,
//! `x = d * sc * q - dmin * mn`.
//!
//! 32 bytes of quants hold four sub-blocks, two bits each, the lowest bits first. Byte `i` of the
//! scales belongs to values `16i..16i + 16`: scale in the low nibble, minimum in the high nibble.

use bytemuck::{Pod, Zeroable};

use super::importance::Importance;
use super::search::{AffineScales, fit_affine_block};
use super::{Factors, QuantBlock, SUB_BLOCK, f32_to_half, half_to_f32};

/// One quant block: 84 bytes for 256 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Q2K {
    pub(crate) scales: [[u8; 2]; 8],
    pub(crate) qs: [[u8; 32]; 2],
    pub(crate) d: [u8; 2],
    pub(crate) dmin: [u8; 2],
}

impl QuantBlock for Q2K {
    const LEN: usize = 256;
    const MAX_QUANT: Option<u8> = Some(3);
    const HAS_MIN: bool = true;
    const HALF_SCALES: bool = true;
    const HALF_MINS: bool = true;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        for (qs, quants) in self.qs.iter().zip(quants.chunks_exact_mut(4)) {
            for l in 0..32 {
                quants[0][l] = qs[l] & 3;
                quants[1][l] = qs[l] >> 2 & 3;
                quants[2][l] = qs[l] >> 4 & 3;
                quants[3][l] = qs[l] >> 6;
            }
        }
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        let (scale, min) = (half_to_f32(self.d), half_to_f32(self.dmin));
        for (factors, &both) in factors.iter_mut().zip(&self.scales) {
            let (halves, min_halves) = (both.map(|b| (b & 15) as i8), both.map(|b| (b >> 4) as i8));
            *factors = Factors { scale, min, halves, min_halves };
        }
    }

    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        let (AffineScales { d, dmin, scales, mins }, quants) =
            fit_affine_block::<16, 16>(values, importance, 3, 15);
        let packed: [u8; 16] = std::array::from_fn(|i| scales[i] | mins[i] << 4);
        let mut qs = [[0; 32]; 2];
        for (i, &q) in quants.as_flattened().iter().enumerate() {
            qs[i / 128][i % 32] |= q << (2 * (i / 32 % 4));
        }
        Self { scales: bytemuck::cast(packed), qs, d: f32_to_half(d), dmin: f32_to_half(dmin) }
    }
}
