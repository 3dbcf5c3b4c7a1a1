//! Spherical k-means with k-means++ seeding (Arthur and Vassilvitskii, SODA 2007).

use ruvllm_kernels::Kernels;
use ruvllm_kernels::vector::{Metric, VectorRows};

use crate::index::unit;
use crate::random::Random;

/// Rounds after which the assignment is taken as it is.
const MAX_ROUNDS: usize = 50;

/// Clusters unit vectors by cosine; returns the cluster of each, below `k`.
///
/// Equal input and seed give equal output. Fewer clusters are used if fewer vectors differ.
pub(super) fn cluster(kernels: Kernels, vectors: &[&[f32]], k: usize, seed: u64) -> Vec<usize> {
    let Some(dim) = vectors.first().map(|vector| vector.len()) else { return Vec::new() };
    let mut centres = seeds(kernels, vectors, k, seed);
    let mut distances = vec![0.0; centres.len() / dim];
    let mut assigned = vec![usize::MAX; vectors.len()];
    for _ in 0..MAX_ROUNDS {
        let next: Vec<usize> = vectors
            .iter()
            .map(|vector| {
                let (query, rows) = (VectorRows::F32(vector), VectorRows::F32(&centres));
                kernels.distances(Metric::Dot, query, rows, &mut distances);
                let nearest = distances.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
                nearest.map_or(0, |(cluster, _)| cluster)
            })
            .collect();
        if next == assigned {
            break;
        }
        assigned = next;
        let mut sums = vec![0.0; centres.len()];
        for (vector, &of) in vectors.iter().zip(&assigned) {
            sums[of * dim..][..dim].iter_mut().zip(*vector).for_each(|(sum, x)| *sum += x);
        }
        for (centre, sum) in centres.chunks_exact_mut(dim).zip(sums.chunks_exact(dim)) {
            // An empty cluster, or one whose vectors cancel out, keeps its centre.
            if let Ok(mean) = unit("centre", sum) {
                centre.copy_from_slice(&mean);
            }
        }
    }
    assigned
}

/// Vectors that are far from one another; `[at most k, dim]`.
///
/// Each is the best of `2 + ln k` vectors drawn with probability proportional to the squared
/// distance to those chosen before, `2 - 2 cos`: the one that lowers the sum of the squares most. A
/// single draw hits a group twice too often (the greedy variant of the paper's experiments).
fn seeds(kernels: Kernels, vectors: &[&[f32]], k: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    let draws = 2 + (k as f64).ln() as usize;
    let first = vectors[random.below(vectors.len())];
    let mut centres = first.to_vec();
    let mut squares = lowered(kernels, vectors, &vec![f64::INFINITY; vectors.len()], first);
    for _ in 1..k.min(vectors.len()) {
        let total: f64 = squares.iter().sum();
        if total == 0.0 {
            break;
        }
        let candidates = (0..draws).map(|_| {
            let drawn = vectors[draw(&squares, random.uniform() * total)];
            let lowered = lowered(kernels, vectors, &squares, drawn);
            (lowered.iter().sum::<f64>(), drawn, lowered)
        });
        let Some((_, best, lowered)) = candidates.min_by(|a, b| a.0.total_cmp(&b.0)) else { break };
        centres.extend_from_slice(best);
        squares = lowered;
    }
    centres
}

/// Index at which the running sum of the squares passes `left`.
fn draw(squares: &[f64], mut left: f64) -> usize {
    let drawn = squares.iter().position(|&square| {
        left -= square;
        left < 0.0
    });
    // Rounding may leave a rest behind the last vector.
    drawn.or_else(|| squares.iter().rposition(|&square| square > 0.0)).unwrap_or(0)
}

/// Squared distances to the nearest centre, with one more centre.
fn lowered(kernels: Kernels, vectors: &[&[f32]], squares: &[f64], centre: &[f32]) -> Vec<f64> {
    let square = |(&square, vector): (&f64, &&[f32])| {
        let dot = -kernels.distance(Metric::Dot, VectorRows::F32(centre), VectorRows::F32(vector));
        let square = square.min(2.0 - 2.0 * f64::from(dot));
        // Rounding noise of equal vectors is no distance.
        if square < 1e-6 { 0.0 } else { square }
    };
    squares.iter().zip(vectors).map(square).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors around `n` axes.
    fn around_axes(n: usize, each: usize) -> Vec<Vec<f32>> {
        let mut random = Random::new(7);
        let mut vectors = Vec::new();
        for i in 0..n * each {
            let mut vector = vec![0.0; n];
            vector[i % n] = 1.0;
            vector.iter_mut().for_each(|x| *x += 0.2 * (random.uniform() as f32 - 0.5));
            vectors.push(unit("vector", &vector).unwrap());
        }
        vectors
    }

    #[test]
    fn separate_groups_are_found_by_every_seed() {
        let kernels = Kernels::detect().unwrap();
        let vectors = around_axes(6, 20);
        let rows: Vec<&[f32]> = vectors.iter().map(Vec::as_slice).collect();
        for seed in 0..20 {
            let clusters = cluster(kernels, &rows, 6, seed);
            for (i, of) in clusters.iter().enumerate() {
                assert_eq!(*of, clusters[i % 6], "seed {seed}");
            }
            assert_eq!(clusters, cluster(kernels, &rows, 6, seed));
        }
    }

    #[test]
    fn equal_vectors_are_one_cluster() {
        let kernels = Kernels::detect().unwrap();
        let vector = [0.6f32, 0.8].as_slice();
        assert_eq!(cluster(kernels, &[vector; 5], 3, 1), [0; 5]);
        assert!(cluster(kernels, &[], 3, 1).is_empty());
    }
}
