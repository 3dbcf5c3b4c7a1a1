//! What the K formats share: 6-bit scales and minima packed into 12 bytes, and the search for the scales that
//! represent a block with the least squared error.
//!
//! The search: for a sub-block, several starting scales assign quants, each assignment is solved for its best scale
//! (and minimum) by least squares, and the one with the smallest error wins. The winners are then rounded to the block's
//! integer scales, looking at the neighbouring integers too, and the quants are assigned again.

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::{Factors, SUB_BLOCK, f32_to_half, half_to_f32};

/// Sub-blocks per block of a K format.
const N: usize = 8;

/// The head of a `Q4_K` or `Q5_K` block: two half-precision factors, eight scales and eight minima of 6 bits.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct PackedScales {
    pub(crate) d: [u8; 2],
    pub(crate) dmin: [u8; 2],
    /// Bytes 0..4: scales 0..4; bytes 4..8: minima 0..4; bytes 8..12: low halves the scales 4..8, high halves the minima
    /// 4..8, whose upper two bits are the upper bits of bytes 0..4 and 4..8.
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

    /// The 6-bit integers as bytes: scales 0..4 and minima 0..4, scales 4..8 and minima 4..8.
    #[inline(always)]
    pub(crate) fn halves(&self) -> (u64, u64) {
        /// The low 6, the low 4 and the upper 2 (of 6) bits of every byte.
        const LOW_6: u64 = 0x3f3f_3f3f_3f3f_3f3f;
        const LOW_4: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        const UPPER_2: u64 = 0x3030_3030_3030_3030;
        let (first, last) = self.bits.split_first_chunk().expect("12 bytes");
        let first = u64::from_le_bytes(*first);
        let last = u64::from(u32::from_le_bytes(*last.as_array().expect("4 bytes")));
        (first & LOW_6, ((last | last << 28) & LOW_4) | (first >> 2 & UPPER_2))
    }

    /// The eight scales and the eight minima.
    #[inline(always)]
    fn integers(&self) -> ([u8; N], [u8; N]) {
        let (low, high) = self.halves();
        let scales = (low & 0xffff_ffff) | high << 32;
        let mins = low >> 32 | (high & !0xffff_ffff);
        (scales.to_le_bytes(), mins.to_le_bytes())
    }

    /// The factors of the eight sub-blocks.
    #[inline(always)]
    pub(super) fn factors(&self, factors: &mut [Factors]) {
        let (d, dmin) = (half_to_f32(self.d), half_to_f32(self.dmin));
        let (scales, mins) = self.integers();
        for (s, factors) in factors.iter_mut().enumerate() {
            *factors =
                Factors { scale: d * f32::from(scales[s]), min: dmin * f32::from(mins[s]), halves: [1; 2] };
        }
    }
}

/// The numbers of a block of sub-blocks with scale and minimum.
pub(super) struct AffineScales {
    pub(super) d: f32,
    pub(super) dmin: f32,
    pub(super) scales: [u8; N],
    pub(super) mins: [u8; N],
}

/// The numbers of a block of half sub-blocks with a signed scale.
pub(super) struct SymmetricScales {
    pub(super) d: f32,
    pub(super) scales: [i8; 2 * N],
}

