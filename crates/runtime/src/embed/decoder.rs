//! Embeddings of decoders: final hidden states, after the final norm.

use ruvllm_models::{LogitsRows, Pooling, Segment, Workspace};

use super::pool::Pool;
use super::{Embedding, EmbeddingRequest, Embeddings, Encoded, Settings, encode, groups};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::session::Session;

/// Maximum number of texts per pass. Each takes at least one KV block.
const MAX_TEXTS: usize = 16;

impl Engine {
    /// Embeddings of texts, pooled from final hidden states: see
    /// [`Embedder::embed`](crate::Embedder::embed).
    ///
    /// # Errors
    /// [`Error::PoolingOfDecoder`] for `cls`; otherwise as `Embedder::embed`.
    pub fn embed(&self, request: &EmbeddingRequest) -> Result<Embeddings> {
        let tokenizer = self.tokenizer();
        let settings = Settings::new(request, &self.embedding, tokenizer, self.context_length())?;
        if settings.pooling == Pooling::Cls {
            return Err(Error::PoolingOfDecoder { pooling: settings.pooling });
        }
        let vocab_size = self.config().vocab_size;
        let encode = |(index, input)| encode(tokenizer, vocab_size, index, input, settings.max_tokens);
        let texts = request.inputs().into_iter().enumerate().map(encode).collect::<Result<Vec<_>>>()?;
        let mut embeddings = Vec::with_capacity(texts.len());
        let mut workspace = Workspace::new();
        for group in groups(&texts, self.core().prefill_chunk, MAX_TEXTS) {
            embeddings.extend(self.embed_group(&mut workspace, group, &settings)?);
        }
        let Settings { pooling, normalize: normalized, .. } = settings;
        Ok(Embeddings { embeddings, dim: self.config().model_dim, pooling, normalized })
    }

    /// Embeddings of a group of texts that are computed together, in passes of `prefill_chunk`
    /// tokens.
    fn embed_group(
        &self,
        workspace: &mut Workspace,
        texts: &[Encoded],
        settings: &Settings,
    ) -> Result<Vec<Embedding>> {
        let dim = self.config().model_dim;
        let mut sessions: Vec<Session<'_>> =
            texts.iter().map(|text| Session::new(self, text.tokens.len())).collect::<Result<_>>()?;
        let mut pools: Vec<Pool> = texts.iter().map(|_| Pool::new(settings.pooling, dim)).collect();
        let longest = texts.iter().map(|text| text.tokens.len()).max().unwrap_or(0);
        // Several texts fit one pass; a text of several passes is alone.
        for start in (0..longest).step_by(self.core().prefill_chunk) {
            let mut rows = Vec::with_capacity(texts.len());
            let mut segments: Vec<Segment<'_>> = Vec::with_capacity(texts.len());
            for (session, text) in sessions.iter_mut().zip(texts) {
                let end = text.tokens.len().min(start + self.core().prefill_chunk);
                let tokens = &text.tokens[start..end];
                let wanted = match settings.pooling {
                    Pooling::Mean => LogitsRows::All,
                    _ if end == text.tokens.len() => LogitsRows::Last,
                    _ => LogitsRows::None,
                };
                rows.push(if wanted == LogitsRows::All { tokens.len() } else { 1 });
                segments.push(session.next_segment(tokens, wanted)?);
            }
            let tokens = segments.iter().map(Segment::n_tokens).sum();
            let states = self
                .core()
                .model
                .hidden_states(&self.core().compute, workspace, segments)
                .map_err(|source| Error::Forward { start, tokens, source })?;
            let mut rest = states;
            for (pool, rows) in pools.iter_mut().zip(rows) {
                let (states, later) = rest.split_at((rows * dim).min(rest.len()));
                pool.push(states);
                rest = later;
            }
        }
        Ok(pools.into_iter().zip(texts).map(|(pool, text)| pool.finish(text, settings)).collect())
    }
}
