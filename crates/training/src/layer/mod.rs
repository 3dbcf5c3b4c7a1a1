//! One decoder layer over a batch of whole sequences, forward and backward. The family's switches
//! are those of inference (ADR-0016); every one of them has its derivative here.

mod backward;
mod forward;

use std::ops::Range;

use ruvllm_adapters::Site;
use ruvllm_kernels::matmul::Activations;
use ruvllm_models::{Activation, AttentionWeights, Compute, FeedForward, LayerWeights, Linear, ModelConfig};

use crate::attention::{self, Shape};
use crate::batch::Rows;
use crate::error::Result;
use crate::frozen::{Direction, LayerTransposed, Ropes};
use crate::lora::{Lora, SiteFactors};
use crate::product;

/// One layer with what its passes read.
pub(crate) struct Layer<'a> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) weights: &'a LayerWeights,
    pub(crate) attention_norm: &'a [f32],
    pub(crate) attention: &'a AttentionWeights,
    /// The projection to values.
    pub(crate) value: &'a Linear,
    pub(crate) ffn_norm: &'a [f32],
    pub(crate) network: &'a FeedForward,
    /// The gate projection of the network.
    pub(crate) gate: &'a Linear,
    pub(crate) transposed: Option<&'a LayerTransposed>,
    pub(crate) index: usize,
    pub(crate) ropes: &'a Ropes,
    pub(crate) rows: &'a Rows,
    pub(crate) compute: &'a Compute,
    pub(crate) factors: Factors<'a>,
}

/// Trainable factors of the sites of a layer.
pub(crate) struct Factors<'a> {
    attention_input: Option<SiteFactors<'a>>,
    attention_output: Option<SiteFactors<'a>>,
    ffn_input: Option<SiteFactors<'a>>,
    ffn_output: Option<SiteFactors<'a>>,
}

impl<'a> Factors<'a> {
    /// Factors of a layer; none without an adapter.
    pub(crate) fn new(lora: Option<&'a Lora>, layer: usize) -> Result<Self> {
        let of = |site| lora.map_or(Ok(None), |lora| lora.factors(layer, site));
        Ok(Self {
            attention_input: of(Site::AttentionInput)?,
            attention_output: of(Site::AttentionOutput)?,
            ffn_input: of(Site::FeedForwardInput)?,
            ffn_output: of(Site::FeedForwardOutput)?,
        })
    }
}

/// Activations of a layer that its backward pass reads, `[tokens, width]` each.
#[derive(Default)]
pub(crate) struct Saved {
    /// Residual stream before the layer.
    pub(crate) input: Vec<f32>,
    /// Queries and keys before their norms; empty in models without.
    raw_queries: Vec<f32>,
    raw_keys: Vec<f32>,
    /// With norms and RoPE.
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Output of attention.
    attended: Activations,
    /// Output projection of attention before its norm; empty in models without.
    attention_update: Vec<f32>,
    /// Residual stream between attention and feed-forward network.
    middle: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    /// Output of the feed-forward network before its norm; empty in models without.
    ffn_update: Vec<f32>,
    /// `alpha / rank * A x` of each site.
    components: [Vec<f32>; 4],
}

/// Memory shared by the layers of a pass.
#[derive(Default)]
pub(crate) struct Buffers {
    normed: Activations,
    gated: Activations,
    update: Vec<f32>,
    /// Attention output or gradients of queries by sequence and head, `[heads, len, head_dim]`
    /// each.
    heads: Vec<f32>,
    key_heads: Vec<f32>,
    value_heads: Vec<f32>,
    /// Gradients of the outputs of a site, side by side.
    outputs: Activations,
    /// Gradient of the input of a site.
    gradient: Vec<f32>,
    products: product::Scratch,
}

impl Layer<'_> {
    fn attention_shape(&self) -> Shape {
        let (config, decoder) = (self.config, &self.config.decoder);
        Shape {
            n_heads: config.n_heads,
            n_kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
            scale: decoder.attention_scale,
            window: decoder.window.of_layer(self.index),
            soft_cap: decoder.attention_soft_cap,
        }
    }

    /// Applies RoPE to the heads of a row, which is part of a sequence of `len` tokens.
    fn rope(&self, direction: Direction, row: &mut [f32], n_heads: usize, position: usize, len: usize) {
        let table = self.ropes.of(direction, self.index, len);
        let layout = self.config.decoder.rope_layout;
        let positions = position..position + 1;
        self.compute.kernels.rope(table, layout, positions, row, n_heads, self.config.head_dim);
    }

    /// Factor of a query by its position.
    fn temperature(&self, position: usize) -> Option<f32> {
        self.config.decoder.attention_temperature.map(|temperature| temperature.factor(position))
    }

    /// Activation function of the kernels.
    fn activation(&self) -> ruvllm_kernels::rows::Activation {
        match self.config.decoder.activation {
            Activation::SwiGlu => ruvllm_kernels::rows::Activation::Silu,
            Activation::GeGlu => ruvllm_kernels::rows::Activation::GeluTanh,
            // The enum may grow in its crate; `Backprop::new` refuses models with more.
            _ => unreachable!("activations are checked when a model is taken"),
        }
    }

    /// Splits a sequence's part of head-major values into key-value heads with their groups.
    fn heads_of<'v>(&self, values: &'v mut [f32], per_head: usize) -> Vec<(usize, usize, &'v mut [f32])> {
        let width = self.config.n_kv_heads * per_head;
        let mut rest = values;
        let mut pieces = Vec::with_capacity(self.rows.sequences().len() * self.config.n_kv_heads);
        for (sequence, rows) in self.rows.sequences().iter().enumerate() {
            let (own, after) = std::mem::take(&mut rest).split_at_mut(rows.len() * width);
            rest = after;
            let heads = own.chunks_exact_mut(rows.len() * per_head).enumerate();
            pieces.extend(heads.map(|(head, piece)| (sequence, head, piece)));
        }
        pieces
    }

    /// Saved queries, keys and values of a sequence.
    fn attention_inputs<'s>(&self, saved: &'s Saved, rows: &Range<usize>) -> attention::Inputs<'s> {
        let of = |values: &'s [f32], width: usize| &values[rows.start * width..rows.end * width];
        attention::Inputs {
            queries: of(&saved.queries, self.config.query_dim()),
            keys: of(&saved.keys, self.config.kv_dim()),
            values: of(&saved.values, self.config.kv_dim()),
        }
    }

    /// Copies a token's heads out of head-major values of its sequence to a row.
    fn gather(&self, heads: &[f32], row: usize, out: &mut [f32]) {
        let dim = self.config.head_dim;
        let (sequence, position) = self.rows.place(row);
        let heads = &heads[sequence.start * out.len()..sequence.end * out.len()];
        for (head, out) in heads.chunks_exact(sequence.len() * dim).zip(out.chunks_exact_mut(dim)) {
            out.copy_from_slice(&head[position * dim..][..dim]);
        }
    }
}

/// Fills activations row by row, and quantizes them in the same pass if their product reads 8 bits.
fn fill(
    compute: &Compute,
    out: &mut Activations,
    (tokens, cols): (usize, usize),
    q8: bool,
    step: &(dyn Fn(usize, &mut [f32]) + Sync),
) {
    out.resize(tokens, cols);
    let rows = |rows: Range<usize>, values: &mut [f32]| {
        rows.zip(values.chunks_exact_mut(cols)).for_each(|(row, out)| step(row, out));
    };
    if q8 {
        out.update_and_quantize(&compute.kernels, &compute.pool, &rows);
    } else {
        out.update(&compute.pool, &rows);
    }
}
