//! Writing of tiles: inverse RoPE on keys, outliers, codes.

use half::f16;

use super::super::codes::inverse;
use super::super::three_bits::{CODE_BYTES, nearest, pack, thresholds};
use super::super::{KEY_TILE, KvRole, Line, floats};
use super::outliers::{Outlier, Trimmed, keep, n_outliers};
use super::{GROUP, NuqTile, middle_and_half};
use crate::lanes::{LANES, Lanes, WideLanes};

/// Stores a tile of keys; applies the inverse RoPE in place.
///
/// # Shapes
/// `keys`: `[dim, 32]`; `outliers`: reused buffer.
#[inline(always)]
pub(in crate::attention::kv) fn store_keys<L: WideLanes>(
    l: L,
    keys: &mut [Line],
    nuq: NuqTile<'_>,
    dim: usize,
    codes: &mut [u8],
    halves: &mut [f16],
    outliers: &mut Vec<Outlier>,
) {
    nuq.rope.apply::<L, true>(l, nuq.index, keys);
    outliers.clear();
    let thresholds = thresholds(nuq.codebooks.key_levels());
    let mut poison = l.zero();
    let rows = floats(keys).as_chunks::<GROUP>().0.iter().zip(nuq.key_ranges(dim));
    for (row, ((keys, range), codes)) in rows.zip(codes.as_chunks_mut::<CODE_BYTES>().0).enumerate() {
        let [middle, half] = middle_and_half(*range);
        let (middle, inverse) = (l.splat(middle), inverse(l, l.splat(half)));
        let (low, high) = (l.splat(range[0]), l.splat(range[1]));
        let mut quants = [0; GROUP];
        for (eight, (x, quants)) in keys.as_chunks().0.iter().zip(quants.as_chunks_mut().0).enumerate() {
            let x = l.load(x);
            poison = l.add(poison, l.sub(x, x));
            let excess = l.max(l.sub(x, high), l.sub(low, x));
            if l.max_lane(excess) > 0.0 {
                collect(l, x, excess, row * KEY_TILE + eight * LANES, outliers);
            }
            *quants = nearest(l, &thresholds, l.mul(l.sub(x, middle), inverse));
        }
        *codes = pack(&quants);
    }
    keep(outliers, l.sum(poison).is_nan(), halves);
}

/// Adds the lanes outside of their range to `outliers`.
#[inline(always)]
fn collect<L: Lanes>(l: L, x: L::V, excess: L::V, place: usize, outliers: &mut Vec<Outlier>) {
    let (mut numbers, mut distances) = ([0.0; LANES], [0.0; LANES]);
    l.store(x, &mut numbers);
    l.store(excess, &mut distances);
    for (lane, (number, excess)) in numbers.into_iter().zip(distances).enumerate() {
        if excess > 0.0 {
            outliers.extend(Outlier::at(place + lane, number, excess));
        }
    }
}

/// Stores a tile of values, `[32, dim]`.
#[inline(always)]
pub(in crate::attention::kv) fn store_values<L: WideLanes>(
    l: L,
    values: &[Line],
    nuq: NuqTile<'_>,
    dim: usize,
    codes: &mut [u8],
    halves: &mut [f16],
) {
    let values = &floats(values)[..KEY_TILE * dim];
    let trimmed = Trimmed::new(values, dim, n_outliers(KvRole::Values, dim));
    let thresholds = thresholds(nuq.codebooks.value_levels());
    let (ranges, outliers) = halves.split_at_mut(2 * KEY_TILE);
    let (middles, halves) = ranges.split_at_mut(KEY_TILE);
    let groups = dim / GROUP;
    let rows = values.as_chunks::<GROUP>().0.chunks_exact(groups);
    let codes = codes.as_chunks_mut::<CODE_BYTES>().0.chunks_exact_mut(groups);
    for (slot, (values, codes)) in rows.zip(codes).enumerate() {
        let [middle, half] = rounded_range(trimmed.range(slot));
        (middles[slot], halves[slot]) = (middle, half);
        let (middle, half) = (l.splat(middle.to_f32_const()), l.splat(half.to_f32_const()));
        let inverse = inverse(l, half);
        for (values, codes) in values.iter().zip(codes) {
            let mut quants = [0; GROUP];
            for (x, quants) in values.as_chunks().0.iter().zip(quants.as_chunks_mut().0) {
                *quants = nearest(l, &thresholds, l.mul(l.sub(l.load(x), middle), inverse));
            }
            *codes = pack(&quants);
        }
    }
    keep(&mut trimmed.outliers(dim), false, outliers);
}

/// Middle and half of a range in half precision; the half is NaN without a range or on overflow.
fn rounded_range(range: Option<[f32; 2]>) -> [f16; 2] {
    let rounded = range.map(|range| middle_and_half(range).map(f16::from_f32_const));
    match rounded {
        Some([middle, half]) if middle.is_finite() && half.is_finite() => [middle, half],
        _ => [f16::ZERO, f16::NAN],
    }
}
