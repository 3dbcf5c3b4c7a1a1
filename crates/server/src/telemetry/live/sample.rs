//! One event of the live view. Figures that are not known are left out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use ruvllm::{Engine, PrefixNode, StepStatistics};
use serde::Serialize;

use crate::models::{LoadedModel, ModelSet};
use crate::telemetry::Metrics;
use crate::telemetry::figures::EngineFigures;

/// Most nodes of a prefix tree that are looked at, for the number of its tokens.
const MOST_COUNTED_NODES: usize = 4096;

/// Most nodes of a prefix tree in an event.
const MOST_SENT_NODES: usize = 200;

/// Figures of all models.
#[derive(Debug, Serialize)]
pub(super) struct LiveSample {
    /// Milliseconds since the Unix epoch.
    time_ms: u64,
    models: Vec<ModelSample>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<u64>,
}

#[derive(Debug, Serialize)]
struct ModelSample {
    id: String,
    loaded: bool,
    #[serde(flatten)]
    engine: Option<EngineSample>,
}

#[derive(Debug, Serialize)]
struct EngineSample {
    steps: u64,
    running: u64,
    waiting: u64,
    #[serde(flatten)]
    rates: Option<Rates>,
    speculation: SpeculationSample,
    #[serde(flatten)]
    memory: Option<MemorySample>,
}

/// Memory of an engine.
#[derive(Debug, Serialize)]
struct MemorySample {
    kv: KvSample,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<PrefixSample>,
    adapters: AdapterSample,
}

/// Figures since the sample before.
#[derive(Debug, Serialize)]
struct Rates {
    tokens_per_s: f64,
    prefill_tokens_per_s: f64,
    /// Mean number of sequences of a step.
    batch: f64,
}

#[derive(Debug, Serialize)]
struct KvSample {
    pages_total: usize,
    pages_used: usize,
    page_bytes: usize,
    tiers: Vec<TierSample>,
}

#[derive(Debug, Serialize)]
struct TierSample {
    name: &'static str,
    bytes: usize,
    blocks: usize,
}

#[derive(Debug, Serialize)]
struct PrefixSample {
    lookups: u64,
    hits: u64,
    hit_tokens: u64,
    /// Tokens in the tree; absent for trees of very many nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    tree_tokens: Option<usize>,
    nodes: usize,
    /// The nodes that were used last.
    tree: Vec<NodeSample>,
}

#[derive(Debug, Clone, Default, Serialize)]
struct NodeSample {
    tokens: usize,
    refs: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    children: Vec<NodeSample>,
}

#[derive(Debug, Serialize)]
struct AdapterSample {
    hot: usize,
    warm: usize,
    cold: usize,
}

#[derive(Debug, Serialize)]
struct SpeculationSample {
    drafted: u64,
    accepted: u64,
}

/// Takes samples and keeps the counts of the last one for rates.
#[derive(Debug, Default)]
pub(super) struct Sampler {
    last: HashMap<Arc<str>, (Instant, StepStatistics)>,
}

impl Sampler {
    pub(super) fn sample(&mut self, models: &ModelSet, metrics: &Metrics) -> LiveSample {
        // Engines forget steps that nobody reads; a viewer lets longer pauses of scrapes pass.
        metrics.observe_steps();
        let models = models.offered().filter(|offered| offered.parent.is_none()).map(|offered| ModelSample {
            id: offered.name,
            loaded: offered.loaded.is_some(),
            engine: offered.loaded.as_deref().and_then(|model| self.steps(model)),
        });
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        LiveSample {
            models: models.collect(),
            time_ms: time.map_or(0, |time| time.as_millis() as u64),
            connections: metrics.connections(),
        }
    }

