//! Encoders of the BERT family: token ids of whole texts to hidden states, with attention in both
//! directions.
//!
//! An encoder is no decoder block with other switches (ADR-0023): norms stand behind the branches,
//! nothing is cached and nothing turns. What both do - products with biases, quantized inputs,
//! loading - is shared: `projection`, `weights`.

mod attention;
mod config;
mod layer;
mod weights;

use std::ops::Range;

use ruvllm_text::TokenId;

use self::layer::Layer;
use self::weights::Weights;
use crate::checkpoint::Checkpoint;
use crate::compute::Compute;
use crate::error::{Error, Result};
use crate::rows;
use crate::weights::{LoadProgress, WeightBytes};

pub use self::config::EncoderConfig;
pub use self::layer::EncoderWorkspace;

/// An encoder-only transformer with its weights. Immutable and shareable; buffers are in an
/// [`EncoderWorkspace`].
///
/// # Examples
/// ```
/// use ruvllm_models::{Checkpoint, Compute, Encoder, EncoderWorkspace, HfFolder};
/// use ruvllm_text::tokenizer::EncodeOptions;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/encoder/bert");
/// let folder = HfFolder::open(path)?;
/// let encoder = Encoder::load(&folder, &mut |_| ())?;
/// let ids = folder.tokenizer()?.encode("the cat sat", EncodeOptions::default())?;
///
/// let mut workspace = EncoderWorkspace::new();
/// let states = encoder.forward(&Compute::new(1)?, &mut workspace, &[&ids])?;
/// assert_eq!(states.len(), ids.len() * encoder.config().model_dim);
/// # Ok(())
/// # }
/// ```
pub struct Encoder {
    config: EncoderConfig,
    weights: Weights,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Encoder {
    /// Loads an encoder; matrices stay in the mapped file. `progress` is told of every tensor.
    ///
    /// # Errors
    /// As [`EncoderConfig::from_checkpoint`], and when a tensor is missing, left over, of an
    /// unsupported type or of another shape than the hyperparameters say.
    pub fn load(checkpoint: &dyn Checkpoint, progress: &mut dyn FnMut(LoadProgress<'_>)) -> Result<Self> {
        let config = EncoderConfig::from_checkpoint(checkpoint)?;
        let weights = Weights::load(checkpoint, &config, progress)?;
        Ok(Self { config, weights })
    }

    /// The hyperparameters.
    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// Bytes of the weights in shared and in private memory.
    pub fn weight_bytes(&self) -> WeightBytes {
        self.weights.bytes
    }

    /// The hidden states behind the last layer of all tokens of `texts`, `[tokens, model_dim]`,
    /// text after text.
    ///
    /// Each token sees its whole text and nothing else: what a text gets depends neither on the
    /// others nor on threads or instruction set, bit for bit.
    ///
    /// # Errors
    /// [`Error::EmptyBatch`], [`Error::EmptySegment`]; [`Error::TextOfTokens`] for a text longer
    /// than the model's context, [`Error::TokenOutOfRange`]; [`Error::OutOfMemory`].
    pub fn forward<'w>(
        &self,
        compute: &Compute,
        workspace: &'w mut EncoderWorkspace,
        texts: &[&[TokenId]],
    ) -> Result<&'w [f32]> {
        self.check(texts)?;
        let n_tokens = texts.iter().map(|text| text.len()).sum::<usize>();
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        workspace.prepare(&self.config, n_tokens, longest)?;
        self.embed(compute, workspace, texts);
        let spans = spans(texts);
        for weights in &self.weights.layers {
            Layer { config: &self.config, weights, compute }.forward(workspace, &spans);
        }
        Ok(workspace.states())
    }

    fn check(&self, texts: &[&[TokenId]]) -> Result<()> {
        if texts.is_empty() {
            return Err(Error::EmptyBatch);
        }
        let (context_length, vocab_size) = (self.config.context_length, self.config.vocab_size);
        for (segment, text) in texts.iter().enumerate() {
            if text.is_empty() {
                return Err(Error::EmptySegment { segment });
            }
            if text.len() > context_length {
                return Err(Error::TextOfTokens { segment, tokens: text.len(), context_length });
            }
            if let Some(index) = text.iter().position(|&token| token as usize >= vocab_size) {
                return Err(Error::TokenOutOfRange { segment, index, token: text[index], vocab_size });
            }
        }
        Ok(())
    }

    /// The sum of the embeddings of token, type and position, normed.
    fn embed(&self, compute: &Compute, workspace: &mut EncoderWorkspace, texts: &[&[TokenId]]) {
        let Compute { kernels, pool, .. } = compute;
        let (dim, weights) = (self.config.model_dim, &self.weights);
        let (sums, states) = workspace.embedding_buffers();
        let norm = weights.embedding_norm.norm();
        let tokens = texts.iter().flat_map(|text| text.iter().enumerate());
        let rows = sums.chunks_exact_mut(dim).zip(states.chunks_exact_mut(dim)).zip(tokens);
        rows::for_each(pool, rows, |((sum, state), (position, &token))| {
            weights.embedding.dequantize_row(token as usize, sum);
            if let Some(token_type) = &weights.token_type {
                kernels.add_assign(sum, token_type);
            }
            weights.positions.dequantize_row(position, state);
            kernels.add_assign(sum, state);
            kernels.norm(norm, self.config.norm_eps, sum, state);
        });
    }
}

/// The tokens of each text among those of all.
fn spans(texts: &[&[TokenId]]) -> Vec<Range<usize>> {
    let mut end = 0;
    let span = |text: &&[TokenId]| {
        let start = end;
        end += text.len();
        start..end
    };
    texts.iter().map(span).collect()
}
