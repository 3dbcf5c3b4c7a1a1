//! Training of centroids: Lloyd's k-means per subspace, deterministic for any number of threads.

use std::sync::Mutex;

use super::{ProductQuantizer, check_finite, nearest};
use crate::vector::distance::COLUMNS;
use crate::{Error, Kernels, Result, ThreadPool};

/// Parameters of [`ProductQuantizer::train`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProductTraining {
    /// Number of subspaces, and bytes per code; must divide the vector length.
    pub subspaces: usize,
    /// Centroids per subspace, 1 to 256; capped at the number of vectors.
    pub centroids: usize,
    /// Maximum number of k-means rounds; training stops early on convergence.
    pub iterations: usize,
    /// Seed for the choice of start vectors.
    pub seed: u64,
}

impl ProductTraining {
    /// Creates the defaults: 256 centroids per subspace, 25 rounds, seed 0.
    pub fn new(subspaces: usize) -> Self {
        Self { subspaces, centroids: COLUMNS, iterations: 25, seed: 0 }
    }
}

impl ProductQuantizer {
    /// Trains the centroids of each subspace by k-means over `rows`.
    ///
    /// Starts from distinct vectors chosen by the seed. An empty cluster moves to the vector
    /// farthest from its centroid. One round takes `n * centroids * dim` steps, and training copies
    /// the subspaces being processed, so use a sample of a large collection: some hundred vectors
    /// per centroid.
    ///
    /// # Shapes
    /// `rows`: `[n, dim]`.
    ///
    /// # Errors
    /// [`Error::ProductShape`] if `subspaces` does not divide `dim` or the number of centroids is
    /// not in 1 to 256, [`Error::VectorCount`] if `rows` is not one or more whole vectors,
    /// [`Error::VectorValue`] for a non-finite value.
    pub fn train(
        kernels: &Kernels,
        pool: &ThreadPool,
        rows: &[f32],
        dim: usize,
        training: &ProductTraining,
    ) -> Result<Self> {
        let ProductTraining { subspaces, centroids, iterations, seed } = *training;
        let mut quantizer = Self::empty(dim, subspaces, centroids)?;
        if rows.is_empty() || !rows.len().is_multiple_of(dim) {
            return Err(Error::VectorCount { found: rows.len(), dim });
        }
        check_finite(rows, dim)?;
        quantizer.centroids = centroids.min(rows.len() / dim);
        let (count, part) = (quantizer.centroids, quantizer.part());
        // Each lock is taken once, by the thread that processes the subspace.
        let parts: Vec<_> = quantizer.columns.chunks_exact_mut(part).map(Mutex::new).collect();
        pool.for_each_chunk(subspaces, 1, &|range| {
            for subspace in range {
                let points: Vec<f32> =
                    rows.chunks_exact(dim).flat_map(|row| &row[subspace * part..][..part]).copied().collect();
                let mut columns = parts[subspace].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let mut means = Means { kernels, points: &points, columns: &mut columns, count };
                means.start(&mut SplitMix64(seed ^ (subspace as u64).wrapping_mul(GAMMA)));
                means.settle(iterations);
            }
        });
        drop(parts);
        Ok(quantizer)
    }
}

/// k-means over the points of one subspace.
struct Means<'a> {
    kernels: &'a Kernels,
    /// Points, `[n, columns.len()]`.
    points: &'a [f32],
    /// Centroids as columns, `[dim, COLUMNS]`; the first `count` are in use.
    columns: &'a mut [[f32; COLUMNS]],
    count: usize,
}

impl Means<'_> {
    fn point(&self, i: usize) -> &[f32] {
        &self.points[i * self.columns.len()..][..self.columns.len()]
    }

    fn set_centroid(&mut self, centroid: usize, values: impl IntoIterator<Item = f32>) {
        for (column, value) in self.columns.iter_mut().zip(values) {
            column[centroid] = value;
        }
    }

    /// Starts from `count` distinct points (a partial Fisher-Yates shuffle).
    fn start(&mut self, random: &mut SplitMix64) {
        let points = self.points;
        let n = points.len() / self.columns.len();
        let mut order: Vec<usize> = (0..n).collect();
        for centroid in 0..self.count {
            order.swap(centroid, centroid + random.below(n - centroid));
            let start = order[centroid] * self.columns.len();
            self.set_centroid(centroid, points[start..].iter().copied());
        }
    }

    /// Runs k-means rounds until the assignment of the points is stable.
    fn settle(&mut self, iterations: usize) {
        let n = self.points.len() / self.columns.len();
        let mut assigned = vec![(0, f32::NAN); n];
        for round in 0..iterations {
            let mut moved = round == 0;
            for (i, assigned) in assigned.iter_mut().enumerate() {
                let now = nearest(self.kernels, self.point(i), self.columns);
                moved |= now.0 != assigned.0;
                *assigned = now;
            }
            if !moved {
                return;
            }
            self.move_to_means(&mut assigned);
        }
    }

    /// Moves each centroid to the mean of its points.
    ///
    /// One without points moves to the point farthest from its own centroid.
    fn move_to_means(&mut self, assigned: &mut [(u8, f32)]) {
        let dim = self.columns.len();
        let mut sums = vec![0.0f64; self.count * dim];
        let mut counts = vec![0usize; self.count];
        for (point, &(centroid, _)) in self.points.chunks_exact(dim).zip(assigned.iter()) {
            let centroid = usize::from(centroid);
            counts[centroid] += 1;
            for (sum, &x) in sums[centroid * dim..].iter_mut().zip(point) {
                *sum += f64::from(x);
            }
        }
        for (centroid, &count) in counts.iter().enumerate() {
            if count > 0 {
                let sum = &sums[centroid * dim..][..dim];
                self.set_centroid(centroid, sum.iter().map(|sum| (sum / count as f64) as f32));
            } else if let Some(i) = farthest(assigned) {
                let points = self.points;
                self.set_centroid(centroid, points[i * dim..].iter().copied());
                assigned[i].1 = 0.0;
            }
        }
    }
}

/// First of the points farthest from their centroids; `None` if all distances are 0.
fn farthest(assigned: &[(u8, f32)]) -> Option<usize> {
    let mut best = (None, 0.0);
    for (i, &(_, distance)) in assigned.iter().enumerate() {
        if distance > best.1 {
            best = (Some(i), distance);
        }
    }
    best.0
}

/// Odd increment of the generator's state: 2^64 divided by the golden ratio.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// `SplitMix64` random generator: Steele, Lea, Flood, OOPSLA 2014.
pub(super) struct SplitMix64(pub(super) u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Random number in `0..n`; bias at most `n / 2^64`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}
