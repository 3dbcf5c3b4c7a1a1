//! Keys and values in 8 bits: `x = scale * q`, exact in f32 (8 bits times the 11 of a half-precision scale).

use half::f16;

use super::super::KEY_TILE;
use super::store::{KvRole, Row, inverse, scale_of};
use super::{GROUP, KvFormat, Quants, Tile, WIDE, split_mut};
use crate::lanes::{LANES, Lanes, WideLanes};

/// Largest magnitude of a quant.
const LARGEST: f32 = 127.0;

/// A tile of keys, `[head_dim, 32]`; scales `[head_dim / 32, 32]`.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Q8Keys<'a> {
    quants: &'a [[i8; WIDE]],
    scales: &'a [[[f32; LANES]; 2]],
}

impl<'a> Q8Keys<'a> {
    #[inline(always)]
    pub(super) fn new(tile: Quants<'a>) -> Self {
        Self { quants: bytemuck::cast_slice(tile.bytes), scales: bytemuck::cast_slice(tile.scales) }
    }
}

impl Tile for Q8Keys<'_> {
    #[inline(always)]
    fn load<L: WideLanes, const N: usize>(self, l: L, row: usize, column: usize) -> [L::W; N] {
        let quants = &self.quants[2 * row + column..][..N];
        let scales = &self.scales[2 * (row / GROUP) + column..][..N];
        let mut x = [l.wide_splat(0.0); N];
        for n in 0..N {
            x[n] = l.wide_mul(l.wide_load_i8(&quants[n]), l.wide_load(&scales[n]));
        }
        x
    }
}

/// A tile of values, `[32, head_dim]`; scales `[32, head_dim / 32]`.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Q8Values<'a> {
    quants: &'a [[i8; WIDE]],
    scales: &'a [f32],
    columns: usize,
}

impl<'a> Q8Values<'a> {
    #[inline(always)]
    pub(super) fn new(tile: Quants<'a>, columns: usize) -> Self {
        Self { quants: bytemuck::cast_slice(tile.bytes), scales: tile.scales, columns }
    }
}

impl Tile for Q8Values<'_> {
    #[inline(always)]
    fn load<L: WideLanes, const N: usize>(self, l: L, row: usize, column: usize) -> [L::W; N] {
        let first = row * self.columns + column;
        let quants = &self.quants[first..][..N];
        let mut x = [l.wide_splat(0.0); N];
        for n in 0..N {
            // Two columns share a scale.
            let scale = self.scales[(first + n) / 2];
            x[n] = l.wide_mul(l.wide_load_i8(&quants[n]), l.wide_splat(scale));
        }
        x
    }
}

/// Stores one row.
#[inline(always)]
pub(super) fn store<L: Lanes>(l: L, row: Row<'_>, tile: &mut [u8]) {
    let dim = row.values.len();
    let (quants, scales) = split_mut(KvFormat::Q8, dim, tile);
    for (group, x) in row.values.as_chunks::<GROUP>().0.iter().enumerate() {
        let (scale, q) = quantize(l, x);
        scales[row.group_index(group)] = scale;
        match row.role {
            KvRole::Keys => {
                for (i, q) in q.into_iter().enumerate() {
                    quants[(group * GROUP + i) * KEY_TILE + row.slot] = q as i8 as u8;
                }
            }
            KvRole::Values => {
                let to = &mut quants[row.slot * dim + group * GROUP..][..GROUP];
                for (q, to) in q.into_iter().zip(to) {
                    *to = q as i8 as u8;
                }
            }
        }
    }
}

/// Scale and quants (integers in f32) of a group.
#[inline(always)]
fn quantize<L: Lanes>(l: L, x: &[f32; GROUP]) -> (f16, [f32; GROUP]) {
    let vectors = x.as_chunks::<LANES>().0;
    let (mut largest, mut poison) = (l.zero(), l.zero());
    for x in vectors {
        let x = l.load(x);
        largest = l.max(l.abs(x), largest);
        poison = l.add(poison, l.sub(x, x));
    }
    let scale = scale_of(l.max_lane(largest) / LARGEST + l.sum(poison));
    let inverse = l.splat(inverse(scale));
    let mut q = [0.0; GROUP];
    for (x, q) in vectors.iter().zip(q.as_chunks_mut::<LANES>().0) {
        let rounded = l.round(l.mul(l.load(x), inverse));
        l.store(l.max(l.splat(-LARGEST), l.min(l.splat(LARGEST), rounded)), q);
    }
    (scale, q)
}
