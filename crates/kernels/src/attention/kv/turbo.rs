//! `turbo3`: 3-bit codes for the levels of the normal distribution, on rotated keys and values.
//!
//! # Dequantization
//! `x = mean[dimension] + scale[position] * level[code]`, one rounding in f32.
//! - *Levels* are constants: the Lloyd-Max quantizer of the unit normal distribution. The caller
//!   rotates each head (Hadamard, [`KvFormat::needs_rotation`](super::KvFormat::needs_rotation)),
//!   after which the values of a position are nearly normally distributed in any model.
//! - *Means* of a dimension over the 32 positions hold what neighbouring keys (and values) have in
//!   common. They are the upper bytes of half-precision numbers; the codes are those of the
//!   residuals of the rounded means, so that the rounding costs no accuracy.
//! - *Scales* keep the norm: `scale = |r| / |level[code]|` for the residuals `r` of a position. The
//!   scale of the smallest error would shorten each position by the distortion (3.5 %), which sums
//!   over positions keep; an unbiased one would lengthen it by as much (ADR-0137).
//!
//! # Layout of a tile
//! | part | keys | values |
//! |---|---|---|
//! | codes | `[head_dim, 32]`, 12 bytes for 32 | `[32, head_dim]`, 12 bytes for 32 |
//! | scales | `[32]` in half precision | as keys |
//! | means | `[head_dim]` bytes, then zeros up to a whole cache line | as keys |
//!
//! Codes are packed as in `three_bits.rs`. A position whose scale overflows half precision has the
//! scale NaN; with a value that is not finite, or a mean that overflows, all positions have.
//!
//! # Source
//! Zandieh et al., "`TurboQuant`: online vector quantization with near-optimal distortion rate",
//! arXiv 2504.19874. Differences: ADR-0131, ADR-0137.

use half::f16;

use super::three_bits::{CODE_BYTES, LEVELS, nearest, pack, thresholds, unpack};
use super::{GROUP, KEY_TILE, Line, Tile, WIDE, floats};
use crate::lanes::{Groups, LANES, Lanes, Vectors, WideLanes};

/// Levels of the Lloyd-Max quantizer of the unit normal distribution (Max 1960, table I).
const NORMAL_LEVELS: [f32; LEVELS] = [
    -2.151_945_7,
    -1.343_909_3,
    -0.756_005_3,
    -0.245_094_18,
    0.245_094_18,
    0.756_005_3,
    1.343_909_3,
    2.151_945_7,
];

/// Decision thresholds of the levels.
const THRESHOLDS: [f32; LEVELS - 1] = thresholds(&NORMAL_LEVELS);

/// Groups of lanes per 32 values.
const COLUMNS: usize = GROUP / LANES;

/// Means per cache line.
const LINE_MEANS: usize = size_of::<Line>();

/// Mean that is not a number.
const NAN_MEAN: u8 = 0x7e;

/// Half-precision numbers (scales, and two means each) after the codes of a tile.
pub(super) fn n_halves(head_dim: usize) -> usize {
    let lines = head_dim.div_ceil(LINE_MEANS);
    lines.saturating_mul(LINE_MEANS / size_of::<f16>()).saturating_add(KEY_TILE)
}

/// Tile of keys, `[head_dim, 32]`.
#[derive(Clone, Copy)]
pub(in crate::attention) struct TurboKeys<'a> {
    codes: &'a [[u8; CODE_BYTES]],   // [head_dim]
    scales: &'a [[[f32; LANES]; 2]], // [32 positions]
    means: &'a [f32],                // [head_dim]
}

impl<'a> TurboKeys<'a> {
    /// Creates a tile of codes and the numbers after them. `wide`: buffer for scales and means in
    /// f32.
    #[inline(always)]
    pub(super) fn new<L: WideLanes>(l: L, (codes, sides): (&'a [u8], &[f16]), wide: &'a mut [Line]) -> Self {
        let (scales, means) = widen_sides(l, sides, codes.len() / CODE_BYTES, wide);
        let codes = codes.as_chunks().0;
        Self { codes, scales: bytemuck::cast_slice(scales), means }
    }
}

impl Tile for TurboKeys<'_> {
    #[inline(always)]
    fn load<L: WideLanes, const N: usize>(self, l: L, row: usize, column: usize) -> [L::W; N] {
        let levels = wide_levels(l, &self.codes[row]);
        let mean = l.wide().splat(self.means[row]);
        let mut x = [mean; N];
        for n in 0..N {
            x[n] = l.wide().fma(levels[column + n], l.wide().load(&self.scales[column + n]), mean);
        }
        x
    }
}

