//! Embeddings of encoders.

use std::time::{Duration, Instant};

use ruvllm_models::quantize::InSitu;
use ruvllm_models::{Checkpoint, Compute, EmbeddingDefaults, Encoder, EncoderWorkspace, LoadProgress};
use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::Tokenizer;

use super::pool::Pool;
use super::{EmbeddingRequest, Embeddings, Settings, encode, groups};
use crate::codec::read_tokenizer;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::options::{EngineOptions, ModelSource};
use crate::plan;

/// Tokens of one pass, unless one text has more. More make no product faster, and take memory.
const PASS_TOKENS: usize = 1024;

/// An encoder with everything it needs to run.
#[derive(Debug)]
pub(super) struct EncoderEngine {
    encoder: Encoder,
    tokenizer: Tokenizer,
    defaults: EmbeddingDefaults,
    compute: Compute,
    load_time: Duration,
}

impl EncoderEngine {
    /// Loads the encoder in `checkpoint`, which is what `source` holds.
    pub(super) fn load(
        checkpoint: &dyn Checkpoint,
        source: &ModelSource,
        options: &EngineOptions,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Self> {
        let started = Instant::now();
        let compute = plan::compute(&Machine::detect(), options)?;
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
        Ok(Self { encoder, tokenizer, defaults, compute, load_time: started.elapsed() })
    }

    pub(super) fn load_time(&self) -> Duration {
        self.load_time
    }

    pub(super) fn embed(&self, request: &EmbeddingRequest) -> Result<Embeddings> {
        let config = self.encoder.config();
        let dim = config.model_dim;
        let settings = Settings::new(request, &self.defaults, &self.tokenizer, config.context_length)?;
        let texts = encode(&self.tokenizer, &request.texts, settings.max_tokens)?;
        let mut embeddings = Vec::with_capacity(texts.len());
        let mut workspace = EncoderWorkspace::new();
        for group in groups(&texts, PASS_TOKENS, usize::MAX) {
            let tokens: Vec<&[TokenId]> = group.iter().map(|text| text.tokens.as_slice()).collect();
            let mut rest =
                self.encoder.forward(&self.compute, &mut workspace, &tokens).map_err(|source| {
                    Error::ForwardTexts { first: embeddings.len(), texts: group.len(), source }
                })?;
            for text in group {
                let (states, later) = rest.split_at(text.tokens.len() * dim);
                let mut pool = Pool::new(settings.pooling, dim);
                pool.push(states);
                embeddings.push(pool.finish(text, &settings));
                rest = later;
            }
        }
        let Settings { pooling, normalize: normalized, .. } = settings;
        Ok(Embeddings { embeddings, dim, pooling, normalized })
    }
}
