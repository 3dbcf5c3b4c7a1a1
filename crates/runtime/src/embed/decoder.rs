//! Final hidden states of decoders, after the final norm, and embeddings of them.

use ruvllm_models::{LogitsRows, Pooling, Segment, Workspace};
use ruvllm_text::TokenId;

use super::pool::{Pool, finish};
use super::{Embedding, EmbeddingRequest, Embeddings, Encoded, RerankError, Settings, encode, groups};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::session::Session;

impl Engine {
    /// Embeddings of texts, pooled from final hidden states: see
    /// [`Embedder::embed`](crate::Embedder::embed).
    ///
    /// # Errors
    /// [`Error::PoolingOfDecoder`] for `cls`; otherwise as `Embedder::embed`.
    pub fn embed(&self, request: &EmbeddingRequest) -> Result<Embeddings> {
        if self.is_reranker() {
            return Err(RerankError::NoEmbeddings.into());
        }
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
        for group in groups(&texts, |text| text.tokens.len(), self.core().prefill_chunk) {
            embeddings.extend(self.embed_group(&mut workspace, group, &settings)?);
        }
        let Settings { pooling, normalize: normalized, .. } = settings;
        Ok(Embeddings { embeddings, dim: self.config().model_dim, pooling, normalized })
    }

    /// Embeddings of a group of texts that are computed together.
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
        let tokens: Vec<&[TokenId]> = texts.iter().map(|text| text.tokens.as_slice()).collect();
        let of_all = settings.pooling == Pooling::Mean;
        self.final_states(workspace, &mut sessions, &tokens, of_all, &mut |text, states| {
            pools[text].push(states);
        })?;
        Ok(pools.into_iter().zip(texts).map(|(pool, text)| finish(pool.state(), text, settings)).collect())
    }

    /// Appends `texts` to their sessions, in passes of `prefill_chunk` tokens of each, and gives
    /// the final hidden states to `take`, `[tokens, model_dim]` with the index of their text: of
    /// all tokens, or of the last of each text.
    pub(super) fn final_states(
        &self,
        workspace: &mut Workspace,
        sessions: &mut [Session<'_>],
        texts: &[&[TokenId]],
        of_all: bool,
        take: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        let (core, dim) = (self.core(), self.config().model_dim);
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        for start in (0..longest).step_by(core.prefill_chunk) {
            let mut rows = Vec::with_capacity(texts.len());
            let mut segments: Vec<Segment<'_>> = Vec::with_capacity(texts.len());
            for (index, (session, text)) in sessions.iter_mut().zip(texts).enumerate() {
                let end = text.len().min(start + core.prefill_chunk);
                let Some(tokens) = text.get(start..end).filter(|tokens| !tokens.is_empty()) else { continue };
                let (wanted, n_rows) = match of_all {
                    true => (LogitsRows::All, tokens.len()),
                    false if end == text.len() => (LogitsRows::Last, 1),
                    false => (LogitsRows::None, 0),
                };
                rows.push((index, n_rows));
                segments.push(session.next_segment(tokens, wanted)?);
            }
            let tokens = segments.iter().map(Segment::n_tokens).sum();
            let states = core
                .model
                .hidden_states(&core.compute, workspace, segments)
                .map_err(|source| Error::Forward { start, tokens, source })?;
            let mut rest = states;
            for (index, n_rows) in rows {
                let (states, later) = rest.split_at((n_rows * dim).min(rest.len()));
                take(index, states);
                rest = later;
            }
        }
        Ok(())
    }
}
