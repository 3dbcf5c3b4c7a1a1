//! `IQ4_XS`: 256 values of 4 bits (non-linear codebook); scale of 6 bits, offset by 32, per 32
//! values, `x = d * (sc - 32) * VALUES[q]`.
//!
//! Quant layout of `Q4_0` in each sub-block.

use bytemuck::{Pod, Zeroable};

use super::importance::Importance;
use super::non_linear::{NonLinear, decode, encode};
use super::search::{SymmetricScales, fit_symmetric_block};
use super::simple::{pack_nibbles, unpack_nibbles};
use super::{Factors, QuantBlock, SUB_BLOCK, f32_to_half, half_to_f32};

/// One quant block: 136 bytes for 256 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Iq4Xs {
    pub(crate) d: [u8; 2],
    /// Bits `2s` and `2s + 1`: the upper two bits of scale `s`.
    pub(crate) scales_high: [u8; 2],
    /// Nibble `s` (the low nibble of a byte first): the low four bits of scale `s`.
    pub(crate) scales_low: [u8; 4],
    pub(crate) qs: [[u8; 16]; 8],
}

impl Iq4Xs {
    /// Offset added to stored scales.
    pub(crate) const SCALE_OFFSET: i8 = 32;

    /// Scales of the eight sub-blocks.
    #[inline(always)]
    fn integer_scales(&self) -> [i8; 8] {
        let (low, high) = (u32::from_le_bytes(self.scales_low), u16::from_le_bytes(self.scales_high));
        std::array::from_fn(|s| {
            let stored = (low >> (4 * s) & 15) as u8 | ((high >> (2 * s) & 3) as u8) << 4;
            stored as i8 - Self::SCALE_OFFSET
        })
    }

    fn pack_scales(scales: [i8; 8]) -> ([u8; 2], [u8; 4]) {
        let (mut high, mut low) = (0_u16, 0_u32);
        for (s, scale) in scales.into_iter().enumerate() {
            let stored = (scale + Self::SCALE_OFFSET) as u8;
            low |= u32::from(stored & 15) << (4 * s);
            high |= u16::from(stored >> 4) << (2 * s);
        }
        (high.to_le_bytes(), low.to_le_bytes())
    }
}

impl QuantBlock for Iq4Xs {
    const LEN: usize = 256;
    const MAX_QUANT: Option<u8> = None;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        for (qs, quants) in self.qs.iter().zip(quants) {
            unpack_nibbles(qs, quants);
            decode(quants);
        }
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        let d = half_to_f32(self.d);
        for (factors, scale) in factors.iter_mut().zip(self.integer_scales()) {
            *factors = Factors { scale: d * f32::from(scale), ..Factors::UNIT };
        }
    }

    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        let (SymmetricScales { d, scales }, numbers) = fit_symmetric_block::<NonLinear, SUB_BLOCK, 8>(
            values,
            importance,
            f32::from(-Self::SCALE_OFFSET),
        );
        let (scales_high, scales_low) = Self::pack_scales(scales);
        let qs = numbers.map(|numbers| pack_nibbles(&numbers.map(encode)));
        Self { d: f32_to_half(d), scales_high, scales_low, qs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_scales_hold_every_six_bit_number() {
        for base in -32..32_i8 {
            let scales: [i8; 8] = std::array::from_fn(|i| (base + 32 + 9 * i as i8) % 64 - 32);
            let (scales_high, scales_low) = Iq4Xs::pack_scales(scales);
            assert_eq!(Iq4Xs { scales_high, scales_low, ..Iq4Xs::zeroed() }.integer_scales(), scales);
        }
    }
}
