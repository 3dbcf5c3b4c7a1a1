//! Layers whose heads, keys and values are not those of the others (ADR-0151): kinds of heads, and
//! the layer behind which only rows with logits matter.

use ruvllm_gpu::{Buffer, Gpu, Result};
use ruvllm_models::{Heads, LayerParts, ModelConfig};

use super::inputs::{Input, zeroed};

/// Activations of attention with heads of one kind.
#[derive(Debug)]
pub(super) struct HeadRows {
    /// Queries, keys and values, `[n, heads + 2 kv_heads, head_dim]`.
    pub(super) qkv: Buffer,
    /// Queries behind RoPE, `[n, heads, head_dim]`, filled up where attention takes other sizes.
    pub(super) queries: Buffer,
    /// Outputs of attention.
    pub(super) attended: Input,
}

impl HeadRows {
    /// Activations of `n` rows of heads with keys and values.
    pub(super) fn new(gpu: &Gpu, heads: Heads, n: u32) -> Result<Self> {
        let (query, kv) = (heads.query_dim(), heads.kv_dim());
        Self::of_widths(gpu, [query + 2 * kv, query, query], n)
    }

    /// As [`new`](Self::new), of these widths.
    pub(super) fn of_widths(gpu: &Gpu, [qkv, queries, attended]: [usize; 3], n: u32) -> Result<Self> {
        Ok(Self {
            qkv: zeroed(gpu, n, qkv)?,
            queries: zeroed(gpu, n, queries)?,
            attended: Input::new(gpu, n, attended)?,
        })
    }
}

/// The first layer of each kind of heads.
pub(super) fn kinds(config: &ModelConfig) -> impl Iterator<Item = usize> {
    let is_local = |layer: &usize| config.decoder.layers.local_heads_of(*layer).is_some();
    let layers = 0..config.n_layers;
    [layers.clone().find(|layer| !is_local(layer)), layers.clone().find(is_local)].into_iter().flatten()
}

/// True for a layer whose attention reads the keys and values of an earlier one.
pub(super) fn reads_others(config: &ModelConfig, layer: usize) -> bool {
    config.decoder.layers.kv_source(layer) != layer
}

/// The last layer that writes keys and values or changes a state.
pub(super) fn last_writer(config: &ModelConfig) -> usize {
    let writes = |&layer: &usize| {
        config.decoder.layers.parts_of(layer) != LayerParts::Network && !reads_others(config, layer)
    };
    (0..config.n_layers).rev().find(writes).unwrap_or(0)
}
