//! Encoders of the BERT family: token ids of whole texts to hidden states, with attention in both
//! directions.
//!
//! An encoder is no decoder block with other switches (ADR-0023): norms stand behind the branches,
//! nothing is cached and nothing turns. What both do - products with biases, quantized inputs,
//! loading - is shared: `projection`, `weights`.

mod attention;
mod config;
mod head;
mod layer;
mod linear;
mod text;
mod weights;

use ruvllm_text::TokenId;

use self::layer::Layer;
use self::text::spans;
use self::weights::Weights;
use crate::checkpoint::Checkpoint;
use crate::compute::Compute;
use crate::error::{Error, Result};
use crate::rows;
use crate::weights::{LoadProgress, WeightBytes};

pub use self::config::EncoderConfig;
pub use self::layer::EncoderWorkspace;
pub use self::text::EncoderText;

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
        let texts: Vec<_> = texts.iter().map(|&tokens| EncoderText::new(tokens)).collect();
        self.run(compute, workspace, &texts)
    }

    /// Logits of pairs of texts: the head's output for the first state of each, `[texts]`. Bits
    /// depend on the pair alone, as in [`Self::forward`].
    ///
    /// # Errors
    /// [`Error::NoHead`] for a model without a classification head; otherwise as
    /// [`Self::forward`].
    pub fn scores(
        &self,
        compute: &Compute,
        workspace: &mut EncoderWorkspace,
        texts: &[EncoderText<'_>],
    ) -> Result<Vec<f32>> {
        let head = self.weights.head.as_ref().ok_or(Error::NoHead)?;
        let states = self.run(compute, workspace, texts)?;
        let dim = self.config.model_dim;
        let firsts = spans(texts).into_iter().map(|span| &states[span.start * dim..][..dim]);
        Ok(head.scores(compute, firsts))
    }

    /// True if the model has a classification head, whose output is a score.
    pub fn has_head(&self) -> bool {
        self.weights.head.is_some()
    }

    /// The hidden states of all tokens.
    fn run<'w>(
        &self,
        compute: &Compute,
        workspace: &'w mut EncoderWorkspace,
        texts: &[EncoderText<'_>],
    ) -> Result<&'w [f32]> {
        text::check(texts, &self.config)?;
        let n_tokens = texts.iter().map(|text| text.tokens.len()).sum::<usize>();
        let longest = texts.iter().map(|text| text.tokens.len()).max().unwrap_or(0);
        workspace.prepare(&self.config, n_tokens, longest)?;
        self.embed(compute, workspace, texts);
        let spans = spans(texts);
        for weights in &self.weights.layers {
            Layer { config: &self.config, weights, compute }.forward(workspace, &spans);
        }
        Ok(workspace.states())
    }

    /// The sum of the embeddings of token, type and position, normed.
    fn embed(&self, compute: &Compute, workspace: &mut EncoderWorkspace, texts: &[EncoderText<'_>]) {
        let Compute { kernels, pool, .. } = compute;
        let (dim, weights) = (self.config.model_dim, &self.weights);
        let (sums, states) = workspace.embedding_buffers();
        let norm = weights.embedding_norm.norm();
        let tokens = texts.iter().flat_map(|text| {
            let tokens = text.tokens.iter().enumerate();
            tokens.map(|(position, &token)| (position, token, usize::from(position >= text.second_type)))
        });
        let rows = sums.chunks_exact_mut(dim).zip(states.chunks_exact_mut(dim)).zip(tokens);
        rows::for_each(pool, rows, |((sum, state), (position, token, kind))| {
            weights.embedding.dequantize_row(token as usize, sum);
            if let Some(token_type) = weights.token_types.get(kind).or(weights.token_types.first()) {
                kernels.add_assign(sum, token_type);
            }
            weights.positions.dequantize_row(position, state);
            kernels.add_assign(sum, state);
            kernels.norm(norm, self.config.norm_eps, sum, state);
        });
    }
}
