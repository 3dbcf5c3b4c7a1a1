//! LoRA updates of the products of a pass. Rows of several adapters, and rows without one, may be
//! in one pass: the products with the weights are computed for all together, and the low-rank parts
//! of all adapters in one gathered dispatch per site (ADR-0054).

use ruvllm_adapters::{BaseModel, ScaledAdapter, Site};
use ruvllm_kernels::low_rank::LowRankTerm;
use ruvllm_kernels::matmul::Activations;
use ruvllm_kernels::rope::RopeLayout;

use crate::batch::{Segment, Span};
use crate::compute::Compute;
use crate::config::ModelConfig;
use crate::family::Projections;
use crate::workspace::Adapted;

/// Dimensions that adapters of a model must match.
pub(super) fn base_model(config: &ModelConfig) -> BaseModel {
    BaseModel {
        architecture: config.architecture.clone(),
        n_layers: config.n_layers,
        model_dim: config.model_dim,
        query_dim: config.query_dim(),
        kv_dim: config.kv_dim(),
        head_dim: config.head_dim,
        ffn_dim: config.ffn_dim,
        vocab_size: config.vocab_size,
        interleaved_heads: config.decoder.rope_layout == RopeLayout::Interleaved,
        joint_projections: config.decoder.projections == Projections::Joint,
    }
}

/// Adds the updates of a site to the products `outs` of `input`. The rows of `spans` lie one behind
/// the other, whatever rows of the batch they are.
pub(super) fn adapt(
    compute: &Compute,
    adapted: &mut Adapted,
    (segments, spans): (&[Segment<'_>], &[Span]),
    (layer, site): (usize, Site),
    input: &Activations,
    outs: &mut [&mut [f32]],
) {
    let Compute { kernels, pool } = compute;
    let Adapted { gates, terms: list, scratch } = adapted;
    let mut terms = list.take();
    let mut row = 0;
    for span in spans {
        let adapters = segments[span.segment].adapters;
        // Tokens that take different adapters of one list have terms of their own.
        let len = if adapters.iter().any(selects) { 1 } else { span.len };
        for first in (0..span.len).step_by(len) {
            let rows = row + first..row + first + len;
            let part = span.part(first, len);
            terms.extend(adapters.iter().filter_map(|scaled| {
                let update = scaled.adapter.at(layer, site).filter(|_| scaled.scale != 0.0)?;
                let gates = scaled.gate.as_ref().map_or(&[][..], |by| gates.of(segments, &part, by));
                let is_left_out = selects(scaled) && *gates == [0.0];
                (!is_left_out).then(|| LowRankTerm { rows: rows.clone(), scale: scaled.scale, gates, update })
            }));
        }
        row += span.len;
    }
    kernels.add_low_rank(pool, input.values(), &terms, outs, scratch);
    list.put(terms);
}

/// True for an adapter whose gate selects some adapters per token.
fn selects(scaled: &ScaledAdapter) -> bool {
    scaled.gate.as_ref().is_some_and(|by| by.gate().config().top_k.is_some())
}
