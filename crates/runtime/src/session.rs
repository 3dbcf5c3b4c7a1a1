//! One sequence with the memory of its forward passes, for measurements: it runs beside the
//! requests of the step loop, in the caller's thread.

use std::ops::ControlFlow;
use std::sync::Arc;

use ruvllm_adapters::ScaledAdapter;
use ruvllm_kv_cache::StateSnapshot;
use ruvllm_memory::Tenant;
use ruvllm_models::{Compute, LogitsRows, Segment, Workspace};
use ruvllm_text::TokenId;

use crate::backend::sequence::BackendSession;
use crate::core::Core;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::sequence::{NativeSequence, SequenceSpec};

/// A sequence of one model. Each pass appends its tokens to the KV cache.
pub(crate) struct Session<'e> {
    core: &'e Core,
    compute: &'e Compute,
    sequence: NativeSequence,
    workspace: Workspace,
}

impl<'e> Session<'e> {
    /// An empty sequence with room for `capacity` tokens, charged to the root tenant. It takes no
    /// state of other sequences, so that what it measures can be measured again.
    pub(crate) fn new(engine: &'e Engine, capacity: usize) -> Result<Self> {
        Self::with_adapters(engine, capacity, Arc::clone(&engine.adapters))
    }

    /// As [`new`](Self::new), without the engine's default adapters.
    pub(crate) fn without_adapters(engine: &'e Engine, capacity: usize) -> Result<Self> {
        Self::with_adapters(engine, capacity, Arc::default())
    }

    fn with_adapters(engine: &'e Engine, capacity: usize, adapters: Arc<[ScaledAdapter]>) -> Result<Self> {
        let core = engine.core();
        let spec = SequenceSpec {
            tenant: Tenant::root(),
            adapters,
            kv: None,
            pressure: core.pressure,
            capacity,
            caches_prefix: true,
            min_cache_tokens: 0,
            shared_tokens: 0,
        };
        let sequence = NativeSequence::new(core, &spec, None)?;
        Ok(Self { core, compute: &core.compute, sequence, workspace: Workspace::new() })
    }

    /// A second sequence with the first `len` tokens, or fewer where layers keep a state; both
    /// share blocks until one writes to them.
    pub(crate) fn fork_at(&mut self, len: usize) -> Result<Self> {
        let (core, compute) = (self.core, self.compute);
        let mut sequence = self.sequence.fork(&core.quality);
        let kept = sequence.truncatable(len);
        sequence.truncate(kept)?;
        Ok(Self { core, compute, sequence, workspace: Workspace::new() })
    }

    /// Sets kernels and thread pool in place of the engine's own. Results stay bit-identical.
    pub(crate) fn set_compute(&mut self, compute: &'e Compute) {
        self.compute = compute;
    }

    /// See [`NativeSequence::keep_all`].
    pub(crate) fn keep_all(&mut self) {
        self.sequence.keep_all();
    }

    /// Number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.sequence.len()
    }

    /// Bytes of keys and values of the sequence.
    pub(crate) fn kv_bytes(&self) -> usize {
        self.sequence.cache().bytes()
    }

    /// Drops the tokens from position `len` on.
    pub(crate) fn truncate(&mut self, len: usize) -> Result<()> {
        self.sequence.truncate(len)
    }

    /// See [`NativeSequence::snapshot`].
    pub(crate) fn snapshot(&self) -> Result<Option<StateSnapshot>> {
        self.sequence.snapshot()
    }

    /// Drops the tokens from position `len` on, the end of `snapshot` if layers keep a state.
    pub(crate) fn return_to(&mut self, len: usize, snapshot: Option<&StateSnapshot>) -> Result<()> {
        match snapshot {
            Some(snapshot) => self.sequence.return_to(snapshot),
            None => self.truncate(len),
        }
    }

    /// See [`NativeSequence::repeat_until`].
    pub(crate) fn repeat_until(&mut self, len: usize) -> Result<()> {
        self.sequence.repeat_until(&self.core.model, self.compute, len)
    }

    /// The next `tokens` as a part of a pass with other sequences, whose hidden states are wanted.
    pub(crate) fn next_segment<'t>(
        &'t mut self,
        tokens: &'t [TokenId],
        logits: LogitsRows<'t>,
    ) -> Result<Segment<'t>> {
        self.sequence.prepare(&self.core.model, self.compute, tokens.len()..=tokens.len())?;
        self.sequence.segment(self.compute, tokens, logits)
    }

    /// Final hidden states of the last pass, `[rows, model_dim]`, of the rows with logits.
    pub(crate) fn final_hidden(&self) -> &[f32] {
        self.workspace.final_hidden()
    }

    /// Logits of the last pass, `[rows, vocab_size]`.
    pub(crate) fn logits(&self) -> &[f32] {
        self.workspace.logits()
    }

    /// Appends `tokens` in one pass and returns the requested logits, `[rows, vocab_size]` in order
    /// of position.
    pub(crate) fn forward(&mut self, tokens: &[TokenId], logits: LogitsRows<'_>) -> Result<&[f32]> {
        let Self { core, compute, sequence, workspace } = self;
        sequence.prepare(&core.model, compute, tokens.len()..=tokens.len())?;
        let start = sequence.len();
        let segment = sequence.segment(compute, tokens, logits)?;
        core.model.forward(compute, workspace, [segment]).map_err(|source| Error::Forward {
            start,
            tokens: tokens.len(),
            source,
        })?;
        sequence.passed(&core.model, workspace, 0, tokens);
        Ok(workspace.logits())
    }
}

impl BackendSession for Session<'_> {
    fn len(&self) -> usize {
        Session::len(self)
    }

    fn forward(&mut self, tokens: &[TokenId]) -> Result<&[f32]> {
        Session::forward(self, tokens, LogitsRows::Last)
    }

    /// All in one pass.
    fn forward_all<'a>(&'a mut self, tokens: &[TokenId], _: &'a mut Vec<f32>) -> Result<&'a [f32]> {
        Session::forward(self, tokens, LogitsRows::All)
    }

    fn truncate(&mut self, len: usize) -> Result<usize> {
        let len = len.min(self.len());
        let kept = self.sequence.truncatable(len);
        Session::truncate(self, kept)?;
        Ok(kept)
    }

    /// Passes are shorter where there is little memory, and only the last one has logits.
    fn prefill(
        &mut self,
        tokens: &[TokenId],
        chunk: usize,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<&[f32]>> {
        let mut rest = tokens;
        loop {
            if go_on().is_break() {
                return Ok(None);
            }
            let most = rest.len().min(chunk);
            let least = most.min(self.sequence.cache().store().block_tokens());
            let room = self.sequence.prepare(&self.core.model, self.compute, least..=most)?;
            let (pass, later) = rest.split_at(room);
            if later.is_empty() {
                return self.forward(pass, LogitsRows::Last).map(Some);
            }
            self.forward(pass, LogitsRows::None)?;
            rest = later;
        }
    }
}