    /// Steps of a model that generates, and the memory of its engine.
    fn steps(&mut self, model: &LoadedModel) -> Option<EngineSample> {
        let steps = model.step_statistics()?;
        let last = self.last.insert(Arc::clone(model.name()), (Instant::now(), steps));
        Some(EngineSample {
            steps: steps.steps,
            running: steps.running,
            waiting: steps.waiting,
            rates: last.and_then(|(time, last)| rates(&last, &steps, time.elapsed().as_secs_f64())),
            speculation: SpeculationSample { drafted: steps.drafted_tokens, accepted: steps.accepted_tokens },
            memory: model.try_engine().map(memory),
        })
    }
}

fn memory(engine: &Engine) -> MemorySample {
    let figures = EngineFigures::read(engine);
    let EngineFigures { kv, adapters, .. } = &figures;
    let tiers =
        figures.kv_tiers().map(|(name, tier)| TierSample { name, bytes: tier.bytes, blocks: tier.blocks });
    MemorySample {
        kv: KvSample {
            pages_total: kv.pool.capacity_pages,
            pages_used: kv.pool.used_pages,
            page_bytes: kv.pool.page_bytes,
            tiers: tiers.into(),
        },
        prefix: prefix(engine, &figures),
        adapters: AdapterSample {
            hot: adapters.hot_adapters,
            warm: adapters.warm_adapters,
            cold: adapters.cold_adapters,
        },
    }
}

/// Rates between two samples; `None` if the model was loaded anew between them.
fn rates(last: &StepStatistics, now: &StepStatistics, seconds: f64) -> Option<Rates> {
    let decoded = now.decode_tokens.checked_sub(last.decode_tokens)?;
    let prefilled = now.prefill_tokens.checked_sub(last.prefill_tokens)?;
    let (steps, parts) = (now.steps.checked_sub(last.steps)?, now.parts.checked_sub(last.parts)?);
    Some(Rates {
        tokens_per_s: decoded as f64 / seconds,
        prefill_tokens_per_s: prefilled as f64 / seconds,
        batch: if steps == 0 { 0.0 } else { parts as f64 / steps as f64 },
    })
}

fn prefix(engine: &Engine, figures: &EngineFigures) -> Option<PrefixSample> {
    let statistics = &figures.prefix.as_ref()?.memory;
    let nodes = engine.prefix_nodes(MOST_COUNTED_NODES);
    let tokens = nodes.iter().map(|node| node.tokens).sum();
    let shown = nodes.len().min(MOST_SENT_NODES);
    Some(PrefixSample {
        lookups: statistics.lookups,
        hits: statistics.full_hits + statistics.partial_hits,
        hit_tokens: statistics.hit_tokens + statistics.partial_tokens,
        tree_tokens: (nodes.len() < MOST_COUNTED_NODES).then_some(tokens),
        nodes: statistics.nodes,
        tree: nested(&nodes[..shown]),
    })
}

/// Nodes, each after its parent, as trees.
fn nested(nodes: &[PrefixNode]) -> Vec<NodeSample> {
    let sample =
        |node: &PrefixNode| NodeSample { tokens: node.tokens, refs: node.references, children: Vec::new() };
    let mut samples: Vec<_> = nodes.iter().map(sample).collect();
    let mut roots = Vec::new();
    // Children come after their parents, so that they are complete when they are moved.
    for (index, node) in nodes.iter().enumerate().rev() {
        let sample = std::mem::take(&mut samples[index]);
        match node.parent {
            Some(parent) => samples[parent].children.insert(0, sample),
            None => roots.insert(0, sample),
        }
    }
    roots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_counts_per_second_and_absent_after_a_reload() {
        let mut last = StepStatistics::default();
        let mut now = StepStatistics::default();
        (last.steps, last.parts, last.decode_tokens, last.prefill_tokens) = (10, 20, 100, 1000);
        (now.steps, now.parts, now.decode_tokens, now.prefill_tokens) = (14, 34, 130, 1000);
        let rate = rates(&last, &now, 2.0).unwrap();
        assert_eq!((rate.tokens_per_s, rate.prefill_tokens_per_s, rate.batch), (15.0, 0.0, 3.5));
        assert_eq!(rates(&last, &last, 1.0).unwrap().batch, 0.0);
        assert!(rates(&now, &last, 1.0).is_none());
    }
}
