//! Beginning of a pass: the sizes of its buffers, and the embeddings of tokens.

use ruvllm_kernels::quant::PackedMatrix;

use super::{experts, latent, per_layer, recurrent, streams};
use crate::batch::Segment;
use crate::config::ModelConfig;
use crate::error::Result;
use crate::family::DecoderSpec;
use crate::workspace::{Buffers, resize};

/// Sizes the buffers for `n_tokens` rows.
pub(super) fn prepare(config: &ModelConfig, buffers: &mut Buffers, n_tokens: usize) -> Result<()> {
    let (query_dim, kv_dim) = config.widest_heads();
    let rows = |width: usize| n_tokens.saturating_mul(width);
    resize(&mut buffers.hidden, rows(config.model_dim), "hidden states")?;
    resize(&mut buffers.update, rows(config.model_dim), "hidden states")?;
    resize(&mut buffers.queries, rows(query_dim), "queries")?;
    resize(&mut buffers.keys, rows(kv_dim), "keys")?;
    resize(&mut buffers.values, rows(kv_dim), "values")?;
    if config.decoder.gated_attention {
        resize(&mut buffers.gated_queries, rows(2 * query_dim), "queries")?;
        resize(&mut buffers.query_gates, rows(query_dim), "queries")?;
    }
    if let Some(recurrent) = &config.decoder.recurrent {
        recurrent::prepare(&mut buffers.recurrent, recurrent, n_tokens)?;
    }
    latent::prepare(&mut buffers.latent, config, n_tokens)?;
    per_layer::prepare(&mut buffers.per_layer, config, n_tokens)?;
    streams::prepare(&mut buffers.streams, config, n_tokens)?;
    let DecoderSpec { head_norms, row_norms, unit_head_norms, .. } = config.decoder;
    let head_norms = if head_norms || row_norms || unit_head_norms { query_dim } else { 0 };
    let post_norms = if config.decoder.post_norms { config.model_dim } else { 0 };
    resize(&mut buffers.unnormed, rows(head_norms.max(post_norms)), "norms")?;
    if let Some(experts) = &config.decoder.experts {
        experts::prepare(&mut buffers.experts, experts, n_tokens, config.model_dim)?;
    }
    resize(&mut buffers.up, rows(config.widest_network()), "the feed-forward network")
}

/// Looks the embedding of every token up, `[tokens, model_dim]`.
pub(super) fn embed(
    config: &ModelConfig,
    embedding: &PackedMatrix,
    rows: &mut [f32],
    segments: &[Segment<'_>],
) {
    let scale = config.decoder.embedding_scale;
    let tokens = segments.iter().flat_map(|segment| segment.tokens);
    for (row, &token) in rows.chunks_exact_mut(config.model_dim).zip(tokens) {
        embedding.dequantize_row(token as usize, row);
        if scale != 1.0 {
            row.iter_mut().for_each(|value| *value *= scale);
        }
    }
}
