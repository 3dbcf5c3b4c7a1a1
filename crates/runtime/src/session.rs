//! One running sequence: its cache, its scratch memory and the forward passes on it.

use std::ops::ControlFlow;

use ruvllm_kv_cache::Sequence;
use ruvllm_models::{Compute, LogitsRows, Model, Segment, TokenId, Workspace};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::prefix::{PrefixCache, Reused};

/// A sequence of one model. Positions are those of the cache: each pass appends to it.
pub(crate) struct Session<'e> {
    model: &'e Model,
    compute: &'e Compute,
    cache: Sequence,
    /// Whole blocks when the cache was last looked after.
    settled: usize,
    prefixes: Option<&'e PrefixCache>,
    /// What the sequence began with, pinned as long as it lives.
    reused: Reused,
    /// Most keys that a later query sees: what lies further back is given up.
    window: Option<usize>,
    workspace: Workspace,
}

impl<'e> Session<'e> {
    /// An empty sequence with room for `capacity` tokens.
    pub(crate) fn new(engine: &'e Engine, capacity: usize) -> Result<Self> {
        let cache = engine
            .model
            .new_sequence(&engine.kv, capacity)
            .map_err(|source| Error::Cache { tokens: capacity, source })?;
        Ok(Self {
            model: &engine.model,
            compute: &engine.compute,
            cache,
            settled: 0,
            prefixes: engine.prefixes.as_ref(),
            reused: Reused::default(),
            window: engine.config().longest_window(),
            workspace: Workspace::new(),
        })
    }

    /// Goes on with other threads than the engine's own. The results stay the same.
    pub(crate) fn set_compute(&mut self, compute: &'e Compute) {
        self.compute = compute;
    }

    /// Keeps tokens that no later query sees, so that the sequence can be cut back to any length.
    pub(crate) fn keep_all(&mut self) {
        self.window = None;
    }

    /// Tokens in the sequence.
    pub(crate) fn len(&self) -> usize {
        self.cache.len()
    }

    /// Bytes of keys and values.
    pub(crate) fn kv_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Begins an empty sequence with what earlier ones have computed of `prompt`; how many tokens. At least the last one
    /// is left.
    pub(crate) fn begin(&mut self, prompt: &[TokenId]) -> Result<usize> {
        if let Some(prefixes) = self.prefixes {
            self.reused = prefixes
                .begin(&self.compute.kernels, &mut self.cache, prompt)
                .map_err(|source| Error::Cache { tokens: prompt.len(), source: source.into() })?;
        }
        Ok(self.reused.tokens)
    }

    /// Lets later sequences begin with this one, whose tokens are `tokens`.
    pub(crate) fn keep(&self, tokens: &[TokenId]) {
        if let Some(prefixes) = self.prefixes {
            prefixes.keep(&self.cache, &tokens[..self.cache.len()]);
        }
    }

    /// Drops the tokens from position `len` on.
    pub(crate) fn truncate(&mut self, len: usize) -> Result<()> {
        self.settled = self.settled.min(len / self.cache.store().block_tokens());
        self.cache.truncate(len).map_err(|source| Error::Cache { tokens: len, source: source.into() })
    }

    /// Appends copies of the whole blocks that there are, one after another, as long as they end at `len` or before.
    pub(crate) fn repeat_until(&mut self, len: usize) -> Result<()> {
        let block_tokens = self.cache.store().block_tokens();
        let source = self.cache.fork();
        let blocks = source.blocks().iter().take(source.len() / block_tokens);
        for block in blocks.cycle() {
            if self.cache.len() + block_tokens > len {
                break;
            }
            self.settle();
            self.cache
                .append_copy(&self.compute.kernels, block, block_tokens)
                .map_err(|source| Error::Cache { tokens: len, source: source.into() })?;
        }
        Ok(())
    }

    /// Lets older tokens be stored in fewer bits once new blocks are full: between steps, so that none waits in the
    /// middle of one.
    fn settle(&mut self) {
        let whole = self.cache.len() / self.cache.store().block_tokens();
        if whole > self.settled {
            if let Some(prefixes) = self.prefixes {
                prefixes.relieve(self.cache.store());
            }
            self.cache.migrate(&self.compute.kernels, &self.compute.pool, usize::MAX);
            self.settled = whole;
            if let Some(window) = self.window {
                self.cache.release_before((self.cache.len() + 1).saturating_sub(window));
            }
        }
    }

    /// Makes room for `tokens` more, for which prefixes that nobody uses are given up. Where that is not enough, the pass
    /// that needs the room says so.
    fn reserve(&mut self, tokens: usize) {
        let Some(prefixes) = self.prefixes else { return };
        // Beyond the sequence's own capacity no memory helps.
        while self.cache.check_room(tokens).is_ok()
            && self.cache.reserve(&self.compute.kernels, tokens).is_err()
            && prefixes.give_up()
        {}
    }

    /// Appends `tokens` in one pass and returns the logits asked for, `[rows, vocab_size]` in order of position.
    pub(crate) fn forward(&mut self, tokens: &[TokenId], logits: LogitsRows<'_>) -> Result<&[f32]> {
        self.settle();
        self.reserve(tokens.len());
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
