//! Shared code of `Q4_K` and `Q5_K`: 6-bit scales and minima packed into 12 bytes.

use bytemuck::{Pod, Zeroable};

use super::{Factors, f32_to_half, half_to_f32};

/// Sub-blocks per quant block of a K format.
const N: usize = 8;

/// Header of a `Q4_K` or `Q5_K` quant block: two half-precision factors, eight scales and eight
/// minima of 6 bits.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct PackedScales {
    pub(crate) d: [u8; 2],
    pub(crate) dmin: [u8; 2],
    /// Bytes 0..4: scales 0..4; bytes 4..8: minima 0..4; bytes 8..12: scales 4..8 in the low
    /// nibbles, minima 4..8 in the high nibbles, with their upper two bits in bytes 0..4 and 4..8.
    pub(crate) bits: [u8; 12],
}

impl PackedScales {
    /// Packs factors and 6-bit integers.
    pub(super) fn new(d: f32, dmin: f32, scales: &[u8; N], mins: &[u8; N]) -> Self {
        let mut bits = [0; 12];
        for j in 0..4 {
            bits[j] = scales[j] | (scales[j + 4] >> 4) << 6;
            bits[j + 4] = mins[j] | (mins[j + 4] >> 4) << 6;
            bits[j + 8] = (scales[j + 4] & 15) | (mins[j + 4] & 15) << 4;
        }
        Self { d: f32_to_half(d), dmin: f32_to_half(dmin), bits }
    }

    /// 6-bit integers as bytes: scales 0..4 and minima 0..4, scales 4..8 and minima 4..8.
    #[inline(always)]
    pub(crate) fn halves(&self) -> (u64, u64) {
        /// Masks of the low 6, the low 4 and the upper 2 (of 6) bits of every byte.
        const LOW_6: u64 = 0x3f3f_3f3f_3f3f_3f3f;
        const LOW_4: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        const UPPER_2: u64 = 0x3030_3030_3030_3030;
        let (first, last) = self.bits.split_first_chunk().expect("12 bytes");
        let first = u64::from_le_bytes(*first);
        let last = u64::from(u32::from_le_bytes(*last.as_array().expect("4 bytes")));
        (first & LOW_6, ((last | last << 28) & LOW_4) | (first >> 2 & UPPER_2))
    }

    /// Eight scales and eight minima.
    #[inline(always)]
    fn integers(&self) -> ([u8; N], [u8; N]) {
        let (low, high) = self.halves();
        let scales = (low & 0xffff_ffff) | high << 32;
        let mins = low >> 32 | (high & !0xffff_ffff);
        (scales.to_le_bytes(), mins.to_le_bytes())
    }

    /// Factors of the eight sub-blocks.
    #[inline(always)]
    pub(super) fn factors(&self, factors: &mut [Factors]) {
        let (d, dmin) = (half_to_f32(self.d), half_to_f32(self.dmin));
        let (scales, mins) = self.integers();
        for (s, factors) in factors.iter_mut().enumerate() {
            *factors =
                Factors { scale: d * f32::from(scales[s]), min: dmin * f32::from(mins[s]), ..Factors::UNIT };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_scales_hold_every_six_bit_number() {
        for base in 0..64_u8 {
            let scales: [u8; 8] = std::array::from_fn(|i| (base + 9 * i as u8) % 64);
            let mins: [u8; 8] = std::array::from_fn(|i| (base + 23 * i as u8 + 5) % 64);
            let mut factors = [Factors::default(); 8];
            PackedScales::new(1.0, 0.5, &scales, &mins).factors(&mut factors);
            for (i, f) in factors.iter().enumerate() {
                assert_eq!((f.scale, f.min), (f32::from(scales[i]), 0.5 * f32::from(mins[i])));
            }
        }
    }
}
