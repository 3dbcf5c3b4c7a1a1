//! What going down would cost, measured on a block that is still hot.

use ruvllm_kernels::{
    AttentionScratch, AttentionShape, Kernels, KvBlock, KvBuffer, KvPlane, KvScratch, KvView, ThreadPool,
};

use super::Sequence;
use crate::convert::convert;
use crate::store::{HOT, Storage};

impl Sequence {
    /// The relative error of attention's output over the oldest hot block, in one layer, if the block were in the next
    /// tier: `|o - o'| / |o|` over all heads. `query` is a token's rotated query; those of the last token are at hand. `None`
    /// if there is no lower tier or no such block.
    ///
    /// Attention over a whole context weighs a block by its share, so the error there is smaller; as an input of
    /// [`Controller`](crate::Controller) only its course matters.
    ///
    /// # Shapes
    /// `query`: `[n_heads, head_dim]`
    ///
    /// # Panics
    /// If the query's heads are no multiple of the key/value heads, or the layer does not exist.
    pub fn sample_error(
        &self,
        kernels: &Kernels,
        threads: &ThreadPool,
        layer: usize,
        query: &[f32],
    ) -> Option<f32> {
        let lower = (self.store.n_tiers() > 1).then(|| self.store.tier(HOT + 1))?;
        let sinks = self.store.policy().sink_tokens.div_ceil(self.store.block_tokens());
        let skipped = sinks.saturating_sub(self.released);
        let block = self.blocks().iter().skip(skipped).find(|block| block.tier() == HOT)?;
        let exact = block.storage();
        let mut coarse = KvBuffer::zeroed(lower.layer_bytes())?;
        let hot = self.store.tier(exact.tier());
        let target = &mut coarse.as_bytes_mut()[..lower.layer_bytes()];
        let source = (hot, exact.layer(layer));
        convert(kernels, source, (lower, target), self.corrections(layer), &mut KvScratch::new());
        let (keys, values) = coarse.as_bytes()[..lower.layer_bytes()].split_at(lower.keys.plane_bytes());
        let coarse = KvBlock {
            keys: KvPlane { format: lower.formats.keys, bytes: keys },
            values: KvPlane { format: lower.formats.values, bytes: values },
        };
        let expected = self.attend(kernels, threads, Storage::view(&exact, layer), query);
        let found = self.attend(kernels, threads, coarse, query);
        let square = |x: f32| f64::from(x) * f64::from(x);
        let norm: f64 = expected.iter().map(|&x| square(x)).sum();
        let error: f64 = expected.iter().zip(&found).map(|(&x, &y)| square(x - y)).sum();
        Some((error / norm.max(f64::MIN_POSITIVE)).sqrt() as f32)
    }

    /// Attention of one query over one block.
    fn attend(&self, kernels: &Kernels, threads: &ThreadPool, block: KvBlock<'_>, query: &[f32]) -> Vec<f32> {
        let (shape, block_tokens) = (self.store.shape(), self.store.block_tokens());
        let shape = AttentionShape {
            n_heads: query.len() / shape.head_dim,
            n_kv_heads: shape.n_kv_heads,
            head_dim: shape.head_dim,
            query_start: block_tokens - 1,
            n_queries: 1,
            scale: (shape.head_dim as f32).sqrt().recip(),
            window: None,
            soft_cap: None,
            alibi: None,
        };
        let view = KvView { blocks: &[block], block_tokens, len: block_tokens };
        let mut out = vec![0.0; query.len()];
        kernels.attention(threads, &shape, query, &view, &mut out, &mut AttentionScratch::new());
        out
    }
}