/// Tile of values, `[32, head_dim]`.
#[derive(Clone, Copy)]
pub(in crate::attention) struct TurboValues<'a> {
    codes: &'a [[u8; CODE_BYTES]],  // [32, head_dim / 32]
    scales: &'a [f32],              // [32]
    means: &'a [[[f32; LANES]; 2]], // [head_dim]
    columns: usize,
}

impl<'a> TurboValues<'a> {
    /// Creates a tile of codes, in rows of `columns` wide vectors, and the numbers after them.
    /// `wide`: buffer for scales and means in f32.
    #[inline(always)]
    pub(super) fn new<L: WideLanes>(
        l: L,
        (codes, sides): (&'a [u8], &[f16]),
        columns: usize,
        wide: &'a mut [Line],
    ) -> Self {
        let (scales, means) = widen_sides(l, sides, columns * WIDE, wide);
        let codes = codes.as_chunks().0;
        Self { codes, scales, means: bytemuck::cast_slice(means), columns }
    }
}

impl Tile for TurboValues<'_> {
    #[inline(always)]
    fn load<L: WideLanes, const N: usize>(self, l: L, row: usize, column: usize) -> [L::W; N] {
        let first = row * self.columns + column;
        let scale = l.wide().splat(self.scales[row]);
        let means = &self.means[column..][..N];
        let mut x = [scale; N];
        let mut n = 0;
        while n < N {
            let levels = wide_levels(l, &self.codes[(first + n) / 2]);
            if N == 1 {
                x[n] = l.wide().fma(levels[first % 2], scale, l.wide().load(&means[n]));
            } else {
                x[n] = l.wide().fma(levels[0], scale, l.wide().load(&means[n]));
                x[n + 1] = l.wide().fma(levels[1], scale, l.wide().load(&means[n + 1]));
            }
            n += 2;
        }
        x
    }
}

/// Levels of 32 codes.
#[inline(always)]
fn wide_levels<L: WideLanes>(l: L, codes: &[u8; CODE_BYTES]) -> [L::W; 2] {
    let levels = l.load(&NORMAL_LEVELS);
    let [a, b, c, d] = unpack(codes);
    [
        l.wide().join(l.lookup(levels, a), l.lookup(levels, b)),
        l.wide().join(l.lookup(levels, c), l.lookup(levels, d)),
    ]
}

/// Widens the scales, `[32]`, and the means, `[dim]`, of a tile, once per tile.
#[inline(always)]
fn widen_sides<'a, L: WideLanes>(
    l: L,
    sides: &[f16],
    dim: usize,
    wide: &'a mut [Line],
) -> (&'a [f32], &'a [f32]) {
    let (scales, means) = sides.split_at(KEY_TILE);
    let means: &[u8] = bytemuck::cast_slice(means);
    let (wide_scales, wide_means) = wide[..(KEY_TILE + dim) / WIDE].split_at_mut(KEY_TILE / WIDE);
    for (from, to) in scales.as_chunks::<WIDE>().0.iter().zip(&mut *wide_scales) {
        l.wide().store(l.wide().load_f16(from), to.halves_mut());
    }
    for (from, to) in means.as_chunks::<WIDE>().0.iter().zip(&mut *wide_means) {
        l.wide().store(l.wide().load_f16(&from.map(half_of)), to.halves_mut());
    }
    (floats(wide_scales), floats(wide_means))
}

/// Half-precision number of a mean.
#[inline(always)]
fn half_of(mean: u8) -> f16 {
    f16::from_bits(u16::from(mean) << 8)
}

/// Rounds a mean to half precision, then to its upper byte, ties to even; NaN if that is not
/// finite.
fn round_mean(mean: f32) -> u8 {
    let half = f16::from_f32_const(mean);
    if !half.is_finite() {
        return NAN_MEAN;
    }
    // The largest finite half plus this carry still fits 16 bits.
    let bits = half.to_bits();
    let upper = ((bits + 0x7f + (bits >> 8 & 1)) >> 8) as u8;
    if half_of(upper).is_finite() { upper } else { NAN_MEAN }
}

