//! `MXFP4` (OCP microscaling): 32 values of 4 bits (E2M1: sign, two bits of exponent, one of
//! mantissa) with a power of two as scale (E8M0), `x = 2^(e - 128) * VALUES[q]`.
//!
//! Quant layout of `Q4_0`.

use bytemuck::{Pod, Zeroable};

use super::importance::Importance;
use super::simple::{NibbleBlock, pack_nibbles, unpack_nibbles};
use super::{Factors, QuantBlock, SUB_BLOCK};

/// One quant block: 17 bytes for 32 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Mxfp4 {
    pub(crate) e: u8,
    pub(crate) qs: [u8; 16],
}

/// Twice the magnitudes of quants; quant `q + 8` is the negative of quant `q`.
const MAGNITUDES: [u8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];

/// Largest magnitude: the offset of stored values.
const HIGHEST: u8 = 12;

/// Value of quant `i` plus the offset.
const VALUES: [u8; 16] = {
    let mut values = [0; 16];
    let mut i = 0;
    while i < 8 {
        values[i] = HIGHEST + MAGNITUDES[i];
        values[i + 8] = HIGHEST - MAGNITUDES[i];
        i += 1;
    }
    values
};

/// Half of the power of two that exponent `e` stands for, as `VALUES` are doubled.
static SCALES: [f32; 256] = {
    let mut scales = [0.0; 256];
    let mut e = 0;
    while e < 256 {
        // The two smallest ones are subnormal.
        scales[e] = f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e as u32 - 1) << 23 });
        e += 1;
    }
    scales
};

impl NibbleBlock for Mxfp4 {
    const CODEBOOK: Option<[u8; 16]> = Some(VALUES);
    const E8M0: bool = true;

    #[inline(always)]
    fn scale(&self) -> f32 {
        SCALES[usize::from(self.e)]
    }

    #[inline(always)]
    fn qs(&self) -> &[u8; SUB_BLOCK / 2] {
        &self.qs
    }
}

impl QuantBlock for Mxfp4 {
    const LEN: usize = 32;
    const MAX_QUANT: Option<u8> = Some(2 * HIGHEST);
    const OFFSET: i8 = HIGHEST as i8;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        unpack_nibbles(&self.qs, &mut quants[0]);
        for quant in &mut quants[0] {
            *quant = VALUES[usize::from(*quant & 15)];
        }
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        factors[0] = Factors { scale: self.scale(), ..Factors::UNIT };
    }

    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        let weights: [f32; SUB_BLOCK] = importance.group(0);
        let largest = values.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        // With the exponent of the largest magnitude its value is 4 to 8 (less than 12 doubled).
        let usual = ((largest.to_bits() >> 23) as u8).saturating_sub(2);
        let (mut best, mut least) = (Self { e: usual, qs: [0; 16] }, f32::INFINITY);
        for e in [usual, usual.saturating_add(1), usual.saturating_sub(1)] {
            let scale = SCALES[usize::from(e)];
            let (mut quants, mut error) = ([0; SUB_BLOCK], 0.0);
            for ((quant, &x), w) in quants.iter_mut().zip(values).zip(weights) {
                *quant = nearest(x, scale);
                let difference = x.abs() - scale * f32::from(MAGNITUDES[usize::from(*quant & 7)]);
                error += w * difference * difference;
            }
            if error < least {
                (best, least) = (Self { e, qs: pack_nibbles(&quants) }, error);
            }
        }
        best
    }
}

/// Quant nearest to `x / scale`.
fn nearest(x: f32, scale: f32) -> u8 {
    let magnitude = x.abs();
    let mut quant = 0;
    for i in 1..MAGNITUDES.len() {
        let middle = (f32::from(MAGNITUDES[i - 1]) + f32::from(MAGNITUDES[i])) / 2.0;
        quant += u8::from(magnitude > middle * scale);
    }
    // There is no need for a negative zero.
    if x < 0.0 && quant > 0 { quant + 8 } else { quant }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_halves_of_powers_of_two() {
        for (e, scale) in SCALES.iter().enumerate() {
            assert_eq!(f64::from(*scale), 2.0_f64.powi(e as i32 - 128));
        }
    }

    #[test]
    fn the_nearest_value_is_found() {
        for x in -60..=60 {
            let x = x as f32 * 0.25 + 0.1;
            let found = f32::from(VALUES[usize::from(nearest(x, 1.0))]) - f32::from(HIGHEST);
            let distance = VALUES.iter().fold(f32::INFINITY, |least, &value| {
                least.min((f32::from(value) - f32::from(HIGHEST) - x).abs())
            });
            assert_eq!((found - x).abs(), distance, "{x}");
        }
    }
}
