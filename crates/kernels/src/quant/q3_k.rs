//! `Q3_K`: 256 values of 3 bits, offset by 4; scale of 6 bits, offset by 32, per 16 values,
//! `x = d * (sc - 32) * (q - 4)`.
//!
//! The low two bits have the layout of `Q2_K`; bit `s` of `hmask[l]` is the third bit of value `l`
//! of sub-block `s`.

use bytemuck::{Pod, Zeroable};

use super::importance::Importance;
use super::search::{Integers, SymmetricScales, fit_symmetric_block};
use super::{Factors, QuantBlock, SUB_BLOCK, f32_to_half, half_to_f32};

/// One quant block: 110 bytes for 256 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Q3K {
    pub(crate) hmask: [u8; 32],
    pub(crate) qs: [[u8; 32]; 2],
    /// Bytes 0..8: the low four bits of scales 0..8 in the low nibbles, of scales 8..16 in the high
    /// nibbles; bits `2i` and `2i + 1` of bytes 8..12: the upper two bits of scales `4i..4i + 4`.
    scales: [u8; 12],
    pub(crate) d: [u8; 2],
}

impl Q3K {
    /// Offset added to stored scales.
    pub(crate) const SCALE_OFFSET: i8 = 32;

    /// Stored scales of the groups of 16 values, as bytes: 0..8 and 8..16.
    #[inline(always)]
    pub(crate) fn stored_scales(&self) -> [u64; 2] {
        const LOW_4: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        const UPPER_2: u64 = 0x3030_3030_3030_3030;
        let (low, high) = self.scales.split_first_chunk().expect("12 bytes");
        let low = u64::from_le_bytes(*low);
        let high = u64::from(u32::from_le_bytes(*high.as_array().expect("4 bytes")));
        let first = (low & LOW_4) | ((high << 4 | high << 34) & UPPER_2);
        let last = (low >> 4 & LOW_4) | ((high | high << 30) & UPPER_2);
        [first, last]
    }

    /// Scales of the groups of 16 values.
    #[inline(always)]
    fn group_scales(&self) -> [[i8; 2]; 8] {
        let stored: [[u8; 2]; 8] = bytemuck::cast(self.stored_scales().map(u64::to_le_bytes));
        stored.map(|pair| pair.map(|scale| scale as i8 - Self::SCALE_OFFSET))
    }

    fn pack_scales(scales: [i8; 16]) -> [u8; 12] {
        let mut packed = [0; 12];
        for (i, scale) in scales.into_iter().enumerate() {
            let stored = (scale + Self::SCALE_OFFSET) as u8;
            packed[i % 8] |= (stored & 15) << (i / 8 * 4);
            packed[8 + i % 4] |= (stored >> 4) << (i / 4 * 2);
        }
        packed
    }
}

impl QuantBlock for Q3K {
    const LEN: usize = 256;
    const MAX_QUANT: Option<u8> = Some(7);
    const OFFSET: i8 = 4;
    const HALF_SCALES: bool = true;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        for (i, (qs, quants)) in self.qs.iter().zip(quants.chunks_exact_mut(4)).enumerate() {
            for l in 0..32 {
                let high = self.hmask[l] >> (4 * i);
                quants[0][l] = (qs[l] & 3) | (high & 1) << 2;
                quants[1][l] = (qs[l] >> 2 & 3) | (high & 2) << 1;
                quants[2][l] = (qs[l] >> 4 & 3) | (high & 4);
                quants[3][l] = (qs[l] >> 6) | (high & 8) >> 1;
            }
        }
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        let scale = half_to_f32(self.d);
        for (factors, halves) in factors.iter_mut().zip(self.group_scales()) {
            *factors = Factors { scale, halves, ..Factors::UNIT };
        }
    }

    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        let (SymmetricScales { d, scales }, quants) =
            fit_symmetric_block::<Integers<3>, 16, 16>(values, importance, f32::from(-Self::SCALE_OFFSET));
        let (mut hmask, mut qs) = ([0; 32], [[0; 32]; 2]);
        for (i, &q) in quants.as_flattened().iter().enumerate() {
            let stored = (q + f32::from(Self::OFFSET)) as u8;
            qs[i / 128][i % 32] |= (stored & 3) << (2 * (i / 32 % 4));
            hmask[i % 32] |= (stored >> 2) << (i / 32);
        }
        Self { hmask, qs, scales: Self::pack_scales(scales), d: f32_to_half(d) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_scales_hold_every_six_bit_number() {
        for base in -32..32_i8 {
            let scales = std::array::from_fn(|i| ((i32::from(base) + 32 + 5 * i as i32) % 64 - 32) as i8);
            let block = Q3K { scales: Q3K::pack_scales(scales), ..Q3K::zeroed() };
            assert_eq!(block.group_scales().as_flattened(), scales);
        }
    }
}
