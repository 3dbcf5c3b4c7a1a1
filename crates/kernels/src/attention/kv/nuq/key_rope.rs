//! RoPE and inverse RoPE on tiles of keys, 32 positions at a time.

use super::super::{Line, as_lines_len, floats_mut};
use super::KEY_TILE;
use crate::lanes::{Vectors, WideLanes};
use crate::rope::{RopeFrequencies, RopeLayout};

/// Lines per dimension of a tile of 32 positions.
const LINES: usize = 2;

/// RoPE tables for keys stored before RoPE: applied on reads, inverted on writes.
///
/// The angle of a position is the sum of the angle at the start of its tile of 32 and the angle of
/// the offset in the tile, so the tables take 1/32 of the memory of a
/// [`RopeTable`](crate::rope::RopeTable). Angles are computed in f64; the angle addition in f32
/// costs an error of about 1e-7.
#[derive(Debug, Clone)]
pub struct KeyRope {
    layout: RopeLayout,
    pairs: usize,
    /// Cosine and sine at the first position of each tile, times the magnitude (attention factor).
    starts: Vec<[f32; 2]>, // [tiles, pairs]
    /// Cosines, then sines, of the offsets in a tile.
    steps: Vec<Line>, // [pairs, 2, 32]
    /// Reciprocal of the squared magnitude: the inverse divides by the magnitude of the keys and by
    /// the magnitude in `starts`.
    inverse_scale: f32,
}

impl KeyRope {
    /// Creates tables for the positions `0..n_positions`, rounded up to whole tiles. Without
    /// frequencies, RoPE is the identity.
    pub fn new(frequencies: &RopeFrequencies, layout: RopeLayout, n_positions: usize) -> Self {
        let RopeFrequencies { inverse, magnitude } = frequencies;
        let tiles = n_positions.div_ceil(KEY_TILE);
        let angles = (0..tiles).flat_map(|tile| inverse.iter().map(move |f| (tile * KEY_TILE) as f64 * f));
        let starts = angles
            .map(|angle| [(angle.cos() * magnitude) as f32, (angle.sin() * magnitude) as f32])
            .collect();
        let mut steps = vec![Line::default(); as_lines_len(2 * KEY_TILE * inverse.len())];
        let (tables, _) = floats_mut(&mut steps).as_chunks_mut::<KEY_TILE>();
        for (tables, f) in tables.chunks_exact_mut(2).zip(inverse) {
            for step in 0..KEY_TILE {
                let angle = step as f64 * f;
                (tables[0][step], tables[1][step]) = (angle.cos() as f32, angle.sin() as f32);
            }
        }
        let inverse_scale = (magnitude * magnitude).recip() as f32;
        Self { layout, pairs: inverse.len(), starts, steps, inverse_scale }
    }

    /// Number of positions in the tables.
    pub fn positions(&self) -> usize {
        self.starts.len().checked_div(self.pairs).map_or(usize::MAX, |tiles| tiles * KEY_TILE)
    }

    /// Number of dimensions per head that RoPE rotates.
    pub fn rotary_dim(&self) -> usize {
        2 * self.pairs
    }

    /// Applies RoPE, or its inverse if `INVERSE`, to the keys of tile `index` of the sequence.
    ///
    /// # Shapes
    /// `keys`: `[dim, 32]`.
    #[inline(always)]
    pub(super) fn apply<L: WideLanes, const INVERSE: bool>(&self, l: L, index: usize, keys: &mut [Line]) {
        if self.pairs == 0 {
            return;
        }
        let starts = &self.starts[index * self.pairs..][..self.pairs];
        let (steps, _) = self.steps.as_chunks::<{ 2 * LINES }>();
        let (keys, _) = keys.as_chunks_mut::<LINES>();
        for (pair, (&[cos, sin], steps)) in starts.iter().zip(steps).enumerate() {
            let factor = if INVERSE { self.inverse_scale } else { 1.0 };
            let (cos, sin) = (l.wide().splat(cos * factor), l.wide().splat(sin * factor));
            let (a, b) = match self.layout {
                RopeLayout::Halves => (pair, pair + self.pairs),
                RopeLayout::Interleaved => (2 * pair, 2 * pair + 1),
            };
            for line in 0..LINES {
                let step_cos = l.wide().load(steps[line].halves());
                let step_sin = l.wide().load(steps[LINES + line].halves());
                let c = l.wide().fnma(sin, step_sin, l.wide().mul(cos, step_cos));
                let s = l.wide().fma(cos, step_sin, l.wide().mul(sin, step_cos));
                let (x, y) = (l.wide().load(keys[a][line].halves()), l.wide().load(keys[b][line].halves()));
                let (x_cos, y_cos) = (l.wide().mul(x, c), l.wide().mul(y, c));
                let (x, y) = if INVERSE {
                    (l.wide().fma(y, s, x_cos), l.wide().fnma(x, s, y_cos))
                } else {
                    (l.wide().fnma(y, s, x_cos), l.wide().fma(x, s, y_cos))
                };
                l.wide().store(x, keys[a][line].halves_mut());
                l.wide().store(y, keys[b][line].halves_mut());
            }
        }
    }
}