/// Represents 256 values as `d * sc * q - dmin * mn` with `q` in `0..=max_quant` and `sc`, `mn` in `0..64`.
pub(super) fn fit_affine_block(values: &[f32], max_quant: u8) -> (AffineScales, [[u8; SUB_BLOCK]; N]) {
    let (blocks, _) = values.as_chunks::<SUB_BLOCK>();
    let max_quant = f32::from(max_quant);
    let mut fits = [(0.0, 0.0); N];
    for (fit, x) in fits.iter_mut().zip(blocks) {
        *fit = fit_affine(x, max_quant);
    }
    let d = round_to_half(fits.iter().fold(0.0, |m, f| f.0.max(m)) / 63.0);
    let dmin = round_to_half(fits.iter().fold(0.0, |m, f| f.1.max(m)) / 63.0);

    let mut result = AffineScales { d, dmin, scales: [0; N], mins: [0; N] };
    let mut quants = [[0; SUB_BLOCK]; N];
    for (s, x) in blocks.iter().enumerate() {
        let mut least = f32::INFINITY;
        let highest = x.iter().fold(0.0_f32, |m, &x| m.max(x));
        for min in neighbours(fits[s].1, dmin, 0.0, 63.0) {
            // The fitted scale belongs to the fitted minimum; with the rounded one, the scale that just reaches the
            // highest value is often better (one outlier in a sub-block).
            let reaching = (highest + dmin * min) / max_quant;
            let scales = [neighbours(fits[s].0, d, 0.0, 63.0), neighbours(reaching, d, 0.0, 63.0)];
            for &scale in scales.as_flattened() {
                let candidate = assign(x, d * scale, -dmin * min, 0.0, max_quant);
                let error = squared_error(x, &candidate, d * scale, -dmin * min);
                if error < least {
                    least = error;
                    (result.scales[s], result.mins[s]) = (scale as u8, min as u8);
                    quants[s] = candidate.map(|q| q as u8);
                }
            }
        }
    }
    (result, quants)
}

/// Represents 256 values as `d * sc * (q - 32)` with `q` in `0..64` and a signed 8-bit `sc` per 16 values.
pub(super) fn fit_symmetric_block(values: &[f32]) -> (SymmetricScales, [[u8; SUB_BLOCK]; N]) {
    let (halves, _) = values.as_chunks::<{ SUB_BLOCK / 2 }>();
    let mut fits = [0.0; 2 * N];
    for (fit, x) in fits.iter_mut().zip(halves) {
        *fit = fit_symmetric(x);
    }
    let extreme = fits.iter().fold(0.0_f32, |m, &f| if f.abs() > m.abs() { f } else { m });
    let d = round_to_half(extreme / -128.0);

    let mut result = SymmetricScales { d, scales: [0; 2 * N] };
    let mut quants = [[0; SUB_BLOCK]; N];
    for (h, x) in halves.iter().enumerate() {
        let mut least = f32::INFINITY;
        for scale in neighbours(fits[h], d, -128.0, 127.0) {
            let candidate = assign(x, d * scale, 0.0, -32.0, 31.0);
            let error = squared_error(x, &candidate, d * scale, 0.0);
            if error < least {
                least = error;
                result.scales[h] = scale as i8;
                for (to, q) in quants[h / 2][h % 2 * 16..].iter_mut().zip(candidate) {
                    *to = (q + 32.0) as u8;
                }
            }
        }
    }
    (result, quants)
}

/// Scale and minimum (subtracted, never negative) of 32 values with quants `0..=max_quant`.
fn fit_affine(x: &[f32; SUB_BLOCK], max_quant: f32) -> (f32, f32) {
    /// Starting scales: the range divided into `max_quant - 1` to `max_quant + 0.9` steps.
    const STEPS: usize = 20;
    /// Rounds of assigning quants and solving for the scale, from each start.
    const ROUNDS: usize = 2;
    let lowest = x.iter().fold(0.0_f32, |m, &x| m.min(x));
    let highest = x.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
    let range = highest - lowest;
    if range <= 0.0 {
        return (0.0, -lowest);
    }
    let (mut best, mut least) = ((range / max_quant, -lowest), f32::INFINITY);
    for step in 0..STEPS {
        let scale = range / (max_quant - 1.0 + 0.1 * step as f32);
        // A grid that starts at the lowest value, and one that contains zero: with a few outliers, most values are
        // near zero and best represented by it.
        for offset in [lowest, -scale * round_small(-lowest / scale)] {
            let (mut scale, mut offset) = (scale, offset);
            for _ in 0..ROUNDS {
                let quants = assign(x, scale, offset, 0.0, max_quant);
                (scale, offset) = solve_affine(x, &quants);
                let error = squared_error(x, &quants, scale, offset);
                if error < least {
                    (best, least) = ((scale, -offset), error);
                }
            }
        }
    }
    best
}

