//! Hyperparameters of an encoder, read from the metadata of a checkpoint and checked.

use crate::checkpoint::Checkpoint;
use crate::config::keys::{Keys, Real};
use crate::config::{
    MAX_CONTEXT, MAX_VOCAB, MAX_WIDTH, read_architecture, read_head_dim, read_layers, read_vocab_size,
};
use crate::error::Result;
use crate::family::{EncoderFamily, EncoderSizes, EncoderSpec, find_encoder};

/// Name of the embedding of token types.
pub(super) const TOKEN_TYPES: &str = "token_types.weight";

/// Names of the matrices behind the pooling, in their order.
pub(super) const DENSE: [&str; 2] = ["dense_2", "dense_3"];

/// Configuration of an encoder-only transformer: sizes, constants and the architecture's switches.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EncoderConfig {
    /// Value of `general.architecture`.
    pub architecture: String,
    /// Value of `general.name`, if the file has one.
    pub name: Option<String>,
    /// Width of the hidden states.
    pub model_dim: usize,
    /// Inner width of the feed-forward network.
    pub ffn_dim: usize,
    /// Number of transformer layers.
    pub n_layers: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Number of token ids, rows of the embedding.
    pub vocab_size: usize,
    /// Rows of the embedding of token types; 0 in models without.
    pub n_token_types: usize,
    /// Most tokens of a text; with an embedding of positions its rows.
    pub context_length: usize,
    /// Added to the variance, or the mean of the squares, in each norm.
    pub norm_eps: f32,
    /// Output widths of the matrices behind the pooling, at most two.
    pub dense_dims: Vec<usize>,
    /// Switches of the architecture.
    pub spec: EncoderSpec,
}

impl EncoderConfig {
    /// Reads and checks the hyperparameters of the model in `checkpoint`.
    ///
    /// # Errors
    /// [`Error::UnsupportedArchitecture`] for an architecture that is no encoder here,
    /// [`Error::MissingKey`] and [`Error::InvalidKey`] for hyperparameters that no such model can
    /// have, [`Error::MissingTensor`] and [`Error::TensorShape`] when the embedding is not usable,
    /// [`Error::Gguf`] for values of a wrong type.
    ///
    /// [`Error::UnsupportedArchitecture`]: crate::Error::UnsupportedArchitecture
    /// [`Error::MissingKey`]: crate::Error::MissingKey
    /// [`Error::InvalidKey`]: crate::Error::InvalidKey
    /// [`Error::MissingTensor`]: crate::Error::MissingTensor
    /// [`Error::TensorShape`]: crate::Error::TensorShape
    /// [`Error::Gguf`]: crate::Error::Gguf
    pub fn from_checkpoint(checkpoint: &dyn Checkpoint) -> Result<Self> {
        let metadata = checkpoint.metadata();
        let architecture = read_architecture(metadata)?;
        let family = find_encoder(architecture)?;
        let keys = Keys::new(metadata, architecture);
        let causal = "attention.causal";
        if metadata.get_bool(&keys.full(causal))? == Some(true) {
            return Err(keys.invalid(causal, true, "false: an encoder sees the whole text"));
        }
        let model_dim = keys.require_count("embedding_length", 1..=MAX_WIDTH)?;
        let (n_heads, n_kv_heads, head_dim) = read_heads(&keys, family, model_dim)?;
        let n_layers = read_layers(&keys, checkpoint)?;
        let spec = (family.spec)(&keys, &EncoderSizes { model_dim, n_layers, head_dim })?;
        let token_types = checkpoint.tensor(TOKEN_TYPES);
        // A trailing dimension of 1 need not be written.
        let rows = token_types.map_or(0, |info| info.dims.get(1).copied().unwrap_or(1));
        Ok(Self {
            architecture: architecture.to_owned(),
            name: metadata.get_str("general.name")?.map(str::to_owned),
            model_dim,
            ffn_dim: keys.require_count("feed_forward_length", 1..=MAX_WIDTH)?,
            n_layers,
            n_heads,
            n_kv_heads,
            head_dim,
            vocab_size: read_vocab_size(&keys, checkpoint, model_dim)?,
            // As many as the file has values for, whatever it says; the shape is checked against
            // this.
            n_token_types: usize::try_from(rows).unwrap_or(MAX_VOCAB).min(MAX_VOCAB),
            context_length: keys.require_count("context_length", 1..=MAX_CONTEXT)?,
            norm_eps: read_norm_eps(&keys, spec.rms_norms)?,
            dense_dims: if spec.may_project { read_dense(&keys, checkpoint, model_dim)? } else { Vec::new() },
            spec,
        })
    }

    /// Width of the vectors of texts.
    pub fn embedding_dim(&self) -> usize {
        self.dense_dims.last().copied().unwrap_or(self.model_dim)
    }

    /// Width of all query heads together.
    pub(super) fn query_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub(super) fn kv_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}

/// Query heads, key and value heads, and their width.
fn read_heads(keys: &Keys<'_>, family: &EncoderFamily, model_dim: usize) -> Result<(usize, usize, usize)> {
    const KV_HEADS: &str = "attention.head_count_kv";
    let n_heads = keys.require_count("attention.head_count", 1..=MAX_WIDTH)?;
    if !family.has_head_dim {
        if !model_dim.is_multiple_of(n_heads) {
            let expected = format!("a divisor of the model width {model_dim}");
            return Err(keys.invalid("attention.head_count", n_heads, expected));
        }
        return Ok((n_heads, n_heads, model_dim / n_heads));
    }
    let n_kv_heads = keys.count(KV_HEADS, 1..=MAX_WIDTH)?.unwrap_or(n_heads);
    if !n_heads.is_multiple_of(n_kv_heads) {
        return Err(keys.invalid(KV_HEADS, n_kv_heads, format!("a divisor of the {n_heads} query heads")));
    }
    Ok((n_heads, n_kv_heads, read_head_dim(keys, model_dim, n_heads)?))
}

/// Files may have the key of the other kind of norm alone.
fn read_norm_eps(keys: &Keys<'_>, rms_norms: bool) -> Result<f32> {
    const RANGE: Real = Real::AboveUpTo(0.0, 1.0);
    let (layer, rms) = ("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon");
    let (usual, other) = if rms_norms { (rms, layer) } else { (layer, rms) };
    match keys.real(usual, RANGE)? {
        Some(norm_eps) => Ok(norm_eps),
        None => match keys.real(other, RANGE)? {
            Some(norm_eps) => Ok(norm_eps),
            None => keys.require_real(usual, RANGE),
        },
    }
}

/// Output widths of the matrices behind the pooling that the file has.
fn read_dense(keys: &Keys<'_>, checkpoint: &dyn Checkpoint, model_dim: usize) -> Result<Vec<usize>> {
    let mut dims: Vec<usize> = Vec::new();
    for name in DENSE.iter().filter(|name| checkpoint.tensor(&format!("{name}.weight")).is_some()) {
        let inputs = dims.last().copied().unwrap_or(model_dim);
        let key = format!("{name}_feat_in");
        if let Some(named) = keys.count(&key, 1..=MAX_WIDTH)?.filter(|&named| named != inputs) {
            return Err(keys.invalid(&key, named, format!("{inputs}, the width of what comes before")));
        }
        dims.push(keys.require_count(&format!("{name}_feat_out"), 1..=MAX_WIDTH)?);
    }
    Ok(dims)
}
