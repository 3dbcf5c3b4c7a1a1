//! Keys and values in 8 bits: `x = scale * q`, exact in f32 (8 bits times the 11 of a
//! half-precision scale).

use half::f16;

use super::super::KEY_TILE;
use super::codes::{count, inverse};
use super::row::HeadRow;
use super::{GROUP, KvRole, Line, Quants, Tile, WIDE, floats};
use crate::lanes::{LANES, Lanes, Vectors, WideLanes};

/// Largest magnitude of a quant.
const LARGEST: f32 = 127.0;

/// Tile of keys, `[head_dim, 32]`; scales `[head_dim / 32, 32]`.
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
        let mut x = [l.wide().splat(0.0); N];
        for n in 0..N {
            x[n] = l.wide().mul(l.wide().load_i8(&quants[n]), l.wide().load(&scales[n]));
        }
        x
    }
}

/// Tile of values, `[32, head_dim]`; scales `[32, head_dim / 32]`.
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
        let mut x = [l.wide().splat(0.0); N];
        for n in 0..N {
            // Two columns share a scale.
            let scale = self.scales[(first + n) / 2];
            x[n] = l.wide().mul(l.wide().load_i8(&quants[n]), l.wide().splat(scale));
        }
        x
    }
}

/// Stores one row.
#[inline(always)]
pub(super) fn store<L: Lanes>(l: L, row: HeadRow<'_>, quants: &mut [u8], scales: &mut [f16]) {
    let dim = row.values.len();
    let mut q = [[0; GROUP]; LANES];
    for (eight, x) in row.values.as_chunks::<GROUP>().0.chunks(LANES).enumerate() {
        let found = quantize(l, x, &mut q);
        for (i, (q, scale)) in q[..x.len()].iter().zip(found).enumerate() {
            let group = eight * LANES + i;
            scales[row.group_index(group)] = scale;
            match row.role {
                KvRole::Keys => {
                    for (i, q) in q.iter().enumerate() {
                        quants[(group * GROUP + i) * KEY_TILE + row.slot] = *q;
                    }
                }
                KvRole::Values => quants[row.slot * dim + group * GROUP..][..GROUP].copy_from_slice(q),
            }
        }
    }
}

/// Stores a whole tile of keys, `[dim, 32]`, with groups as lanes; same bytes as position by
/// position.
#[inline(always)]
pub(super) fn store_tile<L: Lanes>(l: L, keys: &[Line], quants: &mut [u8], scales: &mut [f16]) {
    let keys = floats(keys).as_chunks::<LANES>().0;
    let (quants, scales) = (quants.as_chunks_mut::<LANES>().0, scales.as_chunks_mut::<LANES>().0);
    const COLUMNS: usize = KEY_TILE / LANES;
    for (group, (keys, quants)) in
        keys.chunks_exact(GROUP * COLUMNS).zip(quants.chunks_exact_mut(GROUP * COLUMNS)).enumerate()
    {
        for column in 0..COLUMNS {
            let (mut largest, mut poison) = (l.zero(), l.zero());
            for x in keys[column..].iter().step_by(COLUMNS) {
                let x = l.load(x);
                (largest, poison) = (l.max(l.abs(x), largest), l.add(poison, l.sub(x, x)));
            }
            let inverse;
            (scales[group * COLUMNS + column], inverse) = steps(l, largest, poison);
            for (x, q) in keys[column..].iter().zip(&mut quants[column..]).step_by(COLUMNS) {
                *q = count(l, l.mul(l.load(x), inverse), [-LARGEST, LARGEST]);
            }
        }
    }
}

/// Quantizes up to eight groups; returns their scales. Quants are the bytes of signed integers.
#[inline(always)]
fn quantize<L: Lanes>(l: L, x: &[[f32; GROUP]], q: &mut [[u8; GROUP]; LANES]) -> [f16; LANES] {
    let (mut largest, mut poison) = ([0.0; LANES], [0.0; LANES]);
    for (i, x) in x.iter().enumerate() {
        let (mut group_largest, mut group_poison) = (l.zero(), l.zero());
        for x in x.as_chunks::<LANES>().0 {
            let x = l.load(x);
            group_largest = l.max(l.abs(x), group_largest);
            group_poison = l.add(group_poison, l.sub(x, x));
        }
        (largest[i], poison[i]) = (l.max_lane(group_largest), l.sum(group_poison));
    }
    let (scales, inverse) = steps(l, l.load(&largest), l.load(&poison));
    let mut inverses = [0.0; LANES];
    l.store(inverse, &mut inverses);
    for ((x, q), inverse) in x.iter().zip(q).zip(inverses) {
        for (x, q) in x.as_chunks::<LANES>().0.iter().zip(q.as_chunks_mut::<LANES>().0) {
            *q = count(l, l.mul(l.load(x), l.splat(inverse)), [-LARGEST, LARGEST]);
        }
    }
    scales
}

/// Rounded scales of eight groups, and their reciprocals (0 for a scale of 0).
#[inline(always)]
fn steps<L: Lanes>(l: L, largest: L::V, poison: L::V) -> ([f16; LANES], L::V) {
    let mut scales = [f16::ZERO; LANES];
    l.store_f16(l.add(l.div(largest, l.splat(LARGEST)), poison), &mut scales);
    for scale in &mut scales {
        if !scale.is_finite() {
            *scale = f16::NAN;
        }
    }
    (scales, inverse(l, l.load_f16(&scales)))
}
