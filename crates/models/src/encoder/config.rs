//! Hyperparameters of an encoder, read from the metadata of a checkpoint and checked.

use crate::checkpoint::Checkpoint;
use crate::config::keys::{Keys, Real};
use crate::config::{MAX_CONTEXT, MAX_VOCAB, MAX_WIDTH, read_architecture, read_layers, read_vocab_size};
use crate::error::{Error, Result};
use crate::family::ENCODER;

/// Name of the embedding of token types.
pub(super) const TOKEN_TYPES: &str = "token_types.weight";

/// Configuration of an encoder-only transformer of the BERT family.
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
    /// Number of heads; divides `model_dim`.
    pub n_heads: usize,
    /// Number of token ids, rows of the embedding.
    pub vocab_size: usize,
    /// Rows of the embedding of token types; 0 in models without.
    pub n_token_types: usize,
    /// Most tokens of a text, rows of the embedding of positions.
    pub context_length: usize,
    /// Added to the variance in each norm.
    pub norm_eps: f32,
}

impl EncoderConfig {
    /// Reads and checks the hyperparameters of the model in `checkpoint`.
    ///
    /// # Errors
    /// [`Error::UnsupportedArchitecture`] for another architecture than `bert`,
    /// [`Error::MissingKey`] and [`Error::InvalidKey`] for hyperparameters that no such model can
    /// have, [`Error::MissingTensor`] and [`Error::TensorShape`] when the embedding is not usable,
    /// [`Error::Gguf`] for values of a wrong type.
    pub fn from_checkpoint(checkpoint: &dyn Checkpoint) -> Result<Self> {
        let metadata = checkpoint.metadata();
        let architecture = read_architecture(metadata)?;
        if architecture != ENCODER {
            let supported = ENCODER.to_owned();
            return Err(Error::UnsupportedArchitecture { found: architecture.to_owned(), supported });
        }
        let keys = Keys::new(metadata, architecture);
        let causal = "attention.causal";
        if metadata.get_bool(&keys.full(causal))? == Some(true) {
            return Err(keys.invalid(causal, true, "false: an encoder sees the whole text"));
        }
        let model_dim = keys.require_count("embedding_length", 1..=MAX_WIDTH)?;
        let n_heads = keys.require_count("attention.head_count", 1..=MAX_WIDTH)?;
        if model_dim % n_heads != 0 {
            let expected = format!("a divisor of the model width {model_dim}");
            return Err(keys.invalid("attention.head_count", n_heads, expected));
        }
        let token_types = checkpoint.tensor(TOKEN_TYPES);
        // A trailing dimension of 1 need not be written.
        let rows = token_types.map_or(0, |info| info.dims.get(1).copied().unwrap_or(1));
        Ok(Self {
            architecture: architecture.to_owned(),
            name: metadata.get_str("general.name")?.map(str::to_owned),
            model_dim,
            ffn_dim: keys.require_count("feed_forward_length", 1..=MAX_WIDTH)?,
            n_layers: read_layers(&keys, checkpoint)?,
            n_heads,
            vocab_size: read_vocab_size(&keys, checkpoint, model_dim)?,
            // As many as the file has values for, whatever it says; the shape is checked against
            // this.
            n_token_types: usize::try_from(rows).unwrap_or(MAX_VOCAB).min(MAX_VOCAB),
            context_length: keys.require_count("context_length", 1..=MAX_CONTEXT)?,
            norm_eps: keys.require_real("attention.layer_norm_epsilon", Real::AboveUpTo(0.0, 1.0))?,
        })
    }

    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.model_dim / self.n_heads
    }
}
