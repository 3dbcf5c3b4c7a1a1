//! Model families as data: the switches of the one decoder block. A new family is a file here that
//! fills a [`DecoderSpec`] from its metadata keys, and a line in [`FAMILIES`]; the forward pass in
//! `decoder` reads the switches and is never copied.

mod experts;
mod gemma;
mod llama;
mod olmoe;
mod phi;
mod qwen;
mod window;

use gguf_rs_lite::Metadata;
use ruvllm_kernels::rope::RopeLayout;

pub use self::experts::{ExpertGroups, Experts, Router, Scoring};
pub use self::window::Window;
use crate::config::keys::{Keys, Real};
use crate::error::{Error, Result};

/// The families that can be loaded.
const FAMILIES: &[Family] = &[
    llama::LLAMA,
    llama::MISTRAL3,
    qwen::QWEN2,
    qwen::QWEN3,
    qwen::QWEN2_MOE,
    qwen::QWEN3_MOE,
    olmoe::OLMOE,
    phi::PHI3,
    gemma::GEMMA,
    gemma::GEMMA2,
    gemma::GEMMA3,
];

/// One model family.
pub(crate) struct Family {
    /// Its value of `general.architecture`, which is also the prefix of its keys.
    architecture: &'static str,
    /// Base of the rotary embedding in windowed layers, unless the file names one; `None` is that
    /// of the other layers.
    pub(crate) local_rope_base: Option<f32>,
    /// Reads the switches.
    pub(crate) decoder: fn(&Keys<'_>, &Sizes) -> Result<DecoderSpec>,
}

/// The sizes that switches may depend on.
pub(crate) struct Sizes {
    pub(crate) model_dim: usize,
    pub(crate) n_layers: usize,
    pub(crate) n_heads: usize,
    pub(crate) head_dim: usize,
}

/// The switches of the decoder block. Biases need none: a projection that has a bias in the file
/// gets it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DecoderSpec {
    /// Pairing of the dimensions of a head in RoPE.
    pub rope_layout: RopeLayout,
    /// Factor of query-key products before the softmax.
    pub attention_scale: f32,
    /// Position-dependent factor of queries, if any.
    pub attention_temperature: Option<AttentionTemperature>,
    /// `cap` of `cap * tanh(score / cap)`, applied to the scaled products.
    pub attention_soft_cap: Option<f32>,
    /// Attention span of each layer: full or sliding window.
    pub window: Window,
    /// Activation of the gated feed-forward network.
    pub activation: Activation,
    /// Experts of the feed-forward network, if it is a mixture; in every layer then.
    pub experts: Option<Experts>,
    /// Storage of projections that have the same input: separate or joint.
    pub projections: Projections,
    /// True if each head of the queries and keys is normed before RoPE (QK norm).
    pub head_norms: bool,
    /// True if queries and keys are normed before RoPE, all heads of a token together.
    pub row_norms: bool,
    /// True if the outputs of attention and of the feed-forward network are normed before they are
    /// added to the residual stream.
    pub post_norms: bool,
    /// Factor of embeddings.
    pub embedding_scale: f32,
    /// `cap` of `cap * tanh(logit / cap)`.
    pub logits_soft_cap: Option<f32>,
}

impl DecoderSpec {
    /// The form that most families share, with the scale and the window that the file names.
    /// Mixtures of experts are refused: their families differ in what files leave out.
    fn usual(keys: &Keys<'_>, sizes: &Sizes) -> Result<Self> {
        if let Some(experts @ 1..) = keys.count("expert_count", 0..=usize::MAX)? {
            let expected = "0: this architecture is known without mixtures of experts";
            return Err(keys.invalid("expert_count", experts, expected));
        }
        Self::mixture(keys, sizes, None)
    }

    /// As [`usual`](Self::usual), with these experts.
    fn mixture(keys: &Keys<'_>, sizes: &Sizes, experts: Option<Experts>) -> Result<Self> {
        Ok(Self {
            rope_layout: RopeLayout::Halves,
            attention_scale: read_attention_scale(keys, sizes.head_dim)?,
            attention_temperature: None,
            attention_soft_cap: None,
            window: Window::read(keys, sizes.n_layers, window::Usual::EVERY_LAYER)?,
            activation: Activation::SwiGlu,
            experts,
            projections: Projections::Separate,
            head_norms: false,
            row_norms: false,
            post_norms: false,
            embedding_scale: 1.0,
            logits_soft_cap: None,
        })
    }
}

/// Position-dependent attention temperature: queries are multiplied by `1 + scale * ln(1 +
/// floor(position / every))`, so that attention stays as sharp with more keys. Source: Llama 4.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct AttentionTemperature {
    /// Growth of the factor.
    pub scale: f32,
    /// Positions from one step to the next; there is no effect before the first.
    pub every: usize,
}

impl AttentionTemperature {
    /// The factor of a query.
    pub fn factor(&self, position: usize) -> f32 {
        let steps = (position / self.every.max(1)) as f64;
        (1.0 + f64::from(self.scale) * steps.ln_1p()) as f32
    }
}

/// Activation that combines the gate and up projections.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Activation {
    /// `silu(gate) * up`.
    SwiGlu,
    /// `gelu(gate) * up`, with the approximation of GELU by `tanh`.
    GeGlu,
    /// `(up + 1) * gate * sigmoid(alpha * gate)` with `gate` at most `limit` and `up` within
    /// `limit` of 0. Source: gpt-oss, with 1.702 and 7.
    ClampedSwiGlu {
        /// Factor within the sigmoid.
        alpha: f32,
        /// Largest gate, and largest magnitude of `up`.
        limit: f32,
    },
}

/// Storage of projections that have the same input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Projections {
    /// Each in a tensor of its own.
    Separate,
    /// Queries, keys and values one below the other in `attn_qkv`, gate and up in `ffn_up`.
    Joint,
}

/// The factor of query-key products: the file's, or else `1 / sqrt(width)`.
fn read_attention_scale(keys: &Keys<'_>, width: usize) -> Result<f32> {
    let scale = keys.real("attention.scale", Real::NotNegative)?.filter(|&scale| scale > 0.0);
    Ok(scale.unwrap_or_else(|| (1.0 / (width as f64).sqrt()) as f32))
}

/// A soft cap: the file's, or else the usual one; 0 is none.
fn read_soft_cap(keys: &Keys<'_>, suffix: &str, usual: Option<f32>) -> Result<Option<f32>> {
    Ok(keys.real(suffix, Real::NotNegative)?.or(usual).filter(|&cap| cap > 0.0))
}

/// Value of `general.architecture` of the encoders that can be loaded: BERT, and what has its form.
pub(crate) const ENCODER: &str = "bert";

/// True if the metadata describe an [`Encoder`](crate::Encoder), which computes embeddings and
/// generates no text.
pub fn is_encoder(metadata: &Metadata) -> bool {
    matches!(metadata.get_str("general.architecture"), Ok(Some(ENCODER)))
}

/// The family of an architecture name.
pub(crate) fn find(architecture: &str) -> Result<&'static Family> {
    FAMILIES.iter().find(|family| family.architecture == architecture).ok_or_else(|| {
        Error::UnsupportedArchitecture { found: architecture.to_owned(), supported: supported() }
    })
}

/// The architecture names that can be loaded, separated by commas.
pub(crate) fn supported() -> String {
    FAMILIES.iter().map(|family| family.architecture).collect::<Vec<_>>().join(", ")
}
