//! Coherence: neighbouring sentences are more alike than sentences in shuffled order.

use std::collections::HashSet;
use std::sync::Arc;

use crate::error::Result;
use crate::lexical::{normalized, sentences};
use crate::model::{Embed, dot, embed_unit};

use super::{Sample, Score, Scorer};

/// Share of random orders of the text's own sentences that are less coherent than its order.
///
/// The statistic is the sum of cosines of adjacent sentence embeddings. Its mean and variance over
/// all orders are exact (sums over the similarity matrix), the share follows from the normal
/// approximation: 0.5 is chance, whatever the topic and the embedding model's typical cosine.
/// Repeated sentences count once, so that a loop is not taken for coherence.
pub struct Coherence {
    embed: Arc<dyn Embed>,
    max_sentences: usize,
}

impl Coherence {
    /// Makes the scorer. The first `max_sentences` distinct sentences are embedded, one call each.
    pub fn new(embed: Arc<dyn Embed>, max_sentences: usize) -> Self {
        Self { embed, max_sentences }
    }
}

impl Scorer for Coherence {
    fn name(&self) -> &'static str {
        "coherence"
    }

    fn score(&self, sample: &Sample<'_>) -> Result<Score> {
        let mut seen = HashSet::new();
        let mut embeddings = Vec::new();
        for sentence in sentences(sample.text) {
            if embeddings.len() == self.max_sentences {
                break;
            }
            if seen.insert(normalized(sentence)) {
                embeddings.push(embed_unit(self.embed.as_ref(), sentence)?);
            }
        }
        let n = embeddings.len();
        if n < 4 {
            return Ok(Score::absent(format!("{n} distinct sentences, need 4 to compare orders")));
        }
        let order = Orders::of(&embeddings);
        let Some(z) = order.z() else {
            return Ok(Score::absent("all orders of the sentences are equally coherent"));
        };
        let pairs = (n - 1) as f64;
        Ok(Score::new(
            normal_cdf(z),
            vec![
                ("sentences", n as f64),
                ("adjacent_cosine", order.sum / pairs),
                ("shuffled_cosine", order.mean / pairs),
                ("z", z),
            ],
        ))
    }
}

/// Sum of adjacent similarities, and its distribution over all orders.
struct Orders {
    sum: f64,
    mean: f64,
    variance: f64,
}

impl Orders {
    /// Moments of `Σ S(πᵢ, πᵢ₊₁)` over permutations π of at least 4 items. Pairs of edges of a path
    /// are equal, share a vertex or are disjoint; each case has one expectation.
    fn of(embeddings: &[Vec<f32>]) -> Self {
        let n = embeddings.len();
        let (mut total, mut squares, mut row_squares, mut sum) = (0.0, 0.0, 0.0, 0.0);
        for (i, a) in embeddings.iter().enumerate() {
            let mut row = 0.0;
            for (j, b) in embeddings.iter().enumerate() {
                if i != j {
                    let s = f64::from(dot(a, b));
                    row += s;
                    squares += s * s;
                    if j == i + 1 {
                        sum += s;
                    }
                }
            }
            total += row;
            row_squares += row * row;
        }
        let f = n as f64;
        let edges = f - 1.0;
        let (two, three, four) =
            (f * (f - 1.0), f * (f - 1.0) * (f - 2.0), f * (f - 1.0) * (f - 2.0) * (f - 3.0));
        let equal = squares / two;
        let sharing = (row_squares - squares) / three;
        let disjoint = (total * total - 4.0 * row_squares + 2.0 * squares) / four;
        let mean = edges * total / two;
        let n_sharing = 2.0 * (edges - 1.0);
        let n_disjoint = edges * edges - edges - n_sharing;
        let second = edges * equal + n_sharing * sharing + n_disjoint * disjoint;
        Self { sum, mean, variance: second - mean * mean }
    }

    /// Standard score of the text's order; `None` if all orders are alike.
    fn z(&self) -> Option<f64> {
        // The variance is a difference of sums: below this it is rounding of f32 cosines.
        (self.variance > 1e-9).then(|| (self.sum - self.mean) / self.variance.sqrt())
    }
}

/// Normal distribution function by Abramowitz and Stegun 26.2.17 (absolute error < 7.5e-8).
fn normal_cdf(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let poly = t
        * (0.319_381_530
            + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let upper = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt() * poly;
    if z >= 0.0 { 1.0 - upper } else { upper }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::normalize;

    /// Visits all orders of the items (Heap's algorithm).
    fn permutations(items: &mut Vec<Vec<f32>>, n: usize, visit: &mut impl FnMut(&[Vec<f32>])) {
        if n == 1 {
            return visit(items);
        }
        for i in 0..n {
            permutations(items, n - 1, visit);
            items.swap(if n.is_multiple_of(2) { i } else { 0 }, n - 1);
        }
    }

    #[test]
    fn moments_equal_those_of_all_orders() {
        let mut items: Vec<_> =
            [[1.0, 0.0, 0.2], [0.9, 0.3, 0.0], [0.1, 1.0, 0.4], [0.0, 0.8, 1.0], [0.5, 0.5, 0.5]]
                .into_iter()
                .map(|x: [f32; 3]| normalize(x.to_vec(), "x").unwrap())
                .collect();
        let order = Orders::of(&items);
        let mut sums = Vec::new();
        permutations(&mut items, 5, &mut |items| {
            sums.push(items.windows(2).map(|pair| f64::from(dot(&pair[0], &pair[1]))).sum::<f64>());
        });
        assert_eq!(sums.len(), 120);
        let mean = sums.iter().sum::<f64>() / 120.0;
        let variance = sums.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / 120.0;
        assert!((order.mean - mean).abs() < 1e-6 && (order.variance - variance).abs() < 1e-6);
    }

    #[test]
    fn normal_distribution() {
        for (z, p) in [(0.0, 0.5), (1.959_964, 0.975), (-1.281_552, 0.1), (6.0, 1.0), (-40.0, 0.0)] {
            assert!((normal_cdf(z) - p).abs() < 1e-6, "{z}");
        }
    }
}
