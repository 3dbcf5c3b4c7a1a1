//! Measures of rankings, clusters and latencies.

use std::time::Duration;

use serde::Serialize;

use crate::routing::vector::dot;

/// Reciprocal rank of the right item in a ranking; 0 if it is absent.
pub fn reciprocal_rank(ranking: &[usize], right: usize) -> f64 {
    ranking.iter().position(|&item| item == right).map_or(0.0, |rank| 1.0 / (rank + 1) as f64)
}

/// Normalized discounted cumulative gain of the first `k` items (Järvelin and Kekäläinen 2002),
/// with gains in the order of the ranking; `ideal` are the gains of all items that exist. 0 without
/// gain.
pub fn ndcg(gains: &[f64], ideal: &[f64], k: usize) -> f64 {
    let mut sorted = ideal.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let best = discounted(&sorted, k);
    if best > 0.0 { discounted(gains, k) / best } else { 0.0 }
}

fn discounted(gains: &[f64], k: usize) -> f64 {
    gains.iter().take(k).enumerate().map(|(rank, gain)| gain / ((rank + 2) as f64).log2()).sum()
}

/// Purity: share of items whose class is the most frequent one of their cluster. 0 without items.
pub fn purity(clusters: &[usize], classes: &[usize]) -> f64 {
    let pairs = || clusters.iter().zip(classes);
    let count = |cluster: usize, class: usize| pairs().filter(|&p| p == (&cluster, &class)).count();
    let mut distinct = clusters.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let most = |cluster: usize| {
        let classes = pairs().filter(|pair| *pair.0 == cluster).map(|pair| *pair.1);
        classes.map(|class| count(cluster, class)).max().unwrap_or(0)
    };
    let matching: usize = distinct.into_iter().map(most).sum();
    matching as f64 / clusters.len().min(classes.len()).max(1) as f64
}

/// Mean silhouette (Rousseeuw 1987) of unit vectors with classes, by cosine distance; classes of
/// one item count 0. 0 without two classes.
pub fn silhouette(units: &[Vec<f32>], classes: &[usize]) -> f64 {
    let class_count = classes.iter().max().map_or(0, |most| most + 1);
    let mut sizes = vec![0_usize; class_count];
    classes.iter().for_each(|&class| sizes[class] += 1);
    let mut total = 0.0;
    for (i, (unit, &class)) in units.iter().zip(classes).enumerate() {
        let mut sums = vec![0.0; class_count];
        for (j, (other, &class)) in units.iter().zip(classes).enumerate() {
            if i != j {
                sums[class] += 1.0 - f64::from(dot(unit, other));
            }
        }
        let others = (0..class_count).filter(|&other| other != class && sizes[other] > 0);
        let nearest = others.map(|other| sums[other] / sizes[other] as f64).reduce(f64::min);
        let Some(nearest) = nearest.filter(|_| sizes[class] > 1) else { continue };
        let own = sums[class] / (sizes[class] - 1) as f64;
        total += (nearest - own) / nearest.max(own).max(f64::MIN_POSITIVE);
    }
    total / units.len().max(1) as f64
}

/// Percentiles of measured durations, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latency {
    /// Half of all are at most this.
    pub p50_us: f64,
    /// 95 % are at most this.
    pub p95_us: f64,
    /// 99 % are at most this.
    pub p99_us: f64,
}

impl Latency {
    /// Percentiles of durations; absent without any.
    pub fn of(mut durations: Vec<Duration>) -> Option<Self> {
        durations.sort_unstable();
        let at = |share: f64| {
            let rank = (share * durations.len() as f64).ceil() as usize;
            durations.get(rank.saturating_sub(1)).map(|duration| duration.as_secs_f64() * 1e6)
        };
        Some(Self { p50_us: at(0.5)?, p95_us: at(0.95)?, p99_us: at(0.99)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rankings_are_measured_as_by_hand() {
        assert_eq!(reciprocal_rank(&[3, 1, 2], 1), 0.5);
        assert_eq!(reciprocal_rank(&[3, 1, 2], 7), 0.0);
        // Gains 1, 0, 1 of two ones: (1 + 1/2) / (1 + 1 / log2(3)).
        let expected = 1.5 / (1.0 + 1.0 / 3.0_f64.log2());
        assert!((ndcg(&[1.0, 0.0, 1.0], &[1.0, 1.0, 0.0], 3) - expected).abs() < 1e-12);
        assert_eq!(ndcg(&[0.0, 1.0], &[1.0, 0.0], 1), 0.0);
        assert_eq!(ndcg(&[], &[], 3), 0.0);
    }

    #[test]
    fn clusters_are_measured_as_by_hand() {
        assert_eq!(purity(&[0, 0, 0, 1, 1], &[5, 5, 6, 6, 6]), 0.8);
        assert_eq!(purity(&[], &[]), 0.0);
        let units = vec![vec![1.0, 0.0], vec![1.0, 0.0], vec![0.0, 1.0], vec![0.0, 1.0]];
        assert_eq!(silhouette(&units, &[0, 0, 1, 1]), 1.0);
        // Each item is at distance 1 of its class and at mean distance 1/2 of the other.
        assert_eq!(silhouette(&units, &[0, 1, 0, 1]), -0.5);
        assert_eq!(silhouette(&units, &[0, 0, 0, 0]), 0.0);
    }

    #[test]
    fn percentiles_are_ranks() {
        let latency = Latency::of((1..=100).map(Duration::from_micros).collect()).unwrap();
        assert!((latency.p50_us - 50.0).abs() < 1e-6 && (latency.p99_us - 99.0).abs() < 1e-6);
        assert_eq!(Latency::of(vec![]), None);
    }
}
