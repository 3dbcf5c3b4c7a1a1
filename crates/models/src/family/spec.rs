//! The switches of the decoder block.

use ruvllm_kernels::rope::RopeLayout;

use super::activation::Activation;
use super::experts::Experts;
use super::latent::LatentAttention;
use super::layers::{LayerKinds, LayerParts};
use super::recurrent::Recurrent;
use super::streams::ResidualStreams;
use super::temperature::AttentionTemperature;
use super::window::{self, Window};
use super::{Sizes, YARN_TRUNCATE, read_attention_scale};
use crate::config::keys::Keys;
use crate::error::Result;

/// The switches of the decoder block. Biases need none: a projection that has a bias in the file
/// gets it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DecoderSpec {
    /// Pairing of the dimensions of a head in RoPE.
    pub rope_layout: RopeLayout,
    /// True if files have the rows of queries and keys in another order than folders: the two
    /// halves of a head interleaved, so that the elements of a rotated pair are neighbours.
    pub reordered_heads: bool,
    /// Factor of query-key products before the softmax.
    pub attention_scale: f32,
    /// Position-dependent factor of queries, if any.
    pub attention_temperature: Option<AttentionTemperature>,
    /// `cap` of `cap * tanh(score / cap)`, applied to the scaled products.
    pub attention_soft_cap: Option<f32>,
    /// True if each head has a learned score that takes part in its softmax and has no value
    /// (attention sinks).
    pub sinks: bool,
    /// True if the output of attention is multiplied by the sigmoid of a projection that `attn_q`
    /// holds: behind the rows of each head's query those of its gate.
    pub gated_attention: bool,
    /// Latent attention in every layer in the place of attention, if any.
    pub latent: Option<LatentAttention>,
    /// True if files have factors of the model in their weights, which adapters lack.
    pub folded_factors: bool,
    /// Layers that keep a state instead of keys and values or beside them, if any.
    pub recurrent: Option<Recurrent>,
    /// Differences between layers, and parts of few families.
    pub layers: LayerKinds,
    /// Several residual streams, if there are.
    pub streams: Option<ResidualStreams>,
    /// Standard deviations above the mean of its row that a gate of the feed-forward network must
    /// have to pass, `[n_layers]`; minus infinity: all pass. What lies below counts as 0, and the
    /// cutoff is subtracted. Empty: all pass in all layers.
    pub gate_cutoffs: Vec<f32>,
    /// True if the ends of `YaRN`'s ramp are rounded to whole pairs.
    pub yarn_truncate: bool,
    /// Attention span of each layer: full or sliding window.
    pub window: Window,
    /// Activation of the feed-forward network.
    pub activation: Activation,
    /// Experts of the feed-forward network, if it is a mixture in some layer.
    pub experts: Option<Experts>,
    /// Storage of projections that have the same input: separate or joint.
    pub projections: Projections,
    /// True if each head of the queries and keys is normed before RoPE (QK norm).
    pub head_norms: bool,
    /// True if the norms of heads may be absent: files that lack them are models without.
    pub optional_head_norms: bool,
    /// True if each head of the queries and keys is normed without weights in layers that rotate
    /// them. Models do so behind RoPE, which leaves the length of a head as it is.
    pub unit_head_norms: bool,
    /// True if queries and keys are normed before RoPE, all heads of a token together.
    pub row_norms: bool,
    /// True if the inputs of attention and of the feed-forward network are normed.
    pub input_norms: bool,
    /// True if norms of the residual stream are layer norms with biases: the mean is subtracted.
    pub layer_norms: bool,
    /// Name of the norm before the feed-forward network, behind that of the layer.
    pub ffn_norm_name: &'static str,
    /// Name of the norm before the logits, before `.weight`.
    pub output_norm_name: &'static str,
    /// True if the outputs of attention and of the feed-forward network are normed before they are
    /// added to the residual stream.
    pub post_norms: bool,
    /// Factor of embeddings.
    pub embedding_scale: f32,
    /// Factor of what attention and the feed-forward network add to the residual stream.
    pub residual_scale: f32,
    /// Factor of logits; the final norm's weights hold it.
    pub logits_scale: f32,
    /// `cap` of `cap * tanh(logit / cap)`.
    pub logits_soft_cap: Option<f32>,
}

