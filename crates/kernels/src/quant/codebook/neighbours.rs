//! Grid points near a rounded group of values: the candidates of the quantizers' search.

use std::sync::OnceLock;

/// Candidates per combination of levels.
const CANDIDATES: usize = 24;

/// Grid whose values are one of `LEVELS` levels.
pub(in crate::quant) struct Neighbours<const DIM: usize, const LEVELS: usize> {
    /// Points as floats, `[points]`.
    pub(in crate::quant) points: Vec<[f32; DIM]>,
    levels: [f32; LEVELS],
    /// `[LEVELS^DIM]`: the points nearest to a combination of levels.
    candidates: OnceLock<Vec<[u16; CANDIDATES]>>,
}

impl<const DIM: usize, const LEVELS: usize> Neighbours<DIM, LEVELS> {
    /// `points`: those of the grid, of levels in ascending order.
    pub(in crate::quant) fn new(points: impl Iterator<Item = [f32; DIM]>, levels: [f32; LEVELS]) -> Self {
        Self { points: points.collect(), levels, candidates: OnceLock::new() }
    }

    /// Grid points near `x`, which is in units of the grid.
    #[inline(always)]
    pub(super) fn near(&self, x: &[f32; DIM]) -> &[u16; CANDIDATES] {
        let candidates = self.candidates.get_or_init(|| self.tabulate());
        let mut key = 0;
        for &x in x.iter().rev() {
            let mut level = 0;
            for i in 1..LEVELS {
                level += usize::from(x > (self.levels[i - 1] + self.levels[i]) / 2.0);
            }
            key = key * LEVELS + level;
        }
        &candidates[key]
    }

    fn tabulate(&self) -> Vec<[u16; CANDIDATES]> {
        let mut distances: Vec<(u32, u16)> = vec![(0, 0); self.points.len()];
        let of_key = |key: usize| {
            let mut rest = key;
            let x: [f32; DIM] = std::array::from_fn(|_| {
                let level = rest % LEVELS;
                rest /= LEVELS;
                self.levels[level]
            });
            for (i, (to, point)) in distances.iter_mut().zip(&self.points).enumerate() {
                let squares = x.iter().zip(point).map(|(x, p)| (x - p) * (x - p));
                // Levels are small integers: the sum is exact.
                *to = (squares.sum::<f32>() as u32, i as u16);
            }
            distances.select_nth_unstable(CANDIDATES - 1);
            distances[..CANDIDATES].sort_unstable();
            std::array::from_fn(|i| distances[i].1)
        };
        (0..LEVELS.pow(DIM as u32)).map(of_key).collect()
    }
}
