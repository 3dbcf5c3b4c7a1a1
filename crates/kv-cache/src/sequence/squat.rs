//! What the queries of a sequence say about which errors of keys matter.
//!
//! A step gives the queries of each layer
//! ([`KvStep::observe_queries`](super::KvStep::observe_queries)), which are added up to a Gram
//! matrix per key/value head; a migration makes corrections from them, and again when the tokens
//! that were looked at have doubled.

use std::sync::Arc;

use parking_lot::Mutex;
use ruvllm_kernels::attention::SquatCorrection;
use ruvllm_kernels::{Kernels, ThreadPool};

use super::Sequence;

/// Tokens whose queries are looked at, from the first on: what they span hardly changes after that,
/// and the cost ends.
const OBSERVED_TOKENS: usize = 2048;

/// Tokens that it takes for their queries to weigh as much as a key's own error: see
/// [`SquatCorrection::new`]. With fewer it is chance what they span. Measured: ADR-0015.
const FULL_WEIGHT_TOKENS: f32 = 512.0;

/// Queries of one layer, and what follows from them.
#[derive(Debug, Clone, Default)]
pub(super) struct LayerQueries {
    /// Tokens whose queries were looked at.
    tokens: usize,
    /// `[n_kv_heads, head_dim, head_dim]`; given back once no more queries are looked at.
    grams: Vec<f32>,
    /// Tokens whose queries the corrections follow from.
    known: usize,
    /// One per key/value head; none before the first migration.
    corrections: Vec<SquatCorrection>,
}

impl LayerQueries {
    /// Whether more queries are looked at.
    fn is_open(&self) -> bool {
        self.tokens < OBSERVED_TOKENS
    }

    /// Whether the corrections are to be made anew.
    fn is_due(&self) -> bool {
        self.tokens > self.known && (self.tokens >= 2 * self.known || !self.is_open())
    }

    fn bytes(&self) -> usize {
        let corrections: usize = self.corrections.iter().map(SquatCorrection::bytes).sum();
        size_of_val(self.grams.as_slice()) + corrections
    }
}

impl Sequence {
    /// Whether queries of a layer are of use: the policy asks for them
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
        let shape = self.store.shape();
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

    /// Makes corrections where none are or those there are know of less than half of the queries.
    pub(super) fn update_corrections(&mut self, threads: &ThreadPool) {
        let dim = self.store.shape().head_dim;
        let Some(layers) = &mut self.queries else { return };
        if !layers.iter().any(LayerQueries::is_due) {
            return;
        }
        for layer in Arc::make_mut(layers).iter_mut().filter(|layer| layer.is_due()) {
            let LayerQueries { tokens, grams, known, corrections } = layer;
            let strength = *tokens as f32 / FULL_WEIGHT_TOKENS;
            corrections.resize_with(grams.len() / (dim * dim), || SquatCorrection::none(dim));
            let heads = Mutex::new(corrections.iter_mut().zip(grams.chunks_exact(dim * dim)));
            threads.run(&|_| {
                let next = || heads.lock().next();
                while let Some((correction, gram)) = next() {
                    // Queries that are not numbers say nothing: their head's keys are stored as
                    // without them.
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

    /// Bytes of what is known of queries.
    pub(super) fn query_bytes(&self) -> usize {
        self.queries.iter().flat_map(|layers| layers.iter()).map(LayerQueries::bytes).sum()
    }
}