/// The scale and offset (not positive) with the least squared error for given quants.
fn solve_affine(x: &[f32; SUB_BLOCK], quants: &[f32; SUB_BLOCK]) -> (f32, f32) {
    let (mut sum_q, mut sum_qq, mut sum_x, mut sum_xq) = (0.0, 0.0, 0.0, 0.0);
    for (&x, &q) in x.iter().zip(quants) {
        sum_q += q;
        sum_qq += q * q;
        sum_x += x;
        sum_xq += x * q;
    }
    let determinant = SUB_BLOCK as f32 * sum_qq - sum_q * sum_q;
    if determinant > 0.0 {
        let offset = (sum_qq * sum_x - sum_q * sum_xq) / determinant;
        if offset <= 0.0 {
            return ((SUB_BLOCK as f32 * sum_xq - sum_q * sum_x) / determinant, offset);
        }
    }
    (if sum_qq > 0.0 { sum_xq / sum_qq } else { 0.0 }, 0.0)
}

/// Signed scale of 16 values with quants `-32..=31`.
fn fit_symmetric(x: &[f32; SUB_BLOCK / 2]) -> f32 {
    let extreme = x.iter().fold(0.0_f32, |m, &x| if x.abs() > m.abs() { x } else { m });
    if extreme == 0.0 {
        return 0.0;
    }
    let (mut best, mut least) = (0.0, f32::INFINITY);
    for step in -9..=9 {
        let quants = assign(x, extreme / -(32.0 + 0.1 * step as f32), 0.0, -32.0, 31.0);
        let (mut sum_qq, mut sum_xq) = (0.0, 0.0);
        for (&x, &q) in x.iter().zip(&quants) {
            sum_qq += q * q;
            sum_xq += x * q;
        }
        let scale = if sum_qq > 0.0 { sum_xq / sum_qq } else { 0.0 };
        let error = squared_error(x, &quants, scale, 0.0);
        if error < least {
            (best, least) = (scale, error);
        }
    }
    best
}

/// The quants nearest to `(x - offset) / scale`, all zero (or the nearest to it) for a scale without inverse.
#[inline]
fn assign<const LEN: usize>(
    x: &[f32; LEN],
    scale: f32,
    offset: f32,
    lowest: f32,
    highest: f32,
) -> [f32; LEN] {
    let inverse = 1.0 / scale;
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    x.map(|x| round_small((x - offset) * inverse).clamp(lowest, highest))
}

fn squared_error<const LEN: usize>(x: &[f32; LEN], quants: &[f32; LEN], scale: f32, offset: f32) -> f32 {
    let mut error = [0.0; 4];
    for (x, q) in x.chunks_exact(4).zip(quants.chunks_exact(4)) {
        for lane in 0..4 {
            let difference = scale * q[lane] + offset - x[lane];
            error[lane] += difference * difference;
        }
    }
    error.iter().sum()
}

/// The integers around `value / unit` within the bounds.
fn neighbours(value: f32, unit: f32, lowest: f32, highest: f32) -> [f32; 3] {
    let ratio = if unit == 0.0 { 0.0 } else { value / unit };
    let nearest = ratio.round().clamp(lowest, highest);
    [nearest, (nearest - 1.0).max(lowest), (nearest + 1.0).min(highest)]
}

/// Rounds to the nearest integer, exactly for magnitudes below 2^22, in two additions (a call to `round` would keep the
/// loops from being vectorized on the baseline instruction set).
#[inline(always)]
fn round_small(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23
    (x + SHIFT) - SHIFT
}

fn round_to_half(x: f32) -> f32 {
    f16::from_f32_const(x).to_f32_const()
}
