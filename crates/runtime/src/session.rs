//! One running sequence: its cache, its scratch memory and the forward passes on it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use ruvllm_adapters::Adapter;
use ruvllm_kv_cache::Sequence;
use ruvllm_memory::Tenant;
use ruvllm_models::{Compute, LogitsRows, Model, Segment, TokenId, Workspace};

use crate::backend::{BackendSession, alike};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::prefix::{PrefixCache, Reused};
use crate::quality::{QualityMemory, QualityWatch};
use crate::request::{GenerateRequest, KvQuality};

/// A sequence of one model. Positions are those of the cache: each pass appends to it.
pub(crate) struct Session<'e> {
    model: &'e Model,
    compute: &'e Compute,
    cache: Sequence,
    /// What changes the model for all of the sequence.
    adapter: Option<Arc<Adapter>>,
    /// Whole blocks when the cache was last looked after.
    settled: usize,
    prefixes: Option<&'e PrefixCache>,
    /// What the sequence began with, pinned as long as it lives.
    reused: Reused,
    /// Most keys that a later query sees: what lies further back is given up.
    window: Option<usize>,
    workspace: Workspace,
    /// There if the policy needs one.
    watch: Option<QualityWatch>,
}

impl<'e> Session<'e> {
    /// An empty sequence with room for `capacity` tokens, whose memory counts for the engine itself. It knows nothing of other
    /// sequences: what it measures can be measured again.
    pub(crate) fn new(engine: &'e Engine, capacity: usize) -> Result<Self> {
        Self::empty(engine, &Tenant::root(), engine.adapter.clone(), capacity)
    }

    /// An empty sequence for a request, with room for `capacity` tokens, whose memory counts for the request's tenant. Its
    /// quality target begins with what the tenant's other requests have come to.
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
            prefixes: engine.prefixes.as_ref(),
            reused: Reused::default(),
            window: engine.config().longest_window(),
            workspace,
            watch,
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

    /// What became of the quality target; `None` if the policy has none.
    pub(crate) fn kv_quality(&self) -> Option<KvQuality> {
        self.watch.as_ref().and_then(QualityWatch::report)
    }

    /// Whether a request may go on from it: one of the same tenant, with the same adapter.
    pub(crate) fn is_for(&self, engine: &Engine, request: &GenerateRequest) -> bool {
        let digest = |adapter: &Arc<Adapter>| *adapter.digest();
        let adapter = request.adapter.as_ref().or(engine.adapter.as_ref());
        self.cache.store().tenant().path() == request.tenant.path()
            && self.adapter.as_ref().map(digest) == adapter.map(digest)
    }

    /// How much of `prompt` this sequence, whose tokens are `present`, can go on from: at least the last token is left to
    /// compute. 0 where nothing is alike, or where what would have to be seen again was given up.
    pub(crate) fn reusable(&self, present: &[TokenId], prompt: &[TokenId]) -> usize {
        let alike = alike(present, prompt);
        if alike < self.cache.len() && self.cache.released() > 0 { 0 } else { alike }
    }

    /// Lets later sequences of the tenant begin with this one, whose tokens `tokens` are, and those of all tenants with the
    /// first `shared_tokens` of them.
    pub(crate) fn keep(&mut self, tokens: &[TokenId], shared_tokens: usize) {
        if let Some(prefixes) = self.prefixes {
            prefixes.keep(&mut self.cache, self.adapter.as_deref(), tokens, shared_tokens);
        }
    }

