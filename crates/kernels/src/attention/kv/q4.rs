//! Keys and values in 4 bits: `x = minimum + scale * q`, one rounding in f32.

use half::f16;

use super::super::KEY_TILE;
use super::store::{KvRole, Row, inverse, scale_of};
use super::{GROUP, KvFormat, Quants, Tile, WIDE, split_mut};
use crate::lanes::{LANES, Lanes, WideLanes};

/// Largest quant.
const LARGEST: f32 = 15.0;

/// A tile of keys, `[head_dim, 32]`; scales and minima `[head_dim / 32, 32]`.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Q4Keys<'a> {
    quants: &'a [[u8; WIDE]],
    scales: &'a [[[f32; LANES]; 2]],
    minima: &'a [[[f32; LANES]; 2]],
}

impl<'a> Q4Keys<'a> {
    #[inline(always)]
    pub(super) fn new(tile: Quants<'a>) -> Self {
        let (scales, minima) = tile.scales.split_at(tile.scales.len() / 2);
        let (scales, minima) = (bytemuck::cast_slice(scales), bytemuck::cast_slice(minima));
        Self { quants: tile.bytes, scales, minima }
    }
}

impl Tile for Q4Keys<'_> {
    #[inline(always)]
    fn load<L: WideLanes, const N: usize>(self, l: L, row: usize, column: usize) -> [L::W; N] {
        let q = l.wide_load_nibbles(&self.quants[row]);
        let first = 2 * (row / GROUP) + column;
        let (scales, minima) = (&self.scales[first..][..N], &self.minima[first..][..N]);
        let mut x = [l.wide_splat(0.0); N];
        for n in 0..N {
            x[n] = l.wide_fma(q[column + n], l.wide_load(&scales[n]), l.wide_load(&minima[n]));
        }
        x
    }
}

/// A tile of values, `[32, head_dim]`; scales and minima `[32, head_dim / 32]`.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Q4Values<'a> {
    quants: &'a [[u8; WIDE]],
    scales: &'a [f32],
    minima: &'a [f32],
    columns: usize,
}

impl<'a> Q4Values<'a> {
    #[inline(always)]
    pub(super) fn new(tile: Quants<'a>, columns: usize) -> Self {
        let (scales, minima) = tile.scales.split_at(tile.scales.len() / 2);
        Self { quants: tile.bytes, scales, minima, columns }
    }
}

impl Tile for Q4Values<'_> {
    /// Columns lie in pairs, one in the low halves of 16 bytes and one in the high ones.
    #[inline(always)]
    fn load<L: WideLanes, const N: usize>(self, l: L, row: usize, column: usize) -> [L::W; N] {
        let first = row * self.columns + column;
        let mut x = [l.wide_splat(0.0); N];
        let mut n = 0;
        while n < N {
            let group = (first + n) / 2;
            let q = l.wide_load_nibbles(&self.quants[group]);
            let (scale, minimum) = (l.wide_splat(self.scales[group]), l.wide_splat(self.minima[group]));
            if N == 1 {
                x[n] = l.wide_fma(q[first % 2], scale, minimum);
            } else {
                x[n] = l.wide_fma(q[0], scale, minimum);
                x[n + 1] = l.wide_fma(q[1], scale, minimum);
            }
            n += 2;
        }
        x
    }
}

/// Stores one row.
#[inline(always)]
pub(super) fn store<L: Lanes>(l: L, row: Row<'_>, tile: &mut [u8]) {
    let dim = row.values.len();
    let (quants, scales) = split_mut(KvFormat::Q4, dim, tile);
    let (scales, minima) = scales.split_at_mut(dim);
    for (group, x) in row.values.as_chunks::<GROUP>().0.iter().enumerate() {
        let (scale, minimum, q) = quantize(l, x);
        scales[row.group_index(group)] = scale;
        minima[row.group_index(group)] = minimum;
        match row.role {
            KvRole::Keys => {
                let (byte, shift) = (row.slot % WIDE, row.slot / WIDE * 4);
                for (i, q) in q.into_iter().enumerate() {
                    let byte = &mut quants[(group * GROUP + i) * (KEY_TILE / 2) + byte];
                    *byte = *byte & !(15 << shift) | (q as u8) << shift;
                }
            }
            KvRole::Values => {
                let to = &mut quants[(row.slot * dim + group * GROUP) / 2..][..GROUP / 2];
                for (i, to) in to.iter_mut().enumerate() {
                    *to = q[i] as u8 | (q[i + WIDE] as u8) << 4;
                }
            }
        }
    }
}

/// Scale, minimum and quants (integers in f32) of a group.
#[inline(always)]
fn quantize<L: Lanes>(l: L, x: &[f32; GROUP]) -> (f16, f16, [f32; GROUP]) {
    let vectors = x.as_chunks::<LANES>().0;
    let (mut low, mut high) = (l.splat(f32::INFINITY), l.splat(f32::NEG_INFINITY));
    let mut poison = l.zero();
    for x in vectors {
        let x = l.load(x);
        (low, high) = (l.min(x, low), l.max(x, high));
        poison = l.add(poison, l.sub(x, x));
    }
    // The smallest lane, as the largest of the negated ones.
    let low = -l.max_lane(l.sub(l.zero(), low));
    let minimum = f16::from_f32_const(low);
    // The largest value is met exactly (but for the rounding of the scale), wherever the minimum was rounded to.
    let offset = minimum.to_f32_const();
    let span = l.max_lane(high) - offset;
    let span = if span < 0.0 { 0.0 } else { span };
    let step = if offset.is_finite() { span / LARGEST } else { f32::NAN };
    let scale = scale_of(step + l.sum(poison));
    let (offset, inverse) = (l.splat(offset), l.splat(inverse(scale)));
    let mut q = [0.0; GROUP];
    for (x, q) in vectors.iter().zip(q.as_chunks_mut::<LANES>().0) {
        let rounded = l.round(l.mul(l.sub(l.load(x), offset), inverse));
        l.store(l.max(l.zero(), l.min(l.splat(LARGEST), rounded)), q);
    }
    (scale, minimum, q)
}
