//! Encoders: token ids of whole texts to hidden states, with attention in both directions, and from
//! pooled states to vectors where the model has matrices for it.
//!
//! An encoder is no decoder block with other switches (ADR-0023): nothing is cached, and a text is
//! computed as a whole. The layers of BERT, `ModernBERT`, Nomic-BERT and `EmbeddingGemma` are one
//! with the switches of [`EncoderSpec`](crate::EncoderSpec) (ADR-0129). Decoders share the products
//! with biases, quantized inputs, rotary tables and loading: `projection`, `rope`, `weights`.

mod attention;
mod config;
mod embed;
mod head;
mod layer;
mod linear;
mod rope;
mod text;
mod weights;
mod workspace;

use ruvllm_kernels::matmul::{Activations, MatmulJob};
use ruvllm_text::TokenId;

use self::layer::Layer;
use self::rope::Ropes;
use self::text::spans;
use self::weights::Weights;
use crate::checkpoint::Checkpoint;
use crate::compute::Compute;
use crate::error::{Error, Result};
use crate::projection::project;
use crate::weights::{LoadProgress, WeightBytes};

pub use self::config::EncoderConfig;
pub use self::text::EncoderText;
pub use self::workspace::EncoderWorkspace;

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
    /// `None`: the model adds an embedding of positions.
    ropes: Option<Ropes>,
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
        let ropes = Ropes::new(&config)?;
        Ok(Self { config, weights, ropes })
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

    /// True if the model has matrices behind the pooling.
    pub fn has_projection(&self) -> bool {
        !self.weights.dense.is_empty()
    }

    /// Vectors of pooled states, `[texts, embedding_dim]`: the matrices behind the pooling, one
    /// after the other. `pooled` itself in models without any.
    ///
    /// # Panics
    /// If `pooled` is not `[texts, model_dim]`.
    pub fn project(&self, compute: &Compute, pooled: Vec<f32>) -> Vec<f32> {
        let texts = pooled.len() / self.config.model_dim;
        let mut input = Activations::default();
        self.weights.dense.iter().zip(&self.config.dense_dims).fold(pooled, |values, (weights, &outputs)| {
            input.resize(texts, values.len() / texts.max(1)).copy_from_slice(&values);
            let mut out = vec![0.0; texts * outputs];
            project(compute, &mut input, &mut [MatmulJob { weights, out: &mut out }]);
            out
        })
    }

    /// The hidden states of all tokens.
    fn run<'w>(
        &self,
        compute: &Compute,
        workspace: &'w mut EncoderWorkspace,
        texts: &[EncoderText<'_>],
    ) -> Result<&'w [f32]> {
        text::check(texts, &self.config)?;
        let Weights { layers, output_norm, .. } = &self.weights;
        let n_tokens = texts.iter().map(|text| text.tokens.len()).sum::<usize>();
        let longest = texts.iter().map(|text| text.tokens.len()).max().unwrap_or(0);
        let has_gate = layers.iter().any(|layer| layer.gate.is_some());
        workspace.prepare(&self.config, has_gate, n_tokens, longest)?;
        let tables = self.ropes.as_ref().map(|ropes| ropes.tables(longest));
        let spans = spans(texts);
        // Norm before a layer, or behind the last.
        let norm_before = |layer: usize| match layers.get(layer) {
            Some(weights) => weights.attention.before.as_ref(),
            None => output_norm.as_ref(),
        };
        self.embed(compute, workspace, texts, norm_before(0));
        for (index, (weights, &reach)) in layers.iter().zip(&self.config.spec.reach).enumerate() {
            let rope = tables.as_ref().map(|tables| tables.of(reach.is_some()));
            let next = norm_before(index + 1);
            let layer = Layer { config: &self.config, weights, compute, reach, rope, next };
            layer.forward(workspace, &spans);
        }
        Ok(workspace.input.values())
    }
}
