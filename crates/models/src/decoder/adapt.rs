//! LoRA updates of the products of a pass. Rows of several adapters, and rows without one, may be
//! in one pass: the products with the weights are computed for all together, and the low-rank parts
//! of all adapters in one gathered dispatch per site (ADR-0054) and added with them (ADR-0061).

use ruvllm_adapters::{BaseModel, ScaledAdapter, Site};
use ruvllm_kernels::low_rank::LowRankTerm;
use ruvllm_kernels::matmul::{Activations, MatmulJob};
use ruvllm_kernels::quant::PackedMatrix;

use super::gates::Gates;
use crate::batch::{Segment, Span};
use crate::compute::Compute;
use crate::config::ModelConfig;
use crate::family::Projections;
use crate::projection::{add_bias, needs_q8, project};
use crate::weights::Linear;
use crate::workspace::Adapted;

/// Dimensions that adapters of a model must match.
pub(super) fn base_model(config: &ModelConfig) -> BaseModel {
    let decoder = &config.decoder;
    let has_other_mixers =
        decoder.recurrent.is_some() || decoder.latent.is_some() || decoder.layers.have_other_heads();
    let has_dense = decoder.experts.as_ref().is_some_and(|experts| experts.dense_dim > 0);
    let has_widths = has_dense || decoder.layers.ffn_dims.iter().any(|&dim| dim != config.ffn_dim);
    let has_other_networks = has_widths || !decoder.activation.is_gated() || decoder.folded_factors;
    BaseModel {
        architecture: config.architecture.clone(),
        n_layers: config.n_layers,
        model_dim: config.model_dim,
        query_dim: if has_other_mixers { 0 } else { config.query_dim() },
        kv_dim: config.kv_dim(),
        head_dim: config.head_dim,
        // Networks of several widths, or without a gate, have no sizes of the target modules.
        ffn_dim: if has_other_networks { 0 } else { config.ffn_dim },
        vocab_size: config.vocab_size,
        interleaved_heads: config.decoder.reordered_heads,
        joint_attention: config.decoder.projections == Projections::Joint,
        joint_feed_forward: config.decoder.projections != Projections::Separate,
    }
}

/// A product of a pass with its bias.
pub(super) struct Product<'a> {
    pub(super) weights: &'a PackedMatrix,
    pub(super) bias: Option<&'a [f32]>,
    /// `[rows, outputs]`
    pub(super) out: &'a mut [f32],
}

impl<'a> Product<'a> {
    pub(super) fn of(linear: &'a Linear, out: &'a mut [f32]) -> Self {
        Self { weights: &linear.weights, bias: linear.bias.as_deref(), out }
    }
}

/// Computes the products of `input` at a site, with the updates of adapters. The rows of `spans`
/// lie one behind the other, whatever rows of the batch they are.
pub(super) fn project_adapted<const N: usize>(
    compute: &Compute,
    adapted: &mut Adapted,
    (segments, spans): (&[Segment<'_>], &[Span]),
    at: (usize, Site),
    input: &mut Activations,
    products: [Product<'_>; N],
) {
    let Compute { kernels, pool, .. } = compute;
    let biases = products.each_ref().map(|product| product.bias);
    let mut jobs = products.map(|Product { weights, out, .. }| MatmulJob { weights, out });
    let Adapted { gates, terms: list, scratch, squares } = adapted;
    if let Some(squares) = squares {
        squares.add(at, input);
    }
    let mut terms = list.take();
    list_terms(&mut terms, gates, (segments, spans), at);
    if needs_q8(&jobs) {
        input.quantize(kernels, pool);
    }
    if biases.iter().all(Option::is_none) {
        kernels.matmul_low_rank(pool, input, &mut jobs, &terms, scratch);
    } else {
        kernels.matmul_many(pool, input, &mut jobs);
        for (job, bias) in jobs.iter_mut().zip(biases) {
            add_bias(compute, job.out, bias);
        }
        let mut outs = jobs.map(|job| job.out);
        kernels.add_low_rank(pool, input.values(), &terms, &mut outs, scratch);
    }
    list.put(terms);
}

/// As [`project_adapted`], for the queries of a layer without keys and values of its own. Adapters
/// may have updates of these, which change nothing: they go to `unused`, one for each.
pub(super) fn project_adapted_query(
    compute: &Compute,
    adapted: &mut Adapted,
    (segments, spans): (&[Segment<'_>], &[Span]),
    layer: usize,
    input: &mut Activations,
    (query, unused): (Product<'_>, [&mut [f32]; 2]),
) {
    let at = (layer, Site::AttentionInput);
    let Adapted { gates, terms: list, scratch, squares } = adapted;
    if let Some(squares) = squares {
        squares.add(at, input);
    }
    let Product { weights, bias, out } = query;
    project(compute, input, &mut [MatmulJob { weights, out: &mut *out }]);
    add_bias(compute, out, bias);
    let mut terms = list.take();
    list_terms(&mut terms, gates, (segments, spans), at);
    let [keys, values] = unused;
    compute.kernels.add_low_rank(&compute.pool, input.values(), &terms, &mut [out, keys, values], scratch);
    list.put(terms);
}

/// Adds the updates of a site to the rows that they are computed from; `before` is memory for
/// these.
pub(super) fn adapt_in_place(
    compute: &Compute,
    adapted: &mut Adapted,
    rows: (&[Segment<'_>], &[Span]),
    at: (usize, Site),
    states: &mut Activations,
    before: &mut [f32],
) {
    let Compute { kernels, pool, .. } = compute;
    let Adapted { gates, terms: list, scratch, .. } = adapted;
    let mut terms = list.take();
    list_terms(&mut terms, gates, rows, at);
    if !terms.is_empty() {
        let before = &mut before[..states.values().len()];
        before.copy_from_slice(states.values());
        let mut outs = [states.values_mut()];
        kernels.add_low_rank(pool, before, &terms, &mut outs, scratch);
    }
    list.put(terms);
}

/// Lists the updates of a site, by rows.
fn list_terms<'a>(
    terms: &mut Vec<LowRankTerm<'a>>,
    gates: &'a Gates,
    (segments, spans): (&[Segment<'a>], &[Span]),
    (layer, site): (usize, Site),
) {
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
}

/// True for an adapter whose gate selects some adapters per token.
fn selects(scaled: &ScaledAdapter) -> bool {
    scaled.gate.as_ref().is_some_and(|by| by.gate().config().top_k.is_some())
}
