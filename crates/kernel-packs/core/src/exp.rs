//! Exponential function on lanes.

use crate::lanes::Lanes;

/// Largest magnitude of arguments: the results are normal numbers.
pub const LARGEST: f32 = 87.3;
/// High part of ln 2, whose products with integers below 2^15 are exact; the rest of it.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// 1.5 * 2^23: numbers of this size have no fraction.
const SHIFT: f32 = 12_582_912.0;
/// Coefficients of `r^6 .. r^2` in `e^r`: interpolation of `(e^r - 1 - r) / r^2` at the Chebyshev
/// nodes of `|r| <= ln 2 / 2`.
const POLYNOMIAL: [f32; 5] = [0.001_392_621_3, 0.008_363_203, 0.041_666_556, 0.166_665_76, 0.5];

/// Computes `e^x` for arguments up to [`LARGEST`] in magnitude; NaN for NaN.
#[inline(always)]
pub fn exp(x: Lanes) -> Lanes {
    // The sum's last bits are the nearest integer.
    let shifted = x.times(Lanes::splat(core::f32::consts::LOG2_E)).plus(Lanes::splat(SHIFT));
    let n = shifted.minus(Lanes::splat(SHIFT));
    let r = x.minus(n.times(Lanes::splat(LN_2_HIGH))).minus(n.times(Lanes::splat(LN_2_LOW)));
    let mut tail = Lanes::splat(POLYNOMIAL[0]);
    for coefficient in &POLYNOMIAL[1..] {
        tail = tail.times(r).plus(Lanes::splat(*coefficient));
    }
    tail.times(r.times(r)).plus(r).plus(Lanes::splat(1.0)).times(shifted.pow2_of_last_bits())
}