impl DecoderSpec {
    /// The first feature of the block that only the forward pass of this crate computes, for those
    /// who compute the block otherwise and must refuse it.
    pub fn unusual_feature(&self) -> Option<String> {
        if let Some(experts) = &self.experts {
            return Some(format!("a mixture of {} experts", experts.count));
        }
        if self.streams.is_some() {
            return Some("several residual streams".to_owned());
        }
        if let Some(feature) = self.layers.unusual_feature() {
            return Some(feature.to_owned());
        }
        let features = [
            (self.recurrent.is_some(), "layers with a state instead of keys and values"),
            (self.latent.is_some(), "latent attention"),
            (self.gated_attention, "a gated output of attention"),
            (self.gate_cutoffs.iter().any(|cutoff| cutoff.is_finite()), "gates of which few pass"),
            (self.sinks, "learned attention sinks"),
            (!self.activation.is_gated(), "feed-forward networks without a gate"),
            (!self.input_norms, "no norms before attention and the feed-forward network"),
            (self.row_norms, "norms over all heads of a query or key together"),
            (self.unit_head_norms, "norms of heads without weights"),
            (self.layer_norms, "layer norms"),
            (self.window.is_chunked(), "attention within chunks"),
            (self.residual_scale != 1.0, "a factor of what layers add to the residual stream"),
        ];
        features.into_iter().find_map(|(is_there, name)| is_there.then(|| name.to_owned()))
    }

    /// True if a layer writes or reads keys and values.
    pub fn has_attention(&self, layer: usize) -> bool {
        let is_instead = |recurrent: &Recurrent| recurrent.layers[layer] && !recurrent.beside_attention;
        self.layers.parts_of(layer) != LayerParts::Network && !self.recurrent.as_ref().is_some_and(is_instead)
    }

    /// Standard deviations above the mean of its row that a gate of the feed-forward network of
    /// `layer` must have to pass; `None`: all pass.
    pub fn gate_cutoff(&self, layer: usize) -> Option<f32> {
        self.gate_cutoffs.get(layer).copied().filter(|cutoff| cutoff.is_finite())
    }

    /// Rows of `attn_q` for each dimension of a query: its own, and that of a gate.
    pub(crate) fn query_parts(&self) -> usize {
        1 + usize::from(self.gated_attention)
    }

    /// The form that most families share, with the scale and the window that the file names.
    /// Mixtures of experts are refused: their families differ in what files leave out.
    pub(super) fn usual(keys: &Keys<'_>, sizes: &Sizes) -> Result<Self> {
        if let Some(experts @ 1..) = keys.count("expert_count", 0..=usize::MAX)? {
            let expected = "0: this architecture is known without mixtures of experts";
            return Err(keys.invalid("expert_count", experts, expected));
        }
        Self::mixture(keys, sizes, None)
    }

    /// As [`usual`](Self::usual), with these experts.
    pub(super) fn mixture(keys: &Keys<'_>, sizes: &Sizes, experts: Option<Experts>) -> Result<Self> {
        Ok(Self {
            rope_layout: RopeLayout::Halves,
            reordered_heads: false,
            attention_scale: read_attention_scale(keys, sizes.head_dim)?,
            attention_temperature: None,
            attention_soft_cap: None,
            sinks: false,
            gated_attention: false,
            latent: None,
            folded_factors: false,
            recurrent: None,
            layers: LayerKinds::default(),
            streams: None,
            gate_cutoffs: Vec::new(),
            yarn_truncate: keys.flag(YARN_TRUNCATE)?.unwrap_or(true),
            window: Window::read(keys, sizes.n_layers, window::Usual::EVERY_LAYER)?,
            activation: Activation::SwiGlu,
            experts,
            projections: Projections::Separate,
            head_norms: false,
            optional_head_norms: false,
            unit_head_norms: false,
            row_norms: false,
            input_norms: true,
            layer_norms: false,
            ffn_norm_name: "ffn_norm.weight",
            output_norm_name: "output_norm",
            post_norms: false,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logits_scale: 1.0,
            logits_soft_cap: None,
        })
    }
}

/// Storage of projections that have the same input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Projections {
    /// Each in a tensor of its own.
    Separate,
    /// Queries, keys and values one below the other in `attn_qkv`, gate and up in `ffn_up`.
    Joint,
    /// Gate and up one below the other in `ffn_up`, the others in tensors of their own.
    JointFeedForward,
}
