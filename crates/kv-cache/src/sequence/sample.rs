//! Attention by block, and the error that migration would add: measured in one layer, between
//! steps.

use std::sync::Arc;

use parking_lot::Mutex;
use ruvllm_kernels::attention::{
    AttentionScratch, AttentionShape, KvBlock, KvBuffer, KvScratch, KvView, Mask,
};
use ruvllm_kernels::{Kernels, ThreadPool};

use super::Sequence;
use crate::block::Block;
use crate::convert::convert;
use crate::storage::Storage;
use crate::store::HOT;

/// The query of a token in one layer, and the parameters of its attention.
///
/// The learned sinks of a model are not among them: they scale a head's output and its error by the
/// same factor, so that relative errors do not depend on them.
#[derive(Debug, Clone, Copy)]
pub struct Probe<'a> {
    /// The layer.
    pub layer: usize,
    /// The query with RoPE at its position, `[n_heads, head_dim]`; usually the last token's.
    pub query: &'a [f32],
    /// Factor of the products of queries and keys.
    pub scale: f32,
    /// Sliding-window size in tokens; `None` = all keys.
    pub window: Option<usize>,
    /// Bound of the scores, approached as `cap * tanh(score / cap)`; `None` = none.
    pub soft_cap: Option<f32>,
}

impl Probe<'_> {
    /// The attention score of a product of query and key.
    fn score(&self, product: f32) -> f32 {
        let score = self.scale * product;
        match self.soft_cap.map(f64::from) {
            Some(cap) => (cap * (f64::from(score) / cap).tanh()) as f32,
            None => score,
        }
    }
}

/// Result of [`Sequence::sample`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample<'a> {
    /// Share of attention of each block from position 0 on, mean over the heads, sum 1; for
    /// [`Sequence::add_mass`].
    pub shares: &'a [f32],
    /// Estimated relative error of attention's output once the due blocks have migrated, for
    /// [`Controller::observe`](crate::Controller::observe). `None` if none is due.
    pub error: Option<f32>,
}

/// Scratch memory of [`Sequence::sample`], reused between calls.
#[derive(Default)]
pub struct SampleScratch {
    /// One per thread. Only one thread at a time uses each, so the locks are never contended.
    workers: Vec<Mutex<Worker>>,
    /// `[n_kv_heads, blocks]`
    of_heads: Vec<f32>,
    /// `[blocks]`
    shares: Vec<f32>,
    coarse: KvBuffer,
    conversion: KvScratch,
    attention: AttentionScratch,
    /// Attention over a block in two precisions, `[n_heads, head_dim]` each.
    outputs: [Vec<f32>; 2],
}

/// Memory of one thread.
#[derive(Default)]
struct Worker {
    /// Keys of a block, `[block_tokens, head_dim]`.
    keys: Vec<f32>,
    /// Scores of a key/value head, then probabilities: `[group, tokens]`.
    scores: Vec<f32>,
    conversion: KvScratch,
}