    /// Lets later sequences of the tenant begin with what became of the quality target.
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
            self.look();
            self.migrate();
            self.settled = whole;
            if let Some(window) = self.window {
                self.cache.release_before((self.cache.len() + 1).saturating_sub(window));
            }
        }
    }

    /// Samples the sequence with the query of the last pass, if its policy wants that.
    fn look(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        if let Some(probe) = self.model.probe(&self.workspace, 0) {
            watch.look(&self.compute.kernels, &self.compute.pool, &mut self.cache, &probe);
        }
        self.workspace.keep_queries(watch.layer());
    }

    /// Lets blocks go down that are due. Where there was too little memory for all at once, the first ones make room.
    fn migrate(&mut self) {
        loop {
            let migration = self.cache.migrate(&self.compute.kernels, &self.compute.pool, usize::MAX);
            if !migration.starved || migration.blocks == 0 {
                return;
            }
        }
    }

    /// Makes room for `tokens` more: prefixes that nobody uses are given up, then precision. Where that is not enough, the
    /// pass that needs the room says so.
    fn make_room(&mut self, tokens: usize) {
        // Beyond the sequence's own capacity no memory helps.
        if self.cache.check_room(tokens).is_ok() {
            while !self.make_room_of_prefixes(tokens) && self.shrink() {}
        }
    }

    /// Makes room for `tokens` more, for which prefixes that nobody uses are given up; whether there is room. Where a quota is
    /// short, only what counts for it helps, and others keep theirs.
    fn make_room_of_prefixes(&mut self, tokens: usize) -> bool {
        while let Err(error) = self.cache.step(&self.compute.kernels, tokens).map(drop) {
            let tenant = error.short_tenant().unwrap_or_default();
            if !self.prefixes.is_some_and(|prefixes| prefixes.give_up(self.cache.store(), tenant)) {
                return false;
            }
        }
        true
    }

    /// Takes older tokens to the lowest tier before their time: of the hot ones as few as possible, the last block never.
    /// `false` if nothing is left that could be smaller.
    fn shrink(&mut self) -> bool {
        let block_tokens = self.cache.store().block_tokens();
        let mut hot_tokens = self.cache.len();
        while hot_tokens > block_tokens {
            hot_tokens = (hot_tokens / 2).max(block_tokens);
            if self.cache.shrink(&self.compute.kernels, &self.compute.pool, hot_tokens).blocks > 0 {
                return true;
            }
        }
        false
    }

    /// What has to happen between passes, and room for `tokens` more.
    fn prepare(&mut self, tokens: usize) {
        self.settle();
        self.make_room(tokens);
    }

    /// The next `tokens` as a part of a pass with other sequences.
    pub(crate) fn next_segment<'t>(
        &'t mut self,
        tokens: &'t [TokenId],
        logits: LogitsRows<'t>,
    ) -> Result<Segment<'t>> {
        self.prepare(tokens.len());
        let start = self.cache.len();
        Segment::new(self.compute, tokens, &mut self.cache, logits)
            .map(|segment| segment.with_adapter(self.adapter.as_deref()))
            .map_err(|source| Error::Forward { start, tokens: tokens.len(), source })
    }

    /// Appends `tokens` in one pass and returns the logits asked for, `[rows, vocab_size]` in order of position.
    pub(crate) fn forward(&mut self, tokens: &[TokenId], logits: LogitsRows<'_>) -> Result<&[f32]> {
        self.prepare(tokens.len());
        let start = self.cache.len();
        let adapter = self.adapter.as_deref();
        let (model, workspace) = (self.model, &mut self.workspace);
        Segment::new(self.compute, tokens, &mut self.cache, logits)
            .and_then(|segment| model.forward(self.compute, workspace, [segment.with_adapter(adapter)]))
            .map_err(|source| Error::Forward { start, tokens: tokens.len(), source })
    }

    /// How many of `tokens` to append in one pass. A pass writes them all in half precision: where there is no room for
    /// that, a shorter one lets older tokens become smaller first.
    fn pass_tokens(&mut self, tokens: usize) -> usize {
        self.settle();
        let block_tokens = self.cache.store().block_tokens();
        let mut pass = tokens;
        while pass > block_tokens && self.cache.check_room(pass).is_ok() && !self.make_room_of_prefixes(pass)
        {
            pass = (pass / 2).max(block_tokens);
        }
        pass
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
        // What a window has left behind would have to be seen again.
        let kept = if len < self.cache.len() && self.cache.released() > 0 { 0 } else { len };
        Session::truncate(self, kept)?;
        Ok(kept)
    }

    /// An empty sequence begins with what earlier ones have computed.
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

    /// Passes are shorter where there is little memory, and only the last one has logits.
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
            let (pass, later) = rest.split_at(self.pass_tokens(rest.len().min(chunk)));
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
