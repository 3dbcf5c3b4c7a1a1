//! Reading of tiles: codes to levels, outliers, RoPE on keys.

use half::f16;

use super::super::three_bits::{CODE_BYTES, unpack};
use super::super::{KEY_TILE, KvTile, Line, WIDE, floats_mut};
use super::outliers::{NO_PLACE, split_outliers};
use super::{GROUP, NuqTile, middle_and_half};
use crate::lanes::{Groups, LANES, Vectors, WideLanes};

/// Lines per 32 values.
const LINES: usize = GROUP / WIDE;

/// Dequantizes a tile of keys, with RoPE, `[dim, 32]`.
#[inline(always)]
pub(in crate::attention) fn widen_keys<L: WideLanes>(
    l: L,
    tile: KvTile<'_>,
    nuq: NuqTile<'_>,
    dim: usize,
    to: &mut [Line],
) {
    let to = &mut to[..LINES * dim];
    let levels = l.load(nuq.codebooks.key_levels());
    let (codes, _) = tile.numbers.as_chunks::<CODE_BYTES>();
    let (rows, _) = to.as_chunks_mut::<LINES>();
    for ((codes, range), to) in codes.iter().zip(nuq.key_ranges(dim)).zip(rows) {
        let [middle, half] = middle_and_half(*range);
        decode(l, levels, l.splat(middle), l.splat(half), codes, to);
    }
    if put_outliers(l, tile.scales, floats_mut(to)) {
        nuq.rope.apply::<L, false>(l, nuq.index, to);
    }
}

/// Dequantizes a tile of values, `[32, dim]`.
#[inline(always)]
pub(in crate::attention) fn widen_values<L: WideLanes>(
    l: L,
    tile: KvTile<'_>,
    nuq: NuqTile<'_>,
    dim: usize,
    to: &mut [Line],
) {
    let to = &mut to[..LINES * dim];
    let levels = l.load(nuq.codebooks.value_levels());
    let (ranges, outliers) = tile.scales.split_at(2 * KEY_TILE);
    let mut wide = [0.0; 2 * KEY_TILE];
    widen_halves(l, ranges, &mut wide);
    let (middles, halves) = wide.split_at(KEY_TILE);
    let groups = dim / GROUP;
    let (codes, _) = tile.numbers.as_chunks::<CODE_BYTES>();
    let (units, _) = to.as_chunks_mut::<LINES>();
    let rows = codes.chunks_exact(groups).zip(units.chunks_exact_mut(groups));
    for ((codes, row), (middle, half)) in rows.zip(middles.iter().zip(halves)) {
        let (middle, half) = (l.splat(*middle), l.splat(*half));
        for (codes, to) in codes.iter().zip(row) {
            decode(l, levels, middle, half, codes, to);
        }
    }
    put_outliers(l, outliers, floats_mut(to));
}

/// Dequantizes 32 codes of one range.
#[inline(always)]
fn decode<L: WideLanes>(
    l: L,
    levels: L::V,
    middle: L::V,
    half: L::V,
    codes: &[u8; CODE_BYTES],
    to: &mut [Line; LINES],
) {
    let codes = unpack(codes);
    for (codes, to) in codes.as_chunks::<2>().0.iter().zip(to) {
        let first = l.fma(l.lookup(levels, codes[0]), half, middle);
        let second = l.fma(l.lookup(levels, codes[1]), half, middle);
        l.wide().store(l.wide().join(first, second), to.halves_mut());
    }
}

/// Writes the outliers to their indices; out-of-range indices (damaged bytes) are ignored. Returns
/// `false` if the tile is marked as NaN, after filling it with NaN.
#[inline(always)]
fn put_outliers<L: WideLanes>(l: L, outliers: &[f16], to: &mut [f32]) -> bool {
    let (places, numbers) = split_outliers(outliers);
    let mut poison = 0.0;
    for (places, numbers) in places.as_chunks::<LANES>().0.iter().zip(numbers.as_chunks::<LANES>().0) {
        let mut wide = [0.0; LANES];
        l.store(l.load_f16(numbers), &mut wide);
        for (place, number) in places.iter().zip(wide) {
            if place.to_bits() == NO_PLACE {
                poison += number;
            } else if let Some(x) = to.get_mut(usize::from(place.to_bits())) {
                *x = number;
            }
        }
    }
    if f32::is_nan(poison) {
        to.fill(f32::NAN);
        return false;
    }
    true
}

/// Widens half-precision numbers, a multiple of eight, to f32.
#[inline(always)]
fn widen_halves<L: WideLanes>(l: L, halves: &[f16], to: &mut [f32]) {
    for (halves, to) in halves.as_chunks::<LANES>().0.iter().zip(to.as_chunks_mut::<LANES>().0) {
        l.store(l.load_f16(halves), to);
    }
}
