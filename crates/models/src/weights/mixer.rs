//! Token mixers: what a layer computes across tokens, attention or with a state.

use ruvllm_kernels::quant::PackedMatrix;

use super::Linear;

/// Weights of what a layer computes across tokens.
#[derive(Debug)]
#[non_exhaustive]
pub enum Mixer {
    /// Attention over keys and values.
    Attention(AttentionWeights),
    /// Attention over the keys and values of an earlier layer.
    SharedAttention(SharedAttentionWeights),
    /// Attention over latents of keys and values.
    Latent(LatentWeights),
    /// Gated delta rule over a state.
    DeltaNet(DeltaNetWeights),
    /// Short convolution over the last tokens.
    ShortConvolution(ConvolutionWeights),
    /// Selective scan over a state.
    Mamba2(Mamba2Weights),
    /// The same beside attention over keys and values.
    Parallel(Box<ParallelWeights>),
    /// None: the layer is a feed-forward network or experts alone.
    None,
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
    /// `[n_kv_heads * head_dim, model_dim]`; `None`: values are keys before their norm.
    pub value: Option<Linear>,
    /// `[head_dim]`; ones for norms without weights.
    pub query_norm: Option<Vec<f32>>,
    /// `[head_dim]`; ones for norms without weights.
    pub key_norm: Option<Vec<f32>>,
    /// Ones, `[head_dim]`.
    pub value_norm: Option<Vec<f32>>,
    /// Scores without a value that take part in each head's softmax, `[n_heads]`; finite.
    pub sinks: Option<Vec<f32>>,
    /// `[model_dim, n_heads * head_dim]`.
    pub output: Linear,
}

/// Attention of a layer that has no keys and values of its own.
#[derive(Debug)]
#[non_exhaustive]
pub struct SharedAttentionWeights {
    /// `[n_heads * head_dim, model_dim]`.
    pub query: Linear,
    /// `[head_dim]`.
    pub query_norm: Option<Vec<f32>>,
    /// `[model_dim, n_heads * head_dim]`.
    pub output: Linear,
}

/// Latent attention.
#[derive(Debug)]
#[non_exhaustive]
pub struct LatentWeights {
    /// To the latent of queries, `[query_rank, model_dim]`, and the norm of it, `[query_rank]`; if
    /// there is one.
    pub query_latent: Option<(Linear, Vec<f32>)>,
    /// `[n_heads * (still_dim + rotary_dim), query_rank]`, or without a latent `model_dim` columns.
    pub query: Linear,
    /// To the latent of keys and values and the rotated key, `[rank + rotary_dim, model_dim]`.
    pub latent: Linear,
    /// Norm of the latent, `[rank]`.
    pub latent_norm: Vec<f32>,
    /// From a head's query to the space of the latent, `[rank, still_dim]` for each head.
    pub keys: Vec<PackedMatrix>,
    /// From the latent to a head's value, `[value_dim, rank]` for each head.
    pub values: Vec<PackedMatrix>,
    /// `[model_dim, n_heads * value_dim]`.
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

/// Mamba-2.
#[derive(Debug)]
#[non_exhaustive]
pub struct Mamba2Weights {
    /// Gate of the output, `[heads * head_dim, model_dim]`.
    pub gate: Linear,
    /// Inputs of all heads, then `B` and then `C` of all groups, `[channels, model_dim]`.
    pub input: Linear,
    /// `[heads, model_dim]`; time steps are `softplus(step + step_bias)`.
    pub step: Linear,
    /// `[heads]`.
    pub step_bias: Vec<f32>,
    /// `A`, `[heads]`, negative: the state's decay is `exp(A * time step)`.
    pub decay_factor: Vec<f32>,
    /// `D`, factor of a head's input in its output, `[heads]`.
    pub skip: Vec<f32>,
    /// `[taps, channels]`.
    pub convolution: Vec<f32>,
    /// `[channels]`.
    pub convolution_bias: Option<Vec<f32>>,
    /// Norms of the gated outputs of each group, one behind the other, `[heads * head_dim]`.
    pub norm: Option<Vec<f32>>,
    /// `[model_dim, heads * head_dim]`.
    pub output: Linear,
}

/// Mamba-2 and attention with the same input, whose outputs are added.
#[derive(Debug)]
#[non_exhaustive]
pub struct ParallelWeights {
    /// Selective scan over a state.
    pub mamba2: Mamba2Weights,
    /// Attention over keys and values.
    pub attention: AttentionWeights,
}

impl Mixer {
    /// Attention over keys and values; `None` for a layer with another mixer.
    pub fn attention(&self) -> Option<&AttentionWeights> {
        match self {
            Self::Attention(attention) => Some(attention),
            _ => None,
        }
    }
}
