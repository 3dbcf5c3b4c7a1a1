//! KIVI keys: one scale and minimum per dimension over 32, 64 or 128 positions, `x = minimum +
//! scale * q`, one rounding in f32.
//!
//! Source: Liu et al., "KIVI: a tuning-free asymmetric 2bit quantization for KV cache", arXiv
//! 2402.02750.

use half::f16;

use super::codes::{Codes, quantize};
use super::{GROUP, Line, Quants, Tile, floats};
use crate::lanes::{LANES, Lanes, Vectors, WideLanes};

/// Largest number of tiles of keys that share scales.
const MAX_TILES: usize = 4;

/// Tile of keys, `[head_dim, 32]`; scales and minima `[head_dim]`.
#[derive(Clone, Copy)]
pub(in crate::attention) struct ChannelKeys<'a, C: Codes> {
    quants: &'a [C::Packed],
    scales: &'a [f32],
    minima: &'a [f32],
}

impl<'a, C: Codes> ChannelKeys<'a, C> {
    #[inline(always)]
    pub(super) fn new(tile: Quants<'a>) -> Self {
        let (scales, minima) = tile.scales.split_at(tile.scales.len() / 2);
        Self { quants: bytemuck::cast_slice(tile.bytes), scales, minima }
    }
}

impl<C: Codes> Tile for ChannelKeys<'_, C> {
    #[inline(always)]
    fn load<L: WideLanes, const N: usize>(self, l: L, row: usize, column: usize) -> [L::W; N] {
        let q = C::unpack(l, &self.quants[row]);
        let (scale, minimum) = (l.wide().splat(self.scales[row]), l.wide().splat(self.minima[row]));
        let mut x = [l.wide().splat(0.0); N];
        for n in 0..N {
            x[n] = l.wide().fma(q[column + n], scale, minimum);
        }
        x
    }
}

/// Stores a run of tiles that share scales, all positions at once.
///
/// # Shapes
/// `keys`: `[tiles, dim, 32]`; `quants`: all of the run; `scales`: `[2, dim]`, scales, then minima.
#[inline(always)]
pub(super) fn store<L: Lanes, C: Codes>(
    l: L,
    keys: &[Line],
    dim: usize,
    quants: &mut [u8],
    scales: &mut [f16],
) {
    let keys = floats(keys).as_chunks::<GROUP>().0;
    let quants: &mut [C::Packed] = bytemuck::cast_slice_mut(quants);
    let tiles = keys.len() / dim;
    let (scales, minima) = scales.split_at_mut(dim);
    let (mut x, mut q) = ([[0.0; GROUP]; LANES * MAX_TILES], [[0; GROUP]; LANES * MAX_TILES]);
    let (x, q) = (&mut x[..LANES * tiles], &mut q[..LANES * tiles]);
    let eights = scales.as_chunks_mut::<LANES>().0.iter_mut().zip(minima.as_chunks_mut::<LANES>().0);
    for (eight, (scales, minima)) in eights.enumerate() {
        let place = |i: usize| i % tiles * dim + eight * LANES + i / tiles;
        for (i, x) in x.iter_mut().enumerate() {
            *x = keys[place(i)];
        }
        quantize::<L, C>(l, x, q, scales, minima);
        for (i, q) in q.iter().enumerate() {
            quants[place(i)] = C::pack(q);
        }
    }
}
