//! `SQuat`: corrections of keys by the queries of a sequence (arXiv 2503.24358).
//!
//! A step records the queries of each layer
//! ([`KvStep::observe_queries`](super::KvStep::observe_queries)) in a Gram matrix per key/value
//! head; a migration computes corrections from it, again whenever the recorded tokens have doubled.

use std::sync::Arc;

use parking_lot::Mutex;
use ruvllm_kernels::attention::SquatCorrection;
use ruvllm_kernels::{Kernels, ThreadPool};

use super::Sequence;

/// Tokens whose queries are recorded, from the first on: their span hardly changes after that.
const OBSERVED_TOKENS: usize = 2048;

/// Tokens whose queries weigh as much as a key's own error: see [`SquatCorrection::new`]. With
/// fewer their span is chance. Measured: ADR-0015.
const FULL_WEIGHT_TOKENS: f32 = 512.0;

/// Recorded queries of one layer and the corrections.
#[derive(Debug, Clone, Default)]
pub(super) struct LayerQueries {
    /// Tokens whose queries were recorded.
    tokens: usize,
    /// `[n_kv_heads, head_dim, head_dim]`; released once recording ends.
    grams: Vec<f32>,
    /// Tokens whose queries are in the corrections.
    known: usize,
    /// One per key/value head; none before the first migration.
    corrections: Vec<SquatCorrection>,
}

impl LayerQueries {
    /// `true` while queries are recorded.
    fn is_open(&self) -> bool {
        self.tokens < OBSERVED_TOKENS
    }

    /// `true` if the corrections must be recomputed.
    fn is_due(&self) -> bool {
        self.tokens > self.known && (self.tokens >= 2 * self.known || !self.is_open())
    }

    fn bytes(&self) -> usize {
        let corrections: usize = self.corrections.iter().map(SquatCorrection::bytes).sum();
        size_of_val(self.grams.as_slice()) + corrections
    }
}

impl Sequence {
    /// `true` while queries of a layer are recorded: the policy asks for them
    /// ([`KvPolicy::squat`](crate::KvPolicy::squat)), and there were not enough yet.
    pub fn wants_queries(&self, layer: usize) -> bool {
        self.queries.as_ref().is_some_and(|layers| layers[layer].is_open())
    }

    /// See [`KvStep::observe_queries`](super::KvStep::observe_queries).
    pub(super) fn observe_queries(
        &mut self,
        kernels: &Kernels,
        threads: &ThreadPool,
        layer: usize,
        n_heads: usize,
        queries: &[f32],
    ) {
        let shape = self.store.shape().of_layer(layer);
        let Some(layers) = &mut self.queries else { return };
        let shared = n_heads > 0 && n_heads.is_multiple_of(shape.n_kv_heads);
        assert!(shared, "{} key/value heads for {n_heads} heads", shape.n_kv_heads);
        let width = n_heads * shape.head_dim;
        assert!(queries.len().is_multiple_of(width), "queries of whole tokens");
        let n_tokens = (queries.len() / width).min(OBSERVED_TOKENS - layers[layer].tokens);
        if n_tokens == 0 {
            return;
        }
        let LayerQueries { tokens, grams, .. } = &mut Arc::make_mut(layers)[layer];
        *tokens += n_tokens;
        let (dim, group) = (shape.head_dim, width / shape.n_kv_heads);
        grams.resize(shape.n_kv_heads * dim * dim, 0.0);
        let queries = &queries[..n_tokens * width];
        let heads = Mutex::new(grams.chunks_exact_mut(dim * dim).enumerate());
        threads.run(&|_| {
            // The lock is held for the step of the iterator only.
            let next = || heads.lock().next();
            while let Some((head, gram)) = next() {
                kernels.add_gram(queries, width, head * group..(head + 1) * group, dim, gram);
            }
        });
    }

    /// Recomputes corrections that cover less than half of the recorded queries.
    pub(super) fn update_corrections(&mut self, threads: &ThreadPool) {
        let shape = self.store.shape();
        let Some(layers) = &mut self.queries else { return };
        if !layers.iter().any(LayerQueries::is_due) {
            return;
        }
        let due = Arc::make_mut(layers).iter_mut().enumerate().filter(|(_, layer)| layer.is_due());
        for (index, layer) in due {
            let dim = shape.of_layer(index).head_dim;
            let LayerQueries { tokens, grams, known, corrections } = layer;
            let strength = *tokens as f32 / FULL_WEIGHT_TOKENS;
            corrections.resize_with(grams.len() / (dim * dim), || SquatCorrection::none(dim));
            let heads = Mutex::new(corrections.iter_mut().zip(grams.chunks_exact(dim * dim)));
            threads.run(&|_| {
                let next = || heads.lock().next();
                while let Some((correction, gram)) = next() {
                    // Queries that are not finite: the head's keys stay uncorrected.
                    *correction = SquatCorrection::new(gram, dim, strength)
                        .unwrap_or_else(|_| SquatCorrection::none(dim));
                }
            });
            *known = *tokens;
            if *known == OBSERVED_TOKENS {
                *grams = Vec::new();
            }
        }
    }

    /// The corrections of a layer's heads, if there are any yet.
    pub(super) fn corrections(&self, layer: usize) -> Option<&[SquatCorrection]> {
        let corrections = &self.queries.as_ref()?[layer].corrections;
        (!corrections.is_empty()).then_some(corrections)
    }

    /// Forgets the queries.
    pub(super) fn forget_queries(&mut self) {
        let layers = vec![LayerQueries::default(); self.store.shape().n_layers];
        self.queries = self.store.policy().squat.then(|| Arc::new(layers));
    }

    /// Bytes of recorded queries and corrections.
    pub(super) fn query_bytes(&self) -> usize {
        self.queries.iter().flat_map(|layers| layers.iter()).map(LayerQueries::bytes).sum()
    }
}
