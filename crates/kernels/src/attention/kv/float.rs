//! Keys and values as floats.

use bytemuck::Pod;
use half::{bf16, f16};

use super::super::KEY_TILE;
use super::row::HeadRow;
use super::{KvRole, Line, Tile, WIDE};
use crate::lanes::{LANES, Lanes, Vectors, WideLanes};

/// Float type for keys and values.
pub(super) trait Float: Pod {
    /// See [`Tile::SERVES_MANY_ROWS`].
    const SERVES_MANY_ROWS: bool = false;

    /// Widens sixteen values exactly.
    fn wide<L: WideLanes>(l: L, x: &[Self; WIDE]) -> L::W;
    /// Rounds eight values to nearest, ties to even.
    fn round<L: Lanes>(l: L, x: &[f32; LANES]) -> [Self; LANES];
}

impl Float for f32 {
    const SERVES_MANY_ROWS: bool = true;

    #[inline(always)]
    fn wide<L: WideLanes>(l: L, x: &[Self; WIDE]) -> L::W {
        l.wide().load(bytemuck::cast_ref(x))
    }

    #[inline(always)]
    fn round<L: Lanes>(_: L, x: &[f32; LANES]) -> [Self; LANES] {
        *x
    }
}

impl Float for f16 {
    #[inline(always)]
    fn wide<L: WideLanes>(l: L, x: &[Self; WIDE]) -> L::W {
        l.wide().load_f16(x)
    }

    #[inline(always)]
    fn round<L: Lanes>(l: L, x: &[f32; LANES]) -> [Self; LANES] {
        let mut rounded = [f16::ZERO; LANES];
        l.store_f16(l.load(x), &mut rounded);
        rounded
    }
}

impl Float for bf16 {
    #[inline(always)]
    fn wide<L: WideLanes>(l: L, x: &[Self; WIDE]) -> L::W {
        l.wide().load_bf16(x)
    }

    #[inline(always)]
    fn round<L: Lanes>(l: L, x: &[f32; LANES]) -> [Self; LANES] {
        let mut rounded = [bf16::ZERO; LANES];
        l.store_bf16(l.load(x), &mut rounded);
        rounded
    }
}

/// Tile of floats.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Floats<'a, T> {
    values: &'a [[T; WIDE]],
    columns: usize,
}

impl<'a, T: Pod> Floats<'a, T> {
    /// Creates a tile of rows of `columns` wide vectors.
    #[inline(always)]
    pub(in crate::attention) fn new(values: &'a [T], columns: usize) -> Self {
        Self { values: values.as_chunks().0, columns }
    }
}

impl<T: Float> Tile for Floats<'_, T> {
    const SERVES_MANY_ROWS: bool = T::SERVES_MANY_ROWS;

    #[inline(always)]
    fn load<L: WideLanes, const N: usize>(self, l: L, row: usize, column: usize) -> [L::W; N] {
        let from = &self.values[row * self.columns + column..][..N];
        let mut x = [l.wide().splat(0.0); N];
        for n in 0..N {
            x[n] = T::wide(l, &from[n]);
        }
        x
    }
}

/// Copies 32 rows of `dim` values to rows padded to whole wide vectors.
#[inline(always)]
pub(super) fn pad<L: WideLanes, T: Float>(l: L, rows: &[T], dim: usize, to: &mut [Line]) {
    let columns = dim.div_ceil(WIDE);
    for (row, to) in rows.chunks_exact(dim).zip(to.chunks_exact_mut(columns)) {
        for (from, to) in row.chunks(WIDE).zip(to) {
            let mut full = [T::zeroed(); WIDE];
            full[..from.len()].copy_from_slice(from);
            l.wide().store(T::wide(l, &full), to.halves_mut());
        }
    }
}

/// Stores one row.
#[inline(always)]
pub(super) fn store<L: Lanes, T: Float>(l: L, row: HeadRow<'_>, tile: &mut [T]) {
    for (i, x) in row.values.chunks(LANES).enumerate() {
        let mut full = [0.0; LANES];
        full[..x.len()].copy_from_slice(x);
        let rounded = T::round(l, &full);
        match row.role {
            KvRole::Keys => {
                for (j, x) in rounded[..x.len()].iter().enumerate() {
                    tile[(i * LANES + j) * KEY_TILE + row.slot] = *x;
                }
            }
            KvRole::Values => {
                let start = row.slot * row.values.len() + i * LANES;
                tile[start..start + x.len()].copy_from_slice(&rounded[..x.len()]);
            }
        }
    }
}
