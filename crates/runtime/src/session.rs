//! One running sequence: its cache, its scratch memory and the forward passes on it.

use std::ops::ControlFlow;

use ruvllm_models::{Compute, KvCache, LogitsRows, Model, Segment, TokenId, Workspace};

use crate::engine::Engine;
use crate::error::{Error, Result};

/// A sequence of one model. Positions are those of the cache: each pass appends to it.
pub(crate) struct Session<'e> {
    model: &'e Model,
    compute: &'e Compute,
    cache: KvCache,
    workspace: Workspace,
}

impl<'e> Session<'e> {
    /// An empty sequence with room for `capacity` tokens.
    pub(crate) fn new(engine: &'e Engine, capacity: usize) -> Result<Self> {
        let cache = engine
            .model
            .new_cache(engine.kv, capacity)
            .map_err(|source| Error::Cache { tokens: capacity, source })?;
        Ok(Self { model: &engine.model, compute: &engine.compute, cache, workspace: Workspace::new() })
    }

    /// Goes on with other threads than the engine's own. The results stay the same.
    pub(crate) fn set_compute(&mut self, compute: &'e Compute) {
        self.compute = compute;
    }

    /// Tokens in the sequence.
    pub(crate) fn len(&self) -> usize {
        self.cache.len()
    }

    /// Drops the tokens from position `len` on.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.cache.truncate(len);
    }

    /// Appends `tokens` in one pass and returns the logits asked for, `[rows, vocab_size]` in order of position.
    pub(crate) fn forward(&mut self, tokens: &[TokenId], logits: LogitsRows<'_>) -> Result<&[f32]> {
        let start = self.cache.len();
        let mut segments = [Segment { tokens, cache: &mut self.cache, logits }];
        self.model
            .forward(self.compute, &mut self.workspace, &mut segments)
            .map_err(|source| Error::Forward { start, tokens: tokens.len(), source })
    }

    /// Appends `tokens` in passes of at most `chunk` and returns the logits of the last one. `go_on` is asked before
    /// each pass; a `Break` gives `None` and leaves the sequence where it is.
    pub(crate) fn prefill(
        &mut self,
        tokens: &[TokenId],
        chunk: usize,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<&[f32]>> {
        let last = tokens.len().saturating_sub(1) / chunk * chunk;
        for piece in tokens[..last].chunks(chunk) {
            if go_on().is_break() {
                return Ok(None);
            }
            self.forward(piece, LogitsRows::None)?;
        }
        if go_on().is_break() {
            return Ok(None);
        }
        self.forward(&tokens[last..], LogitsRows::Last).map(Some)
    }
}
