//! One running sequence: KV cache, scratch memory and forward passes.

use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;
use std::time::Instant;

use ruvllm_adapters::Adapter;
use ruvllm_kv_cache::Sequence;
use ruvllm_memory::{PressurePolicy, Tenant};
use ruvllm_models::{Compute, LogitsRows, Model, Segment, Workspace};
use ruvllm_text::TokenId;

use crate::backend::sequence::{BackendSession, common_prefix_len};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::prefix::{PrefixCache, Reused};
use crate::quality::{QualityMemory, QualityWatch};
use crate::request::{GenerateRequest, KvQuality};

/// A sequence of one model. Each pass appends its tokens to the KV cache.
pub(crate) struct Session<'e> {
    model: &'e Model,
    compute: &'e Compute,
    cache: Sequence,
    /// Adapter for the whole sequence.
    adapter: Option<Arc<Adapter>>,
    /// Number of full blocks at the last [`settle`](Self::settle).
    settled: usize,
    prefixes: Option<&'e PrefixCache>,
    /// Policy under memory pressure.
    pressure: PressurePolicy,
    /// Prefix hit of this sequence, pinned for its lifetime.
    reused: Reused,
    /// Sliding-window size in tokens; older blocks are released.
    window: Option<usize>,
    workspace: Workspace,
    /// Present if the KV policy has a quality target.
    watch: Option<QualityWatch>,
}

impl<'e> Session<'e> {
    /// An empty sequence with room for `capacity` tokens, charged to the root tenant. It shares no
    /// state with other sequences, so that measurements are repeatable.
    pub(crate) fn new(engine: &'e Engine, capacity: usize) -> Result<Self> {
        Self::empty(engine, &Tenant::root(), engine.adapter.clone(), capacity)
    }

    /// An empty sequence for a request, with room for `capacity` tokens, charged to the request's
    /// tenant. Its quality target resumes from the state of the tenant's earlier requests.
    pub(crate) fn for_request(
        engine: &'e Engine,
        request: &GenerateRequest,
        capacity: usize,
    ) -> Result<Self> {
        let adapter = request.adapter.as_ref().or(engine.adapter.as_ref());
        let mut session = Self::empty(engine, &request.tenant, adapter.cloned(), capacity)?;
        if let Some(watch) = &mut session.watch {
            watch.resume(&engine.quality, &mut session.cache);
        }
        session.set_pressure(engine.pressure_of(request));
        Ok(session)
    }

    fn empty(
        engine: &'e Engine,
        tenant: &Tenant,
        adapter: Option<Arc<Adapter>>,
        capacity: usize,
    ) -> Result<Self> {
        let store = engine.kv.for_tenant(tenant).map_err(ruvllm_models::Error::from);
        let cache = store
            .and_then(|store| engine.model.new_sequence(&store, capacity))
            .map_err(|source| Error::Cache { tokens: capacity, source })?;
        let policy = cache.store().policy();
        let watch =
            QualityWatch::new(policy, cache.store().block_tokens(), engine.config().n_layers, capacity);
        let mut workspace = Workspace::new();
        if let Some(watch) = &watch {
            workspace.keep_queries(watch.layer());
        }
        Ok(Self {
            model: &engine.model,
            compute: &engine.compute,
            cache,
            adapter,
            settled: 0,
            prefixes: engine.prefixes.as_deref(),
            pressure: engine.pressure,
            reused: Reused::default(),
            window: engine.config().longest_window(),
            workspace,
            watch,
        })
    }

    /// Sets kernels and thread pool in place of the engine's own. Results stay bit-identical.
    pub(crate) fn set_compute(&mut self, compute: &'e Compute) {
        self.compute = compute;
    }

    /// Sets the pressure policy.
    pub(crate) fn set_pressure(&mut self, pressure: PressurePolicy) {
        self.pressure = pressure;
    }

    /// Tokens dropped under memory pressure.
    pub(crate) fn dropped_tokens(&self) -> usize {
        self.cache.dropped_tokens()
    }

    /// Keeps blocks outside of the sliding window, so that the sequence can be truncated to any
    /// length.
    pub(crate) fn keep_all(&mut self) {
        self.window = None;
    }

    /// Tokens in the sequence.
    pub(crate) fn len(&self) -> usize {
        self.cache.len()
    }

    /// Bytes of keys and values of the sequence.
    pub(crate) fn kv_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Outcome of the quality target; `None` if the policy has none.
    pub(crate) fn kv_quality(&self) -> Option<KvQuality> {
        self.watch.as_ref().and_then(QualityWatch::report)
    }

    /// True if a request may continue this sequence: same tenant, same adapter.
    pub(crate) fn is_for(&self, engine: &Engine, request: &GenerateRequest) -> bool {
        let digest = |adapter: &Arc<Adapter>| *adapter.digest();
        let adapter = request.adapter.as_ref().or(engine.adapter.as_ref());
        self.cache.store().tenant().path() == request.tenant.path()
            && self.adapter.as_ref().map(digest) == adapter.map(digest)
    }

    /// Tokens of `prompt` that this sequence, with tokens `present`, can reuse: their common
    /// prefix, less the last prompt token, which must be computed. 0 if a sliding window has
    /// released blocks that would be visible again.
    pub(crate) fn reusable(&self, present: &[TokenId], prompt: &[TokenId]) -> usize {
        let common = common_prefix_len(present, prompt);
        if common < self.cache.len() && self.cache.released() > 0 { 0 } else { common }
    }