/// Differences between eight values and their means.
#[inline(always)]
fn residuals<L: Lanes>(l: L, x: &[f32; LANES], means: &[u8; LANES]) -> L::V {
    l.sub(l.load(x), l.load_f16(&means.map(half_of)))
}

/// Reciprocal of the standard deviation of `dim` residuals with this sum of squares; 0 if that is
/// not a positive number.
fn inverse_deviation(energy: f32, dim: usize) -> f32 {
    let deviation = (energy / dim as f32).sqrt();
    if deviation > 0.0 { 1.0 / deviation } else { 0.0 }
}

/// Scale with which levels have the norm of the residuals, from the sums of squares of both.
fn norm_scale(energy: f32, squares: f32) -> f16 {
    let scale = f16::from_f32_const((energy / squares).sqrt());
    if scale.is_finite() { scale } else { f16::NAN }
}

/// Splits the numbers after the codes into scales and means.
fn split_sides(sides: &mut [f16]) -> (&mut [f16], &mut [u8]) {
    let (scales, means) = sides.split_at_mut(KEY_TILE);
    (scales, bytemuck::cast_slice_mut(means))
}

/// Stores a tile of keys, `[dim, 32]`, with positions as lanes.
#[inline(always)]
pub(super) fn store_keys<L: Lanes>(l: L, keys: &[Line], dim: usize, codes: &mut [u8], sides: &mut [f16]) {
    let rows = floats(keys).as_chunks::<LANES>().0.as_chunks::<COLUMNS>().0;
    let (scales, means) = split_sides(sides);
    let (means, padding) = means.split_at_mut(dim);
    padding.fill(0);
    let mut energies = [l.zero(); COLUMNS];
    for (row, mean) in rows.iter().zip(&mut *means) {
        let [a, b, c, d] = row;
        let sum = l.add(l.add(l.load(a), l.load(b)), l.add(l.load(c), l.load(d)));
        *mean = round_mean(l.sum(sum) / KEY_TILE as f32);
        for (x, energy) in row.iter().zip(&mut energies) {
            let residual = residuals(l, x, &[*mean; LANES]);
            *energy = l.fma(residual, residual, *energy);
        }
    }
    let mut wide_energies = [[0.0; LANES]; COLUMNS];
    let mut inverses = [l.zero(); COLUMNS];
    for ((energy, wide), inverse) in energies.iter().zip(&mut wide_energies).zip(&mut inverses) {
        l.store(*energy, wide);
        let mut of_lanes = [0.0; LANES];
        for (inverse, energy) in of_lanes.iter_mut().zip(&*wide) {
            *inverse = inverse_deviation(*energy, dim);
        }
        *inverse = l.load(&of_lanes);
    }
    let levels = l.load(&NORMAL_LEVELS);
    let mut squares = [l.zero(); COLUMNS];
    for ((row, mean), codes) in rows.iter().zip(&*means).zip(codes.as_chunks_mut::<CODE_BYTES>().0) {
        let mut found = [[0; LANES]; COLUMNS];
        for column in 0..COLUMNS {
            let residual = residuals(l, &row[column], &[*mean; LANES]);
            found[column] = nearest(l, &THRESHOLDS, l.mul(residual, inverses[column]));
            let level = l.lookup(levels, found[column]);
            squares[column] = l.fma(level, level, squares[column]);
        }
        *codes = pack(bytemuck::cast_ref(&found));
    }
    let sums = wide_energies.iter().zip(squares).zip(scales.as_chunks_mut::<LANES>().0);
    for ((energies, squares), scales) in sums {
        let mut wide = [0.0; LANES];
        l.store(squares, &mut wide);
        for ((scale, energy), squares) in scales.iter_mut().zip(energies).zip(wide) {
            *scale = norm_scale(*energy, squares);
        }
    }
}

