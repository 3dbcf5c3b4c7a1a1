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
    let mut terms = adapted.take_terms();
    let mut row = 0;
    for span in spans {
        let rows = row..row + span.len;
        row = rows.end;
        terms.extend(segments[span.segment].adapters.iter().filter_map(|scaled| {
            let &ScaledAdapter { ref adapter, scale } = scaled;
            let update = adapter.at(layer, site).filter(|_| scale != 0.0)?;
            Some(LowRankTerm { rows: rows.clone(), scale, gates: &[], update })
        }));
    }
    kernels.add_low_rank(pool, input.values(), &terms, outs, &mut adapted.scratch);
    adapted.put_terms(terms);
}
