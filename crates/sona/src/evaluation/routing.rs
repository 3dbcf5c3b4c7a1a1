//! Evaluation of the semantic router.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;

use super::data::{DataSet, Difficulty, Form};
use super::embedding::unit;
use super::metrics::{Latency, ndcg};
use crate::error::Result;
use crate::model::Embed;
use crate::routing::{ExactScan, Ranked, Route, SemanticRouter, SemanticSettings};

/// Depth of NDCG and of the accuracy among the best-ranked routes.
const TOP: usize = 3;

/// Right ones among some cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Share {
    /// Cases whose best-ranked route is the right one.
    pub right: usize,
    /// All cases.
    pub cases: usize,
}

/// Quality of routing on a data set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RoutingReport {
    /// Test texts.
    pub cases: usize,
    /// Share of test texts whose best-ranked route is the right one. A route with an equal score
    /// counts as ranked above the right one, here and below.
    pub accuracy: f64,
    /// Share of test texts whose right route is among the three best-ranked ones.
    pub top3_accuracy: f64,
    /// Mean reciprocal rank of the right route.
    pub mrr: f64,
    /// Mean NDCG of the three best-ranked routes.
    pub ndcg_at_3: f64,
    /// Share of test texts whose right route is ranked above the one that they are most easily
    /// mistaken for.
    pub hard_negative_accuracy: f64,
    /// Mean of the right route's score minus that of the other one.
    pub hard_negative_margin: f64,
    /// Share of test texts that got a route: not below its threshold, not ambiguous.
    pub coverage: f64,
    /// Share of right routes among these.
    pub accuracy_of_routed: f64,
    /// Share of outside texts that got no route; absent without outside texts.
    pub outside_rejected: Option<f64>,
    /// By agent.
    pub by_agent: BTreeMap<String, Share>,
    /// By form of the text.
    pub by_form: BTreeMap<Form, Share>,
    /// By difficulty.
    pub by_difficulty: BTreeMap<Difficulty, Share>,
    /// Durations of routing a text, without its embedding.
    pub latency: Option<Latency>,
    /// Durations of embedding a text.
    pub embedding_latency: Option<Latency>,
}

/// Teaches a semantic router the train split, calibrates it, and measures the test split.
///
/// # Errors
/// Errors of `embed` and of [`SemanticRouter`].
pub fn evaluate_routing(
    set: &DataSet,
    embed: &impl Embed,
    settings: &SemanticSettings,
) -> Result<RoutingReport> {
    let mut embeddings = Vec::new();
    let router = teach(set, embed, settings, &mut embeddings)?;
    let mut durations = Vec::new();
    let mut sums = [0.0; 8];
    let mut report = RoutingReport {
        cases: set.cases.len(),
        accuracy: 0.0,
        top3_accuracy: 0.0,
        mrr: 0.0,
        ndcg_at_3: 0.0,
        hard_negative_accuracy: 0.0,
        hard_negative_margin: 0.0,
        coverage: 0.0,
        accuracy_of_routed: 0.0,
        outside_rejected: None,
        by_agent: BTreeMap::new(),
        by_form: BTreeMap::new(),
        by_difficulty: BTreeMap::new(),
        latency: None,
        embedding_latency: None,
    };
    for case in &set.cases {
        let embedding = unit(embed, &case.text, &mut embeddings)?;
        let start = Instant::now();
        let routed = router.route(&embedding, &case.text)?;
        durations.push(start.elapsed());
        let (Some(agent), Some(not)) = (set.agent(&case.agent), set.agent(&case.not)) else { continue };
        let rank = rank(&routed.ranked, agent);
        let margin = f64::from(score(&routed.ranked, agent) - score(&routed.ranked, not));
        let is_right = rank == 1;
        let mut gains = vec![0.0; set.agents.len()];
        gains[rank - 1] = 1.0;
        let one = |holds: bool| f64::from(u8::from(holds));
        let values = [
            one(is_right),
            one(rank <= TOP),
            1.0 / rank as f64,
            ndcg(&gains, &[1.0], TOP),
            one(margin > 0.0),
            margin,
            one(routed.route.is_ok()),
            one(routed.route == Ok(agent)),
        ];
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        let shares = [
            report.by_agent.entry(case.agent.clone()).or_default(),
            report.by_form.entry(case.form).or_default(),
            report.by_difficulty.entry(case.difficulty).or_default(),
        ];
        for share in shares {
            share.cases += 1;
            share.right += usize::from(is_right);
        }
    }
    let [right, top, ranks, gains, above, margins, routed, right_routed] = sums;
    let count = set.cases.len().max(1) as f64;
    (report.accuracy, report.mrr, report.ndcg_at_3) = (right / count, ranks / count, gains / count);
    (report.top3_accuracy, report.coverage) = (top / count, routed / count);
    (report.hard_negative_accuracy, report.hard_negative_margin) = (above / count, margins / count);
    report.accuracy_of_routed = if routed > 0.0 { right_routed / routed } else { 0.0 };
    let mut rejected = 0;
    for text in &set.outside_test {
        let embedding = unit(embed, text, &mut embeddings)?;
        rejected += usize::from(router.route(&embedding, text)?.route.is_err());
    }
    let outside = set.outside_test.len();
    report.outside_rejected = (outside > 0).then(|| rejected as f64 / outside as f64);
    (report.latency, report.embedding_latency) = (Latency::of(durations), Latency::of(embeddings));
    Ok(report)
}

fn score(ranked: &[Ranked], route: usize) -> f32 {
    ranked.iter().find(|ranked| ranked.route == route).map_or(f32::NEG_INFINITY, |ranked| ranked.score)
}

/// Rank of a route from 1; routes with an equal score are before it.
fn rank(ranked: &[Ranked], route: usize) -> usize {
    let own = score(ranked, route);
    1 + ranked.iter().filter(|other| other.route != route && other.score >= own).count()
}

fn teach(
    set: &DataSet,
    embed: &impl Embed,
    settings: &SemanticSettings,
    durations: &mut Vec<std::time::Duration>,
) -> Result<SemanticRouter> {
    let keywords: Vec<Vec<&str>> =
        set.agents.iter().map(|agent| agent.keywords.iter().map(String::as_str).collect()).collect();
    let agents = set.agents.iter().zip(&keywords);
    let routes: Vec<Route<'_>> =
        agents.map(|(agent, keywords)| Route { name: &agent.name, keywords }).collect();
    let mut train = Vec::new();
    for (text, agent) in set.train() {
        train.push((unit(embed, text, durations)?, text, agent));
    }
    let dim = train.first().map_or(0, |(embedding, ..)| embedding.len());
    let mut router = SemanticRouter::new(settings.clone(), dim, &routes, ExactScan::default())?;
    for (embedding, text, agent) in &train {
        router.teach(*agent, embedding, text)?;
    }
    let mut outside = Vec::new();
    for text in &set.outside_train {
        outside.push((unit(embed, text, durations)?, text.as_str()));
    }
    let outside: Vec<(&[f32], &str)> =
        outside.iter().map(|(embedding, text)| (&embedding[..], *text)).collect();
    router.calibrate(&outside)?;
    Ok(router)
}