/// Stores a tile of values, `[32, dim]`, with dimensions as lanes.
#[inline(always)]
pub(super) fn store_values<L: Lanes>(l: L, values: &[Line], dim: usize, codes: &mut [u8], sides: &mut [f16]) {
    let eights = dim / LANES;
    let values = &floats(values).as_chunks::<LANES>().0[..KEY_TILE * eights];
    let (scales, means) = split_sides(sides);
    means.fill(0);
    let means = &mut means.as_chunks_mut::<LANES>().0[..eights];
    for (column, means) in means.iter_mut().enumerate() {
        let mut sum = l.zero();
        for x in values[column..].iter().step_by(eights) {
            sum = l.add(sum, l.load(x));
        }
        let mut wide = [0.0; LANES];
        l.store(l.mul(sum, l.splat(1.0 / KEY_TILE as f32)), &mut wide);
        for (mean, x) in means.iter_mut().zip(wide) {
            *mean = round_mean(x);
        }
    }
    let levels = l.load(&NORMAL_LEVELS);
    let codes = codes.as_chunks_mut::<CODE_BYTES>().0.chunks_exact_mut(dim / GROUP);
    for ((row, codes), scale) in values.chunks_exact(eights).zip(codes).zip(scales) {
        let mut energy = l.zero();
        for (x, means) in row.iter().zip(&*means) {
            let residual = residuals(l, x, means);
            energy = l.fma(residual, residual, energy);
        }
        let energy = l.sum(energy);
        let inverse = l.splat(inverse_deviation(energy, dim));
        let mut squares = l.zero();
        let units = row.as_chunks::<COLUMNS>().0.iter().zip(means.as_chunks::<COLUMNS>().0);
        for ((x, means), codes) in units.zip(codes) {
            let mut found = [[0; LANES]; COLUMNS];
            for column in 0..COLUMNS {
                let residual = residuals(l, &x[column], &means[column]);
                found[column] = nearest(l, &THRESHOLDS, l.mul(residual, inverse));
                let level = l.lookup(levels, found[column]);
                squares = l.fma(level, level, squares);
            }
            *codes = pack(bytemuck::cast_ref(&found));
        }
        *scale = norm_scale(energy, l.sum(squares));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lloyd's iterations over a fine grid of the normal density give the constants.
    #[test]
    fn levels_are_those_of_the_normal_distribution() {
        const CELLS_PER_UNIT: f64 = 8192.0;
        const RANGE: f64 = 8.0;
        // Weights, and weights times values, of the cells before each.
        let mut before = vec![[0.0; 2]];
        for cell in 0..(2.0 * RANGE * CELLS_PER_UNIT) as usize {
            let x = (cell as f64 + 0.5) / CELLS_PER_UNIT - RANGE;
            let weight = (-0.5 * x * x).exp();
            let [weights, sums] = before[cell];
            before.push([weights + weight, sums + weight * x]);
        }
        let mut levels: [f64; LEVELS] = std::array::from_fn(|i| i as f64 - 3.5);
        let before = |x: f64| {
            let cells = (x + RANGE) * CELLS_PER_UNIT;
            let (cell, part) = (cells as usize, cells.fract());
            let after = before.get(cell + 1).unwrap_or(&before[cell]);
            [0, 1].map(|i| before[cell][i] + part * (after[i] - before[cell][i]))
        };
        for _ in 0..1000 {
            let border = |i: usize| match i {
                0 => -RANGE,
                LEVELS => RANGE,
                _ => 0.5 * (levels[i - 1] + levels[i]),
            };
            levels = std::array::from_fn(|i| {
                let [low, high] = [before(border(i)), before(border(i + 1))];
                (high[1] - low[1]) / (high[0] - low[0])
            });
        }
        for (level, expected) in NORMAL_LEVELS.into_iter().zip(levels) {
            assert!((f64::from(level) - expected).abs() < 1e-5, "{level}, not {expected}");
        }
    }

    #[test]
    fn means_are_rounded_to_the_nearest_byte() {
        for byte in 0..=u8::MAX {
            let mean = half_of(byte).to_f32();
            if mean.is_finite() {
                assert_eq!(round_mean(mean), byte);
                assert_eq!(round_mean(mean * (1.0 + 1.0 / 64.0)), byte, "within half a step");
            } else {
                assert_eq!(round_mean(mean), NAN_MEAN);
            }
        }
        assert_eq!(half_of(round_mean(1.125)).to_f32(), 1.0, "ties to even");
        assert_eq!(half_of(round_mean(1.375)).to_f32(), 1.5, "ties to even");
        assert_eq!(round_mean(65_000.0), NAN_MEAN);
    }

    #[test]
    fn tiles_are_whole_cache_lines() {
        for (head_dim, bytes) in [(32, 512), (64, 896), (96, 1344), (128, 1728), (256, 3392)] {
            assert_eq!(head_dim * CODE_BYTES + 2 * n_halves(head_dim), bytes);
            assert_eq!(bytes % size_of::<Line>(), 0);
        }
    }
}
