//! Evaluation of embeddings by retrieval and clusters.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::data::DataSet;
use super::metrics::{Latency, ndcg, purity, reciprocal_rank, silhouette};
use crate::error::{Error, Result};
use crate::model::Embed;
use crate::routing::vector::{add_scaled, dot, normalized};

/// Depth of NDCG.
const K: usize = 10;
/// Iterations of k-means, which ends earlier once nothing moves.
const ITERATIONS: usize = 50;

/// Quality of embeddings on a data set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EmbeddingReport {
    /// Values of an embedding.
    pub dim: usize,
    /// Test texts.
    pub cases: usize,
    /// Share of test texts whose nearest train text is of the same agent.
    pub nearest_accuracy: f64,
    /// Share of test texts with one of the same agent among the three nearest train texts.
    pub top3_accuracy: f64,
    /// Mean reciprocal rank of the first train text of the same agent.
    pub mrr: f64,
    /// Mean NDCG of the ten nearest train texts.
    pub ndcg_at_10: f64,
    /// Purity of clusters by k-means, as many as agents, over all texts.
    pub purity: f64,
    /// Mean silhouette of the agents, over all texts.
    pub silhouette: f64,
    /// Share of test texts nearer to the mean of their agent than to that of the agent that they
    /// are most easily mistaken for.
    pub hard_negative_accuracy: f64,
    /// Mean difference of these two similarities.
    pub hard_negative_margin: f64,
    /// Durations of embedding a text.
    pub latency: Option<Latency>,
}

/// Embeds a text as a unit vector and notes the duration.
pub(super) fn unit(embed: &impl Embed, text: &str, durations: &mut Vec<Duration>) -> Result<Vec<f32>> {
    let start = Instant::now();
    let embedding = embed.embed(text)?;
    durations.push(start.elapsed());
    if embedding.is_empty() || !embedding.iter().all(|v| v.is_finite()) {
        return Err(Error::NotFinite { what: "embedding of a text" });
    }
    Ok(normalized(&embedding))
}

/// Measures embeddings: retrieval of train texts by test texts, and clusters.
///
/// # Errors
/// Errors of `embed`; [`Error::NotFinite`], [`Error::Dimension`] for its results.
pub fn evaluate_embedding(set: &DataSet, embed: &impl Embed) -> Result<EmbeddingReport> {
    let mut durations = Vec::new();
    let (mut train, mut classes) = (Vec::new(), Vec::new());
    for (text, agent) in set.train() {
        train.push(unit(embed, text, &mut durations)?);
        classes.push(agent);
    }
    let dim = train.first().map_or(0, Vec::len);
    let means = class_means(&train, &classes, set.agents.len(), dim);
    let mut report = EmbeddingReport {
        dim,
        cases: set.cases.len(),
        nearest_accuracy: 0.0,
        top3_accuracy: 0.0,
        mrr: 0.0,
        ndcg_at_10: 0.0,
        purity: 0.0,
        silhouette: 0.0,
        hard_negative_accuracy: 0.0,
        hard_negative_margin: 0.0,
        latency: None,
    };
    let (mut all, mut all_classes) = (train.clone(), classes.clone());
    for case in &set.cases {
        let query = unit(embed, &case.text, &mut durations)?;
        if query.len() != dim {
            return Err(Error::Dimension { what: "embedding of a text", expected: dim, got: query.len() });
        }
        let (Some(agent), Some(not)) = (set.agent(&case.agent), set.agent(&case.not)) else { continue };
        let mut order: Vec<usize> = (0..train.len()).collect();
        let similarity: Vec<f32> = train.iter().map(|unit| dot(unit, &query)).collect();
        order.sort_by(|&a, &b| similarity[b].total_cmp(&similarity[a]));
        let ranking: Vec<usize> = order.iter().map(|&item| classes[item]).collect();
        let gains: Vec<f64> = ranking.iter().map(|&class| f64::from(u8::from(class == agent))).collect();
        report.nearest_accuracy += gains.first().copied().unwrap_or(0.0);
        report.top3_accuracy += f64::from(u8::from(ranking.iter().take(3).any(|&class| class == agent)));
        report.mrr += reciprocal_rank(&ranking, agent);
        report.ndcg_at_10 += ndcg(&gains, &gains, K);
        let margin = f64::from(dot(&means[agent], &query) - dot(&means[not], &query));
        report.hard_negative_accuracy += f64::from(u8::from(margin > 0.0));
        report.hard_negative_margin += margin;
        all.push(query);
        all_classes.push(agent);
    }
    let count = set.cases.len().max(1) as f64;
    for sum in [
        &mut report.nearest_accuracy,
        &mut report.top3_accuracy,
        &mut report.mrr,
        &mut report.ndcg_at_10,
        &mut report.hard_negative_accuracy,
        &mut report.hard_negative_margin,
    ] {
        *sum /= count;
    }
    report.purity = purity(&k_means(&all, set.agents.len()), &all_classes);
    report.silhouette = silhouette(&all, &all_classes);
    report.latency = Latency::of(durations);
    Ok(report)
}

fn class_means(units: &[Vec<f32>], classes: &[usize], count: usize, dim: usize) -> Vec<Vec<f32>> {
    let mut sums = vec![vec![0.0; dim]; count];
    units.iter().zip(classes).for_each(|(unit, &class)| add_scaled(&mut sums[class], 1.0, unit));
    sums.iter().map(|sum| normalized(sum)).collect()
}

/// Clusters of unit vectors by spherical k-means, begun at items far from one another: the first,
/// then always the one that is least similar to those chosen.
fn k_means(units: &[Vec<f32>], k: usize) -> Vec<usize> {
    let nearest = |centres: &[Vec<f32>], unit: &[f32]| {
        let similarities = centres.iter().map(|centre| dot(centre, unit)).enumerate();
        similarities.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, -1.0))
    };
    let mut centres: Vec<Vec<f32>> = units.first().cloned().into_iter().collect();
    while centres.len() < k.min(units.len()) {
        let farthest = units.iter().min_by(|a, b| nearest(&centres, a).1.total_cmp(&nearest(&centres, b).1));
        centres.extend(farthest.cloned());
    }
    let mut clusters = vec![usize::MAX; units.len()];
    for _ in 0..ITERATIONS {
        let next: Vec<usize> = units.iter().map(|unit| nearest(&centres, unit).0).collect();
        if next == clusters {
            break;
        }
        clusters = next;
        let means = class_means(units, &clusters, centres.len(), centres[0].len());
        // A cluster that lost all items keeps its centre.
        for (cluster, mean) in means.into_iter().enumerate() {
            if clusters.contains(&cluster) {
                centres[cluster] = mean;
            }
        }
    }
    clusters
}
