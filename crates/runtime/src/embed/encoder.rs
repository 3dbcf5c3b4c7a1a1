//! Embeddings of encoders.

use std::time::Duration;

use ruvllm_models::quantize::InSitu;
use ruvllm_models::{Checkpoint, Compute, EmbeddingDefaults, Encoder, EncoderWorkspace, LoadProgress};
use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::Tokenizer;

use super::passes::{Batch, Passes};
use super::pool::{Pool, finish};
use super::{Embedding, EmbeddingRequest, Embeddings, Encoded, Input, RerankError, Settings, encode};
use crate::codec::read_tokenizer;
use crate::engine::Start;
use crate::error::{Error, Result};
use crate::options::{EngineOptions, ModelSource};

/// An encoder with tokenizer, defaults and threads.
#[derive(Debug)]
pub(super) struct EncoderEngine {
    pub(super) encoder: Encoder,
    pub(super) tokenizer: Tokenizer,
    pub(super) defaults: EmbeddingDefaults,
    pub(super) passes: Passes,
    load_time: Duration,
}

/// Texts to embed.
struct Texts<'a> {
    engine: &'a EncoderEngine,
    inputs: &'a [Input<'a>],
    settings: Settings,
}

impl EncoderEngine {
    /// Loads the encoder of `checkpoint`, which was opened from `source`.
    pub(super) fn load(
        checkpoint: &dyn Checkpoint,
        source: &ModelSource,
        options: &EngineOptions,
        start: Start,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Self> {
        let Start { started, compute, .. } = start;
        let name = source.to_string();
        let encoder = match options.quantize {
            None => Encoder::load(checkpoint, progress),
            Some(recipe) => InSitu::new(checkpoint, recipe, &compute.pool)
                .and_then(|quantized| Encoder::load(&quantized, progress)),
        };
        let failed = |source| Error::Load { name: name.clone(), source };
        let encoder = encoder.map_err(failed)?;
        let defaults = EmbeddingDefaults::from_metadata(checkpoint.metadata()).map_err(failed)?;
        let rows = encoder.config().vocab_size;
        let tokenizer = read_tokenizer(checkpoint, &name, options.tokenizer.as_deref(), rows)?;
        let passes = Passes::new(compute);
        Ok(Self { encoder, tokenizer, defaults, passes, load_time: started.elapsed() })
    }

    pub(super) fn load_time(&self) -> Duration {
        self.load_time
    }

    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub(super) fn embed(&self, request: &EmbeddingRequest) -> Result<Embeddings> {
        if self.encoder.has_head() {
            return Err(RerankError::NoEmbeddings.into());
        }
        let config = self.encoder.config();
        let settings = Settings::new(request, &self.defaults, &self.tokenizer, config.context_length)?;
        let inputs = &request.inputs();
        let embeddings = self.passes.run(&Texts { engine: self, inputs, settings })?;
        let Settings { pooling, normalize: normalized, .. } = settings;
        Ok(Embeddings { embeddings, dim: config.embedding_dim(), pooling, normalized })
    }
}

impl Batch for Texts<'_> {
    type Text = Encoded;
    type Output = Embedding;

    fn len(&self) -> usize {
        self.inputs.len()
    }

    fn encode(&self, index: usize) -> Result<Encoded> {
        let vocab_size = self.engine.encoder.config().vocab_size;
        encode(&self.engine.tokenizer, vocab_size, index, self.inputs[index], self.settings.max_tokens)
    }

    fn tokens(text: &Encoded) -> usize {
        text.tokens.len()
    }

    fn compute(
        &self,
        compute: &Compute,
        workspace: &mut EncoderWorkspace,
        pass: &[(usize, Encoded)],
    ) -> ruvllm_models::Result<Vec<Embedding>> {
        let encoder = &self.engine.encoder;
        let dim = encoder.config().model_dim;
        let tokens: Vec<&[TokenId]> = pass.iter().map(|(_, text)| text.tokens.as_slice()).collect();
        let mut rest = encoder.forward(compute, workspace, &tokens)?;
        let mut pooled: Vec<Vec<f64>> = Vec::with_capacity(pass.len());
        for (_, text) in pass {
            let (states, later) = rest.split_at(text.tokens.len() * dim);
            let mut pool = Pool::new(self.settings.pooling, dim);
            pool.push(states);
            pooled.push(pool.state());
            rest = later;
        }
        if encoder.has_projection() {
            let states = pooled.iter().flatten().map(|&value| value as f32).collect();
            let vectors = encoder.project(compute, states);
            let widened = |vector: &[f32]| vector.iter().map(|&value| f64::from(value)).collect();
            pooled = vectors.chunks_exact(encoder.config().embedding_dim()).map(widened).collect();
        }
        let finished = pooled.into_iter().zip(pass);
        Ok(finished.map(|(values, (_, text))| finish(values, text, &self.settings)).collect())
    }
}
