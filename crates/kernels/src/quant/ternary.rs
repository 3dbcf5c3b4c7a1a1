//! `TQ1_0` and `TQ2_0`: 256 values of -1, 0 and 1 with one half-precision scale, `x = d * (q - 1)`.

use bytemuck::{Pod, Zeroable};

use super::importance::Importance;
use super::search::round_to_half;
use super::{Factors, QuantBlock, SUB_BLOCK, f32_to_half, half_to_f32};

/// One quant block of `TQ1_0`: 54 bytes for 256 values.
///
/// A byte holds five values as digits of a fraction in base 3: the next digit is the carry of three
/// times the byte.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Tq1 {
    /// Digit `s` of byte `l`: value `l` of sub-block `s`, the first five.
    pub(crate) qs: [u8; 32],
    /// Digits in the same order: values `16n + l` of the next 80.
    pub(crate) tail: [u8; 16],
    /// Four digits per byte: values `4n + l` of the last 16.
    pub(crate) qh: [u8; 4],
    pub(crate) d: [u8; 2],
}

/// One quant block of `TQ2_0`: 66 bytes for 256 values.
///
/// Bits `2s` and `2s + 1` of each vector of `qs` belong to its sub-block `s`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Tq2 {
    pub(crate) qs: [[u8; 32]; 2],
    pub(crate) d: [u8; 2],
}

/// Digits of `bytes`, the first of all bytes first.
#[inline(always)]
fn unpack_digits(bytes: &[u8], digits: &mut [u8]) {
    let mut power = 1_u8;
    for digits in digits.chunks_mut(bytes.len()) {
        for (digit, byte) in digits.iter_mut().zip(bytes) {
            *digit = ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as u8;
        }
        power = power.wrapping_mul(3);
    }
}

/// Packs digits for [`unpack_digits`], five to a byte (missing ones are zeros).
fn pack_digits(digits: &[u8], bytes: &mut [u8]) {
    let len = bytes.len();
    for (l, byte) in bytes.iter_mut().enumerate() {
        let digit = |n: usize| u16::from(digits.get(n * len + l).copied().unwrap_or(0));
        let number = (0..5).fold(0, |number, n| 3 * number + digit(n));
        // The fraction `number / 243` in 256ths, rounded up.
        *byte = (number * 256).div_ceil(243) as u8;
    }
}

impl QuantBlock for Tq1 {
    const LEN: usize = 256;
    const MAX_QUANT: Option<u8> = Some(2);
    const OFFSET: i8 = 1;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        let quants = quants.as_flattened_mut();
        unpack_digits(&self.qs, &mut quants[..160]);
        unpack_digits(&self.tail, &mut quants[160..240]);
        unpack_digits(&self.qh, &mut quants[240..]);
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        factors.fill(Factors { scale: half_to_f32(self.d), ..Factors::UNIT });
    }

    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        let (d, digits) = fit_ternary(values, importance);
        let mut block = Self { d: f32_to_half(d), ..Self::zeroed() };
        pack_digits(&digits[..160], &mut block.qs);
        pack_digits(&digits[160..240], &mut block.tail);
        pack_digits(&digits[240..], &mut block.qh);
        block
    }
}

impl QuantBlock for Tq2 {
    const LEN: usize = 256;
    const MAX_QUANT: Option<u8> = Some(3);
    const OFFSET: i8 = 1;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        for (qs, quants) in self.qs.iter().zip(quants.chunks_exact_mut(4)) {
            for (s, quants) in quants.iter_mut().enumerate() {
                for (quant, q) in quants.iter_mut().zip(qs) {
                    *quant = q >> (2 * s) & 3;
                }
            }
        }
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        factors.fill(Factors { scale: half_to_f32(self.d), ..Factors::UNIT });
    }

    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        let (d, digits) = fit_ternary(values, importance);
        let mut qs = [[0; 32]; 2];
        for (i, digit) in digits.into_iter().enumerate() {
            qs[i / 128][i % 32] |= digit << (2 * (i / 32 % 4));
        }
        Self { qs, d: f32_to_half(d) }
    }
}

/// Scale with the least weighted squared error, and the values' digits 0, 1 and 2.
///
/// The values that are not zero are the largest ones: their number decides all, so each is tried.
fn fit_ternary(values: &[f32], importance: Importance<'_>) -> (f32, [u8; 256]) {
    let weights: [f32; 256] = importance.group(0);
    let mut order: [u8; 256] = std::array::from_fn(|i| i as u8);
    let magnitude = |&i: &u8| values[usize::from(i)].abs();
    order.sort_unstable_by(|a, b| magnitude(b).total_cmp(&magnitude(a)));
    let (mut sum_w, mut sum_wx) = (0.0, 0.0);
    let (mut scale, mut gain) = (0.0, 0.0);
    for i in &order {
        let w = weights[usize::from(*i)];
        sum_w += w;
        sum_wx += w * magnitude(i);
        if sum_wx / sum_w * sum_wx > gain {
            (scale, gain) = (sum_wx / sum_w, sum_wx / sum_w * sum_wx);
        }
    }
    let d = round_to_half(scale);
    let digit = |&x: &f32| {
        if x.abs() > d / 2.0 && d > 0.0 { if x < 0.0 { 0 } else { 2 } } else { 1 }
    };
    let mut digits = [1; 256];
    for (to, x) in digits.iter_mut().zip(values) {
        *to = digit(x);
    }
    (d, digits)
}
