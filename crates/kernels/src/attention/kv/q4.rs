//! Keys in 4 bits with a scale and a minimum per position and 32 dimensions: `x = minimum + scale *
//! q`, one rounding in f32.

use half::f16;

use super::super::KEY_TILE;
use super::codes::{Codes, FourBits, Range, count, quantize};
use super::row::HeadRow;
use super::{GROUP, Line, Quants, Tile, WIDE, floats};
use crate::lanes::{LANES, Lanes, Vectors, WideLanes};

/// Tile of keys, `[head_dim, 32]`; scales and minima `[head_dim / 32, 32]`.
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
        Self { quants: bytemuck::cast_slice(tile.bytes), scales, minima }
    }
}

impl Tile for Q4Keys<'_> {
    #[inline(always)]
    fn load<L: WideLanes, const N: usize>(self, l: L, row: usize, column: usize) -> [L::W; N] {
        let q = FourBits::unpack(l, &self.quants[row]);
        let first = 2 * (row / GROUP) + column;
        let (scales, minima) = (&self.scales[first..][..N], &self.minima[first..][..N]);
        let mut x = [l.wide().splat(0.0); N];
        for n in 0..N {
            x[n] = l.wide().fma(q[column + n], l.wide().load(&scales[n]), l.wide().load(&minima[n]));
        }
        x
    }
}

/// Stores the keys of one position.
#[inline(always)]
pub(super) fn store<L: Lanes>(l: L, row: HeadRow<'_>, quants: &mut [u8], scales: &mut [f16]) {
    let (scales, minima) = scales.split_at_mut(row.values.len());
    let (byte, shift) = (row.slot % WIDE, row.slot / WIDE * 4);
    let (mut q, mut scale, mut minimum) = ([[0; GROUP]; LANES], [f16::ZERO; LANES], [f16::ZERO; LANES]);
    for (eight, x) in row.values.as_chunks::<GROUP>().0.chunks(LANES).enumerate() {
        let n = x.len();
        quantize::<L, FourBits>(l, x, &mut q[..n], &mut scale[..n], &mut minimum[..n]);
        for (i, q) in q[..n].iter().enumerate() {
            let group = eight * LANES + i;
            scales[row.group_index(group)] = scale[i];
            minima[row.group_index(group)] = minimum[i];
            for (i, q) in q.iter().enumerate() {
                let byte = &mut quants[(group * GROUP + i) * (KEY_TILE / 2) + byte];
                *byte = *byte & !(15 << shift) | q << shift;
            }
        }
    }
}

/// Stores a whole tile of keys, `[dim, 32]`, with groups as lanes; same bytes as position by
/// position.
#[inline(always)]
pub(super) fn store_tile<L: Lanes>(l: L, keys: &[Line], quants: &mut [u8], scales: &mut [f16]) {
    let keys = floats(keys).as_chunks::<KEY_TILE>().0;
    let (scales, minima) = scales.split_at_mut(keys.len());
    let quants = quants.as_chunks_mut::<WIDE>().0;
    let scales = scales.as_chunks_mut::<KEY_TILE>().0.iter_mut().zip(minima.as_chunks_mut::<KEY_TILE>().0);
    for ((keys, quants), (scales, minima)) in
        keys.chunks_exact(GROUP).zip(quants.chunks_exact_mut(GROUP)).zip(scales)
    {
        let mut q = [[0; KEY_TILE]; GROUP];
        for column in (0..KEY_TILE).step_by(LANES) {
            let mut range = Range::new(l);
            for keys in keys {
                range = range.with(l, l.load(&keys.as_chunks().0[column / LANES]));
            }
            let steps = range.steps::<FourBits>(l);
            scales[column..column + LANES].copy_from_slice(&steps.scales);
            minima[column..column + LANES].copy_from_slice(&steps.minima);
            for (keys, q) in keys.iter().zip(&mut q) {
                let x = l.sub(l.load(&keys.as_chunks().0[column / LANES]), steps.offset);
                q.as_chunks_mut().0[column / LANES] =
                    count(l, l.mul(x, steps.inverse), [0.0, FourBits::LARGEST]);
            }
        }
        for (to, q) in quants.iter_mut().zip(&q) {
            *to = FourBits::pack(q);
        }
    }
}