    /// Inserts the sequence, with tokens `tokens`, into the prefix cache of its tenant, and the
    /// first `shared_tokens` of them into that of all tenants.
    pub(crate) fn keep(&mut self, tokens: &[TokenId], shared_tokens: usize) {
        if let Some(prefixes) = self.prefixes {
            prefixes.keep(&mut self.cache, self.adapter.as_deref(), tokens, shared_tokens);
        }
    }

    /// Stores the state of the quality target, from which the tenant's later sequences resume.
    pub(crate) fn remember_quality(&mut self, memory: &QualityMemory) {
        if let Some(watch) = &mut self.watch {
            watch.remember(memory, &self.cache);
        }
    }

    /// Drops the tokens from position `len` on.
    pub(crate) fn truncate(&mut self, len: usize) -> Result<()> {
        self.settled = self.settled.min(len / self.cache.store().block_tokens());
        self.cache.truncate(len).map_err(|source| Error::Cache { tokens: len, source: source.into() })
    }

    /// Appends copies of the full blocks, cyclically, while they end at or before `len`.
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

    /// Work between steps, once new blocks are full: quality sample, memory pressure, migration of
    /// older blocks to lower tiers, release of blocks outside of the sliding window.
    fn settle(&mut self) {
        let whole = self.cache.len() / self.cache.store().block_tokens();
        if whole > self.settled {
            self.look();
            self.cache.settle(&self.compute.kernels, &self.compute.pool, self.pressure);
            self.settled = whole;
            if let Some(window) = self.window {
                self.cache.release_before((self.cache.len() + 1).saturating_sub(window));
            }
        }
    }

    /// Takes a quality sample with the query of the last pass, if the policy has a quality target.
    fn look(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        if let Some(probe) = self.model.probe(&self.workspace, 0) {
            watch.look(&self.compute.kernels, &self.compute.pool, &mut self.cache, &probe);
        }
        self.workspace.keep_queries(watch.layer());
    }

    /// Settles the sequence and makes room for the next pass; returns its length, as close to the
    /// end of `tokens` as memory allows. See [`Sequence::make_room`].
    fn prepare(&mut self, tokens: RangeInclusive<usize>) -> Result<usize> {
        self.settle();
        let (start, most) = (self.cache.len(), *tokens.end());
        self.cache
            .make_room(&self.compute.kernels, &self.compute.pool, tokens, self.pressure)
            .map_err(|source| Error::Forward { start, tokens: most, source: source.into() })
    }

    /// Segment of the next `tokens`, for a batch with other sequences.
    pub(crate) fn next_segment<'t>(
        &'t mut self,
        tokens: &'t [TokenId],
        logits: LogitsRows<'t>,
    ) -> Result<Segment<'t>> {
        self.prepare(tokens.len()..=tokens.len())?;
        let start = self.cache.len();
        Segment::new(self.compute, tokens, &mut self.cache, logits)
            .map(|segment| segment.with_adapter(self.adapter.as_deref()))
            .map_err(|source| Error::Forward { start, tokens: tokens.len(), source })
    }

    /// Appends `tokens` in one pass and returns the requested logits, `[rows, vocab_size]` in order
    /// of position.
    pub(crate) fn forward(&mut self, tokens: &[TokenId], logits: LogitsRows<'_>) -> Result<&[f32]> {
        self.prepare(tokens.len()..=tokens.len())?;
        let start = self.cache.len();
        let adapter = self.adapter.as_deref();
        let (model, workspace) = (self.model, &mut self.workspace);
        Segment::new(self.compute, tokens, &mut self.cache, logits)
            .and_then(|segment| model.forward(self.compute, workspace, [segment.with_adapter(adapter)]))
            .map_err(|source| Error::Forward { start, tokens: tokens.len(), source })
    }
}

impl BackendSession for Session<'_> {
    fn len(&self) -> usize {
        Session::len(self)
    }

    fn forward(&mut self, tokens: &[TokenId]) -> Result<&[f32]> {
        Session::forward(self, tokens, LogitsRows::Last)
    }

    fn truncate(&mut self, len: usize) -> Result<usize> {
        let len = len.min(self.cache.len());
        // Released blocks of a sliding window would be visible again.
        let kept = if len < self.cache.len() && self.cache.released() > 0 { 0 } else { len };
        Session::truncate(self, kept)?;
        Ok(kept)
    }

    /// Looks the prompt up in the prefix cache if the sequence is empty.
    fn begin(&mut self, present: &[TokenId], prompt: &[TokenId]) -> Result<usize> {
        if !self.cache.is_empty() {
            let reusable = self.reusable(present, prompt);
            Session::truncate(self, reusable)?;
            return Ok(reusable);
        }
        if let Some(prefixes) = self.prefixes {
            self.reused = prefixes
                .begin(&self.compute.kernels, &mut self.cache, self.adapter.as_deref(), prompt)
                .map_err(|source| Error::Cache { tokens: prompt.len(), source: source.into() })?;
        }
        Ok(self.reused.tokens)
    }

    /// Passes become shorter under memory pressure; only the last one computes logits.
    fn prefill(
        &mut self,
        tokens: &[TokenId],
        chunk: usize,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<&[f32]>> {
        let started = Instant::now();
        let prefixes = self.prefixes;
        let mut rest = tokens;
        loop {
            if go_on().is_break() {
                return Ok(None);
            }
            let most = rest.len().min(chunk);
            let least = most.min(self.cache.store().block_tokens());
            let (pass, later) = rest.split_at(self.prepare(least..=most)?);
            if later.is_empty() {
                let logits = self.forward(pass, LogitsRows::Last)?;
                if let Some(prefixes) = prefixes {
                    prefixes.observe_prefill(tokens.len(), started.elapsed());
                }
                return Ok(Some(logits));
            }
            self.forward(pass, LogitsRows::None)?;
            rest = later;
        }
    }
}