impl SampleScratch {
    /// Scratch without memory; the first call allocates what it needs.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Sequence {
    /// Measures the attention of a query by block, and estimates the error that the next
    /// [`migrate`](Self::migrate) would add. To be called between steps, before it.
    ///
    /// The error is measured in the youngest due block: `e = |o - o'| / |o|`, where `o` is
    /// attention over that block alone and `o'` the same in the next tier. The estimate is `e`
    /// times the share of attention of all blocks that are due or have migrated. It falls when more
    /// tokens stay hot.
    ///
    /// The shares need the keys of one layer once: about as much work as that layer's attention in
    /// a step.
    ///
    /// # Panics
    /// If the query's heads are no multiple of the key/value heads, the layer does not exist or the
    /// soft cap is not above 0.
    pub fn sample<'a>(
        &self,
        kernels: &Kernels,
        threads: &ThreadPool,
        probe: &Probe<'_>,
        scratch: &'a mut SampleScratch,
    ) -> Sample<'a> {
        let shape = self.store.shape().of_layer(probe.layer);
        let width = shape.width();
        assert!(
            width > 0 && probe.query.len().is_multiple_of(width) && !probe.query.is_empty(),
            "a query of {} values for key/value heads of {width}",
            probe.query.len()
        );
        if self.len == self.released() {
            return Sample { shares: &[], error: None };
        }
        self.find_shares(kernels, threads, probe, scratch);
        let error = self.estimate_error(kernels, threads, probe, scratch);
        Sample { shares: &scratch.shares, error }
    }

    /// Fills `scratch.shares`. Heads are summed in their order, so that threads change no bit.
    fn find_shares(
        &self,
        kernels: &Kernels,
        threads: &ThreadPool,
        probe: &Probe<'_>,
        scratch: &mut SampleScratch,
    ) {
        let SampleScratch { workers, of_heads, shares, .. } = scratch;
        let n_heads = self.store.shape().of_layer(probe.layer).n_kv_heads;
        let n_blocks = self.len.div_ceil(self.store.block_tokens());
        workers.resize_with(workers.len().max(threads.threads()), Mutex::default);
        of_heads.clear();
        of_heads.resize(n_heads * n_blocks, 0.0);
        let heads = Mutex::new(of_heads.chunks_exact_mut(n_blocks).enumerate());
        threads.run(&|worker| {
            let mut worker = workers[worker].lock();
            // The lock is held for the step of the iterator only.
            let next = || heads.lock().next();
            while let Some((head, shares)) = next() {
                self.add_head(kernels, probe, head, &mut worker, shares);
            }
        });
        shares.clear();
        shares.resize(n_blocks, 0.0);
        for head in of_heads.chunks_exact(n_blocks) {
            shares.iter_mut().zip(head).for_each(|(sum, share)| *sum += share / n_heads as f32);
        }
    }

    /// Adds the mean over the queries of one key/value head to `shares`, `[blocks]`.
    fn add_head(
        &self,
        kernels: &Kernels,
        probe: &Probe<'_>,
        head: usize,
        worker: &mut Worker,
        shares: &mut [f32],
    ) {
        let Worker { keys, scores, conversion } = worker;
        let shape = self.store.shape().of_layer(probe.layer);
        let (head_dim, block_tokens) = (shape.head_dim, self.store.block_tokens());
        let group = probe.query.len() / shape.width();
        let first =
            probe.window.map_or(0, |window| self.len.saturating_sub(window.max(1))).max(self.released());
        let n_keys = self.len - first;
        let key_ropes = self.store.key_ropes(self.len, self.capacity);
        scores.clear();
        scores.resize(group * n_keys, 0.0);
        for block in first / block_tokens..shares.len() {
            let start = block * block_tokens;
            let positions = first.max(start)..self.len.min(start + block_tokens);
            let storage = self.storage(block);
            keys.resize(positions.len() * head_dim, 0.0);
            let in_block = positions.start - start..positions.end - start;
            let nuq = self.store.nuq(probe.layer, key_ropes.as_ref(), start);
            let plane = storage.view(probe.layer, nuq).keys;
            kernels.read_kv(plane, head, in_block, keys, conversion);
            let queries = probe.query[head * group * head_dim..].chunks_exact(head_dim);
            for (query, scores) in queries.zip(scores.chunks_exact_mut(n_keys)) {
                let scores = &mut scores[positions.start - first..positions.end - first];
                for (score, key) in scores.iter_mut().zip(keys.chunks_exact(head_dim)) {
                    *score = probe.score(kernels.dot(query, key));
                }
            }
        }
        for probabilities in scores.chunks_exact_mut(n_keys) {
            kernels.softmax(probabilities);
            for (at, probability) in probabilities.iter().enumerate() {
                shares[(first + at) / block_tokens] += probability / group as f32;
            }
        }
    }

    /// The error of the youngest due block, times the share of all due or migrated ones.
    fn estimate_error(
        &self,
        kernels: &Kernels,
        threads: &ThreadPool,
        probe: &Probe<'_>,
        scratch: &mut SampleScratch,
    ) -> Option<f32> {
        let lower = (self.store.n_tiers() > 1).then(|| self.store.tier(HOT + 1))?.layout(probe.layer);
        let is_due = |at: &usize| self.tier_by_age(self.index(*at), self.hot_tokens) != HOT;
        let is_hot = |at: &usize| self.blocks[*at].tier() == HOT;
        let whole = 0..self.blocks().len();
        let sampled = whole.clone().rfind(|at| is_due(at) && is_hot(at))?;
        let share: f32 =
            whole.filter(|at| is_due(at) || !is_hot(at)).map(|at| scratch.shares[self.index(at)]).sum();

        let SampleScratch { coarse, conversion, attention, outputs, .. } = scratch;
        if coarse.as_bytes().len() < lower.bytes() {
            *coarse = KvBuffer::zeroed(lower.bytes())?;
        }
        let exact = self.blocks[sampled].storage();
        let position = self.index(sampled) * self.store.block_tokens();
        let key_ropes = self.store.key_ropes(self.len, self.capacity);
        let context = self.context(probe.layer, key_ropes.as_ref(), position);
        let source = (exact.layout(probe.layer), exact.layer(probe.layer));
        let target = (lower, &mut coarse.as_bytes_mut()[..lower.bytes()]);
        convert(kernels, source, target, context, conversion);
        let coarse = lower.planes(&coarse.as_bytes()[..lower.bytes()], context.nuq);
        let exact = exact.view(probe.layer, context.nuq);
        for (block, out) in [exact, coarse].into_iter().zip(outputs.iter_mut()) {
            out.resize(probe.query.len(), 0.0);
            self.attend(kernels, threads, probe, block, out, attention);
        }
        let [expected, found] = &*outputs;
        Some(relative_error(expected, found) * share)
    }

    /// Attention over one whole block.
    fn attend(
        &self,
        kernels: &Kernels,
        threads: &ThreadPool,
        probe: &Probe<'_>,
        block: KvBlock<'_>,
        out: &mut [f32],
        scratch: &mut AttentionScratch,
    ) {
        let (shape, block_tokens) = (self.store.shape().of_layer(probe.layer), self.store.block_tokens());
        let shape = AttentionShape {
            n_heads: probe.query.len() / shape.head_dim,
            n_kv_heads: shape.n_kv_heads,
            head_dim: shape.head_dim,
            query_start: block_tokens - 1,
            n_queries: 1,
            scale: probe.scale,
            mask: Mask::CAUSAL,
            soft_cap: probe.soft_cap,
            alibi: None,
        };
        let blocks = [block];
        let view = KvView::new(&blocks, block_tokens);
        kernels.attention(threads, &shape, probe.query, &view, out, scratch);
    }

    /// The present storage of block `block` from position 0 on, which was not released.
    fn storage(&self, block: usize) -> Arc<Storage> {
        let at = block - self.released;
        self.blocks.get(at).map_or_else(|| self.tail[at - self.blocks.len()].clone(), Block::storage)
    }
}

/// `|expected - found| / |expected|`, summed in f64.
fn relative_error(expected: &[f32], found: &[f32]) -> f32 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let norm: f64 = expected.iter().map(|&x| square(x)).sum();
    let error: f64 = expected.iter().zip(found).map(|(&x, &y)| square(x - y)).sum();
    (error / norm.max(f64::MIN_POSITIVE)).sqrt() as f32
}
