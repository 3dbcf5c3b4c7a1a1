//! Token mixers: what a layer computes across tokens, attention or with a state.

use super::Linear;

/// Weights of what a layer computes across tokens.
#[derive(Debug)]
#[non_exhaustive]
pub enum Mixer {
    /// Attention over keys and values.
    Attention(AttentionWeights),
    /// Gated delta rule over a state.
    DeltaNet(DeltaNetWeights),
    /// Short convolution over the last tokens.
    ShortConvolution(ConvolutionWeights),
}

/// Attention. The norms that not every family has are named in `DecoderSpec`.
#[derive(Debug)]
#[non_exhaustive]
pub struct AttentionWeights {
    /// `[n_heads * head_dim, model_dim]`, or with gated attention `[n_heads, 2, head_dim,
    /// model_dim]`: the gate of each head behind its query.
    pub query: Linear,
    /// `[n_kv_heads * head_dim, model_dim]`.
    pub key: Linear,
    /// `[n_kv_heads * head_dim, model_dim]`.
    pub value: Linear,
    /// `[head_dim]`.
    pub query_norm: Option<Vec<f32>>,
    /// `[head_dim]`.
    pub key_norm: Option<Vec<f32>>,
    /// Scores without a value that take part in each head's softmax, `[n_heads]`; finite.
    pub sinks: Option<Vec<f32>>,
    /// `[model_dim, n_heads * head_dim]`.
    pub output: Linear,
}

/// Gated `DeltaNet`.
#[derive(Debug)]
#[non_exhaustive]
pub struct DeltaNetWeights {
    /// Queries, keys and values, `[channels, model_dim]`.
    pub input: Linear,
    /// Gate of the output, `[value_heads * value_dim, model_dim]`.
    pub gate: Linear,
    /// `[value_heads, model_dim]`; the state's decay is `exp(decay_factor * softplus(decay +
    /// decay_bias))`.
    pub decay: Linear,
    /// `[value_heads]`.
    pub decay_bias: Vec<f32>,
    /// `[value_heads]`, negative.
    pub decay_factor: Vec<f32>,
    /// Its sigmoid is the share of a value's error that is corrected, `[value_heads, model_dim]`.
    pub rate: Linear,
    /// `[taps, channels]`.
    pub convolution: Vec<f32>,
    /// Weights with which the norm of a query gives it the length `1 / sqrt(key_dim)`, `[key_dim]`.
    pub(crate) scaled: Vec<f32>,
    /// Weights with which the norm of a key gives it the length 1, `[key_dim]`.
    pub(crate) unit: Vec<f32>,
    /// Norm of each head's output, `[value_dim]`.
    pub norm: Vec<f32>,
    /// `[model_dim, value_heads * value_dim]`.
    pub output: Linear,
}

/// Short convolution.
#[derive(Debug)]
#[non_exhaustive]
pub struct ConvolutionWeights {
    /// Gate before the convolution, gate behind it, and its input: `[3 * model_dim, model_dim]`.
    pub input: Linear,
    /// `[taps, model_dim]`.
    pub convolution: Vec<f32>,
    /// `[model_dim, model_dim]`.
    pub output: Linear,
}

impl Mixer {
    /// Attention; `None` for a layer with a state.
    pub fn attention(&self) -> Option<&AttentionWeights> {
        match self {
            Self::Attention(attention) => Some(attention),
            _ => None,
        }
    }
}
