//! Values of `q4` and KIVI: scale and minimum per position and group of dimensions.

use half::f16;

use super::codes::{Codes, quantize};
use super::{GROUP, KEY_TILE, Quants, Tile, WIDE};
use crate::lanes::{LANES, Lanes, Vectors, WideLanes};

/// Largest number of dimensions per group.
const MAX_GROUP: usize = 128;

/// Tile of values, `[32, head_dim]`; scales and minima `[32, head_dim / group]`.
#[derive(Clone, Copy)]
pub(in crate::attention) struct TokenValues<'a, C: Codes> {
    /// Packed quants of 32 dimensions (two columns) each.
    quants: &'a [C::Packed],
    scales: &'a [f32],
    minima: &'a [f32],
    columns: usize,
    /// Columns per group, as a binary logarithm.
    group: u32,
}

impl<'a, C: Codes> TokenValues<'a, C> {
    /// Creates a tile of rows of `columns` wide vectors with `group` dimensions per scale.
    #[inline(always)]
    pub(super) fn new(tile: Quants<'a>, columns: usize, group: usize) -> Self {
        let (scales, minima) = tile.scales.split_at(tile.scales.len() / 2);
        let group = (group / WIDE).trailing_zeros();
        Self { quants: bytemuck::cast_slice(tile.bytes), scales, minima, columns, group }
    }
}

impl<C: Codes> Tile for TokenValues<'_, C> {
    #[inline(always)]
    fn load<L: WideLanes, const N: usize>(self, l: L, row: usize, column: usize) -> [L::W; N] {
        let first = row * self.columns + column;
        let mut x = [l.wide().splat(0.0); N];
        let mut n = 0;
        while n < N {
            let q = C::unpack(l, &self.quants[(first + n) / 2]);
            let group = (first + n) >> self.group;
            let (scale, minimum) = (l.wide().splat(self.scales[group]), l.wide().splat(self.minima[group]));
            if N == 1 {
                x[n] = l.wide().fma(q[first % 2], scale, minimum);
            } else {
                x[n] = l.wide().fma(q[0], scale, minimum);
                x[n + 1] = l.wide().fma(q[1], scale, minimum);
            }
            n += 2;
        }
        x
    }
}

/// Stores values of consecutive positions, `[positions, head_dim]`, from slot `slot` of the tile.
#[inline(always)]
pub(super) fn store<L: Lanes, C: Codes>(
    l: L,
    values: &[f32],
    dim: usize,
    slot: usize,
    group: usize,
    quants: &mut [u8],
    scales: &mut [f16],
) {
    let values = values.as_chunks::<GROUP>().0;
    let quants: &mut [C::Packed] = bytemuck::cast_slice_mut(quants);
    let (scales, minima) = scales.split_at_mut(dim / group * KEY_TILE);
    let (first, units) = (slot * (dim / group), group / GROUP);
    let groups = first..first + values.len() / units;
    let scales = scales[groups.clone()].chunks_mut(LANES).zip(minima[groups].chunks_mut(LANES));
    let mut q = [[0; GROUP]; LANES * MAX_GROUP / GROUP];
    let places = quants[first * units..].chunks_mut(LANES * units);
    for ((x, to), (scales, minima)) in values.chunks(LANES * units).zip(places).zip(scales) {
        let q = &mut q[..x.len()];
        quantize::<L, C>(l, x, q, scales, minima);
        for (to, q) in to.iter_mut().zip(&*q) {
            *to = C::pack(q);
        }
    }
}
