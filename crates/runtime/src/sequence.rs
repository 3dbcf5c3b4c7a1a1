//! One sequence of the engine's model: its KV cache, its token ids and what belongs to both.

use std::ops::RangeInclusive;
use std::sync::Arc;

use ruvllm_adapters::{ScaledAdapter, kv_digest};
use ruvllm_kv_cache::prefix::PrefixKey;
use ruvllm_kv_cache::{KvStore, Sequence, StateSnapshot};
use ruvllm_memory::{PressurePolicy, Tenant};
use ruvllm_models::{Compute, LogitsRows, Model, Segment, Workspace};
use ruvllm_text::TokenId;

use crate::backend::sequence::common_prefix_len;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::prefix::{PrefixCache, Reused, borders};
use crate::quality::{QualityMemory, QualityWatch};
use crate::request::KvQuality;

/// Properties of a sequence that do not change while it lives.
#[derive(Debug, Clone)]
pub(crate) struct SequenceSpec {
    /// Tenant charged for the keys and values.
    pub(crate) tenant: Tenant,
    /// Adapters of all tokens.
    pub(crate) adapters: Arc<[ScaledAdapter]>,
    /// Store of keys and values; `None` for the engine's.
    pub(crate) kv: Option<KvStore>,
    /// Policy under memory pressure.
    pub(crate) pressure: PressurePolicy,
    /// Largest number of tokens.
    pub(crate) capacity: usize,
    /// True if prefixes are read from the prefix cache and left in it.
    pub(crate) caches_prefix: bool,
    /// Shortest prefix that is reused, in tokens.
    pub(crate) min_cache_tokens: usize,
    /// Tokens at the beginning whose prefix all tenants may use.
    pub(crate) shared_tokens: usize,
}

/// A sequence of one model. It knows its token ids.
pub(crate) struct NativeSequence {
    cache: Sequence,
    /// Token ids whose keys and values are there.
    tokens: Vec<TokenId>,
    spec: SequenceSpec,
    /// Digest of what the keys and values have of the adapters.
    kv_digest: Option<[u8; 32]>,
    /// Layers of the model.
    n_layers: usize,
    /// Whole blocks at the last [`settle`](Self::settle).
    settled: usize,
    /// Block borders of the prompt at which a pass ends and the prefix is stored, in their order,
    /// if layers keep a state.
    borders: Vec<usize>,
    /// Cached prefix that the sequence began with, pinned as long as it lives.
    reused: Reused,
    /// Tokens in whole blocks of the sequence that this is a fork of.
    forked: usize,
    /// Sliding-window size in tokens; older blocks are released.
    window: Option<usize>,
    /// Quality samples; present if the KV policy needs them.
    watch: Option<Watch>,
}

/// Quality samples of a sequence and the query that the next one takes.
struct Watch {
    quality: QualityWatch,
    /// Layer of `query`.
    layer: usize,
    /// Query of the last token of the last pass, `[n_heads, head_dim]`; empty before one.
    query: Vec<f32>,
}

impl Watch {
    /// Watch of a sequence whose target begins with what others have learned; `None` if its policy
    /// needs none.
    fn new(cache: &mut Sequence, n_layers: usize, learned: Option<&QualityMemory>) -> Option<Self> {
        let (policy, block_tokens) = (*cache.store().policy(), cache.store().block_tokens());
        let mut quality = QualityWatch::new(&policy, block_tokens, n_layers, cache.capacity())?;
        if let Some(memory) = learned {
            quality.resume(memory, cache);
        }
        Some(Self { layer: quality.layer(), quality, query: Vec::new() })
    }
}

impl NativeSequence {
    /// An empty sequence. Its quality target begins with what other sequences of the tenant have
    /// learned.
    ///
    /// # Errors
    /// [`Error::Cache`] for a capacity beyond the context, or a tenant of another pool.
    pub(crate) fn new(core: &Core, spec: &SequenceSpec, learned: Option<&QualityMemory>) -> Result<Self> {
        let capacity = spec.capacity;
        let store = spec.kv.as_ref().unwrap_or(&core.kv);
        let store = store.for_tenant(&spec.tenant).map_err(ruvllm_models::Error::from);
        let mut cache = store
            .and_then(|store| core.model.new_sequence(&store, capacity))
            .map_err(|source| Error::Cache { tokens: capacity, source })?;
        let n_layers = core.model.config().kv_shape().n_layers;
        let watch = Watch::new(&mut cache, n_layers, learned);
        Ok(Self {
            cache,
            tokens: Vec::new(),
            kv_digest: kv_digest(&spec.adapters),
            spec: spec.clone(),
            borders: Vec::new(),
            settled: 0,
            n_layers,
            forked: 0,
            reused: Reused::default(),
            window: core.model.config().longest_window(),
            watch,
        })
    }

    /// A second sequence with the same tokens and properties, whose blocks both share until one
    /// writes to them. Its quality target begins as that of a new sequence.
    pub(crate) fn fork(&mut self, learned: &QualityMemory) -> Self {
        let mut cache = self.cache.fork();
        let block_tokens = cache.store().block_tokens();
        let watch = Watch::new(&mut cache, self.n_layers, Some(learned));
        Self {
            forked: cache.len() / block_tokens * block_tokens,
            cache,
            tokens: self.tokens.clone(),
            spec: self.spec.clone(),
            kv_digest: self.kv_digest,
            n_layers: self.n_layers,
            settled: self.settled,
            borders: Vec::new(),
            // The fork holds the blocks itself, so that it needs no pin.
            reused: Reused::unpinned(self.reused.tokens),
            window: self.window,
            watch,
        }
    }

    /// Tokens whose memory is that of the sequence that this is a fork of.
    pub(crate) fn shared_tokens(&self) -> usize {
        self.forked
    }

    /// Keeps tokens that no later query sees, so that the sequence can be cut back to any length.
    pub(crate) fn keep_all(&mut self) {
        self.window = None;
    }

    /// Number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.cache.len()
    }

    /// The KV cache.
    pub(crate) fn cache(&self) -> &Sequence {
        &self.cache
    }

    /// Tokens that were dropped for lack of memory.
    pub(crate) fn dropped_tokens(&self) -> usize {
        self.cache.dropped_tokens()
    }

    /// Outcome of the quality target; `None` if the policy has none.
    pub(crate) fn kv_quality(&self) -> Option<KvQuality> {
        self.watch.as_ref().and_then(|watch| watch.quality.report())
    }

    /// True if a request with these properties may go on with this sequence: same tenant, KV
    /// policy, choice of RoPE frequencies and adapters, as far as keys and values depend on these.
    pub(crate) fn is_for(&self, spec: &SequenceSpec) -> bool {
        let policy = |spec: &SequenceSpec| spec.kv.as_ref().map(|kv| *kv.policy());
        self.spec.tenant.path() == spec.tenant.path()
            && self.spec.capacity >= spec.capacity
            && policy(&self.spec) == policy(spec)
            && self.kv_digest == kv_digest(&spec.adapters)
    }

    /// Takes the changeable properties of the request that goes on with the sequence.
    pub(crate) fn adopt(&mut self, spec: &SequenceSpec) {
        self.spec.adapters = Arc::clone(&spec.adapters);
        self.spec.pressure = spec.pressure;
        self.spec.caches_prefix = spec.caches_prefix;
        self.spec.shared_tokens = spec.shared_tokens;
    }

    /// Number of tokens of `prompt` that the sequence can go on from; at least the last token is
    /// left to compute. 0 without a common prefix, and if a sliding window has released blocks that
    /// would be seen again.
    pub(crate) fn reusable(&self, prompt: &[TokenId]) -> usize {
        self.truncatable(common_prefix_len(&self.tokens, prompt))
    }

    /// The most tokens, at most `len`, that the sequence can be cut back to: fewer where layers
    /// keep a state of the others too.
    pub(crate) fn truncatable(&self, len: usize) -> usize {
        let is_whole = self.cache.released() == 0;
        if len < self.cache.len() && !is_whole { 0 } else { self.cache.truncatable(len) }
    }

    /// Plans the borders of a prompt that is to be computed: where other prompts part from it
    /// (`known_tokens` of it are cached), behind what all tenants share, and at its end.
    pub(crate) fn plan_borders(&mut self, prompt_tokens: usize, known_tokens: usize) {
        self.borders.clear();
        if self.cache.state_values() == 0 || !self.spec.caches_prefix {
            return;
        }
        let (block_tokens, ends) =
            (self.cache.store().block_tokens(), [self.spec.shared_tokens, known_tokens]);
        self.borders = borders(prompt_tokens, ends, self.cache.len(), block_tokens);
    }

    /// Tokens up to the next planned border, at which a pass of the prompt ends.
    pub(crate) fn tokens_to_border(&self) -> usize {
        let next = self.borders.iter().find(|&&border| border > self.cache.len());
        next.map_or(usize::MAX, |border| border - self.cache.len())
    }

    /// Stores the prefix at a planned border.
    pub(crate) fn keep_planned(&mut self, prefixes: Option<&PrefixCache>) {
        if self.borders.contains(&self.cache.len()) {
            self.keep_border(prefixes);
        }
    }

    /// Stores the prefix up to the last block border where a pass ended; false if it is not stored.
    fn keep_border(&mut self, prefixes: Option<&PrefixCache>) -> bool {
        let Some(prefixes) = prefixes.filter(|_| self.spec.caches_prefix) else { return false };
        prefixes.keep_border(&mut self.cache, self.kv_digest, &self.tokens, self.spec.shared_tokens)
    }

    /// Stores the prefix up to the last border, also in files, there with those at the planned
    /// borders. True if the sequence ends there.
    fn keep_states(&mut self, prefixes: Option<&PrefixCache>) -> bool {
        let is_kept = self.keep_border(prefixes);
        if let Some(prefixes) = prefixes.filter(|_| self.spec.caches_prefix) {
            self.borders.push(self.cache.border());
            self.borders.sort_unstable();
            self.borders.dedup();
            let Self { cache, kv_digest, tokens, spec, borders, .. } = self;
            prefixes.write_borders(cache, *kv_digest, tokens, spec.shared_tokens, borders);
            self.borders.clear();
        }
        is_kept && self.cache.border() == self.cache.len()
    }

    /// Snapshot of the state of a sequence that has one and tokens, for [`return_to`].
    ///
    /// # Errors
    /// [`Error::Cache`] without memory.
    ///
    /// [`return_to`]: Self::return_to
    pub(crate) fn snapshot(&self) -> Result<Option<StateSnapshot>> {
        if self.cache.state_values() == 0 || self.cache.is_empty() {
            return Ok(None);
        }
        let snapshot = self.cache.snapshot();
        snapshot.map(Some).map_err(|source| Error::Cache { tokens: self.len(), source: source.into() })
    }

    /// Drops the tokens behind those of a snapshot.
    ///
    /// # Errors
    /// [`Error::Cache`] without memory, or for a snapshot of another sequence.
    pub(crate) fn return_to(&mut self, snapshot: &StateSnapshot) -> Result<()> {
        let len = snapshot.tokens();
        self.forget_behind(len);
        self.cache
            .return_to(snapshot)
            .map_err(|source| Error::Cache { tokens: len, source: source.into() })?;
        self.tokens.truncate(len);
        Ok(())
    }

    /// Begins the empty sequence with the part of `prompt` that the prefix cache has; returns the
    /// number of tokens.
    ///
    /// # Errors
    /// [`Error::Cache`] if the prompt exceeds the capacity.
    pub(crate) fn begin(
        &mut self,
        compute: &Compute,
        prefixes: Option<&PrefixCache>,
        prompt: &[TokenId],
    ) -> Result<usize> {
        // The last token is computed in any case: a single one needs no lookup.
        let may_reuse = self.spec.caches_prefix && prompt.len() > 1;
        let Some(prefixes) = prefixes.filter(|_| may_reuse) else { return Ok(0) };
        self.reused = prefixes
            .begin(&compute.kernels, &mut self.cache, self.kv_digest, prompt, self.spec.min_cache_tokens)
            .map_err(|source| Error::Cache { tokens: prompt.len(), source: source.into() })?;
        self.tokens.extend_from_slice(&prompt[..self.reused.tokens]);
        self.plan_borders(prompt.len(), self.reused.known_tokens);
        Ok(self.reused.tokens)
    }

    /// Stores the whole blocks as a prefix of other sequences, if there are new ones. Those of a
    /// model with layers that keep a state were stored at their border.
    pub(crate) fn keep_whole_blocks(&mut self, prefixes: Option<&PrefixCache>) {
        if self.cache.state_values() > 0 {
            return;
        }
        let block_tokens = self.cache.store().block_tokens();
        let whole = self.tokens.len() / block_tokens * block_tokens;
        if whole > self.reused.tokens
            && let Some(prefixes) = prefixes.filter(|_| self.spec.caches_prefix)
        {
            let shared_tokens = self.spec.shared_tokens;
            prefixes.keep_in_memory(&mut self.cache, self.kv_digest, &self.tokens[..whole], shared_tokens);
        }
    }

    /// Stores the sequence as a prefix of later sequences; true if the prefix cache has it whole.
    pub(crate) fn keep(&mut self, prefixes: Option<&PrefixCache>) -> bool {
        if self.cache.state_values() > 0 {
            return self.keep_states(prefixes);
        }
        let Some(prefixes) = prefixes.filter(|_| self.spec.caches_prefix) else { return false };
        prefixes.keep(&mut self.cache, self.kv_digest, &self.tokens, self.spec.shared_tokens)
    }

    /// Key of its prefix in the prefix cache; `None` if it leaves none there.
    pub(crate) fn prefix_key(&self, prefixes: Option<&PrefixCache>) -> Option<PrefixKey> {
        let prefixes = prefixes.filter(|_| self.spec.caches_prefix)?;
        Some(prefixes.key_of(&self.cache, self.kv_digest))
    }

    /// Drops the adapters of a request that has ended, so that the idle sequence keeps none in
    /// memory. The next request brings its own.
    pub(crate) fn release_adapters(&mut self) {
        self.spec.adapters = Arc::default();
    }

    /// Stores the state of the quality target as the start of the tenant's later sequences.
    pub(crate) fn remember_quality(&mut self, memory: &QualityMemory) {
        if let Some(watch) = &mut self.watch {
            watch.quality.remember(memory, &self.cache);
        }
    }

    /// Drops the tokens from position `len` on.
    ///
    /// # Errors
    /// [`Error::Cache`] if tokens before `len` were released, or layers keep a state and the
    /// sequence has none of `len` tokens.
    pub(crate) fn truncate(&mut self, len: usize) -> Result<()> {
        self.forget_behind(len);
        self.cache.truncate(len).map_err(|source| Error::Cache { tokens: len, source: source.into() })?;
        self.tokens.truncate(len);
        Ok(())
    }

    /// Drops the tokens of a draft from position `len` on.
    ///
    /// # Errors
    /// [`Error::Forward`] without memory for the state of layers that keep one.
    pub(crate) fn rewind(
        &mut self,
        model: &Model,
        compute: &Compute,
        workspace: &mut Workspace,
        len: usize,
    ) -> Result<()> {
        let tokens = self.len() - len;
        self.forget_behind(len);
        model.rewind(compute, workspace, &mut self.cache, len).map_err(|source| Error::Forward {
            start: len,
            tokens,
            source,
        })?;
        self.tokens.truncate(len);
        Ok(())
    }

    fn forget_behind(&mut self, len: usize) {
        let whole = len / self.cache.store().block_tokens();
        self.settled = self.settled.min(whole);
        self.forked = self.forked.min(whole * self.cache.store().block_tokens());
    }

    /// Largest number of tokens behind the next `tokens` that can be computed with these and
    /// dropped again without a trace.
    ///
    /// Where work between passes may change what attention reads (tiers, quality samples, windows,
    /// dropped tokens), or layers keep a state, a pass with a draft ends before the last token of a
    /// block: that work is done when a block is full, and the state at its border is kept, at the
    /// same lengths as without drafts. `SQuat` learns from every query that is computed, so drafts
    /// are left out.
    pub(crate) fn draft_room(&self, tokens: usize) -> usize {
        let store = self.cache.store();
        if store.policy().squat {
            return 0;
        }
        let room = self.cache.capacity().saturating_sub(self.cache.len() + tokens);
        let is_settled_in_blocks = store.policy().tiers().nth(1).is_some()
            || self.watch.is_some()
            || self.window.is_some()
            || self.cache.state_values() > 0
            || self.spec.pressure == PressurePolicy::DropOldest;
        if !is_settled_in_blocks {
            return room;
        }
        let block_tokens = store.block_tokens();
        room.min((block_tokens - self.cache.len() % block_tokens).saturating_sub(tokens + 1))
    }

    /// Appends copies of the whole blocks in their order as long as they end at `len` or before;
    /// their token ids are repeated as well. Nothing, if layers keep a state.
    ///
    /// # Errors
    /// [`Error::Cache`] without memory.
    pub(crate) fn repeat_until(&mut self, model: &Model, compute: &Compute, len: usize) -> Result<()> {
        let block_tokens = self.cache.store().block_tokens();
        if self.cache.state_values() > 0 {
            return Ok(());
        }
        let source = self.cache.fork();
        let ids = self.tokens.clone();
        let blocks = source.blocks().iter().zip(ids.chunks_exact(block_tokens));
        let blocks = blocks.take(source.len() / block_tokens);
        for (block, ids) in blocks.cycle() {
            if self.cache.len() + block_tokens > len {
                break;
            }
            self.settle(model, compute);
            self.cache
                .append_copy(&compute.kernels, block, block_tokens)
                .map_err(|source| Error::Cache { tokens: len, source: source.into() })?;
            self.tokens.extend_from_slice(ids);
        }
        Ok(())
    }

    /// Work between passes once new blocks are full: a quality sample, memory under pressure, older
    /// blocks to lower-precision tiers.
    fn settle(&mut self, model: &Model, compute: &Compute) {
        let whole = self.cache.len() / self.cache.store().block_tokens();
        if whole > self.settled {
            self.sample(model, compute);
            self.cache.settle(&compute.kernels, &compute.pool, self.spec.pressure);
            self.settled = whole;
            if let Some(window) = self.window {
                self.cache.release_before((self.cache.len() + 1).saturating_sub(window));
            }
        }
    }

    /// Samples the sequence with the query of its last pass, if the policy needs that.
    fn sample(&mut self, model: &Model, compute: &Compute) {
        let Some(watch) = &mut self.watch else { return };
        if !watch.query.is_empty() {
            let probe = model.probe_of(watch.layer, &watch.query);
            watch.quality.look(&compute.kernels, &compute.pool, &mut self.cache, &probe);
        }
        watch.layer = watch.quality.layer();
        watch.query.clear();
    }

    /// Work between passes, and room for one of as many as possible of `tokens` tokens: see
    /// [`Sequence::make_room`].
    ///
    /// # Errors
    /// [`Error::Forward`] without memory.
    pub(crate) fn prepare(
        &mut self,
        model: &Model,
        compute: &Compute,
        tokens: RangeInclusive<usize>,
    ) -> Result<usize> {
        self.settle(model, compute);
        let (start, most) = (self.cache.len(), *tokens.end());
        self.cache
            .make_room(&compute.kernels, &compute.pool, tokens, self.spec.pressure)
            .map_err(|source| Error::Forward { start, tokens: most, source: source.into() })
    }

    /// The next `tokens` as a part of a pass. After the pass [`passed`](Self::passed) is due.
    ///
    /// # Errors
    /// [`Error::Forward`] beyond the capacity, or without memory.
    pub(crate) fn segment<'t>(
        &'t mut self,
        compute: &Compute,
        tokens: &'t [TokenId],
        logits: LogitsRows<'t>,
    ) -> Result<Segment<'t>> {
        let start = self.cache.len();
        let layer = self.watch.as_ref().map(|watch| watch.layer);
        Segment::new(compute, tokens, &mut self.cache, logits)
            .map(|segment| segment.with_adapters(&self.spec.adapters).with_probe(layer))
            .map_err(|source| Error::Forward { start, tokens: tokens.len(), source })
    }

    /// Notes that `tokens` were computed as segment `index` of a pass.
    pub(crate) fn passed(&mut self, model: &Model, workspace: &Workspace, index: usize, tokens: &[TokenId]) {
        self.tokens.extend_from_slice(tokens);
        if let Some(watch) = &mut self.watch
            && let Some(probe) = model.probe(workspace, index)
        {
            watch.query.clear();
            watch.query.extend_from_slice(probe.query);
        }
    }
}
