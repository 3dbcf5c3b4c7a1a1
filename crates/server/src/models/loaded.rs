//! A model in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ruvllm::crates::adapters::CompactFile;
use ruvllm::crates::models::quantize::Recipe;
use ruvllm::{
    BackendAdapters, BackendQueue, DeviceMemory, Embedder, EmbeddingRequest, Embeddings, Engine,
    GenerateRequest, InferenceBackend, LearningOptions, LoadProgress, ModelSource, Precision, Prompt,
    Ranking, Registry, RequestHandle, RerankRequest, Sessions, StepRecord, StepStatistics, Tenant, TokenId,
    Tokenizer, TreeStatistics,
};
use tokio::sync::Mutex;

use super::ModelEntry;
use crate::api_error::{ApiError, with_sources};
use crate::auth::Caller;
use crate::config::Learning;
use crate::hex::hex;
use crate::learning::ModelLearning;
use crate::learning::memory::ModelMemory;
use crate::tenant::tenant_of;

/// The part that computes a model.
enum Computed {
    /// The engine; for an encoder, which only embeds, its like.
    Engine(Embedder),
    /// Another backend, which only generates.
    Backend(BackendQueue),
}

/// A loaded model: a decoder, which generates, or an encoder, which only embeds.
pub(crate) struct LoadedModel {
    name: Arc<str>,
    source: ModelSource,
    /// Recipe by which the weights are quantized while they are loaded.
    quantize: Option<Recipe>,
    computed: Computed,
    /// Bytes of weights and of the budget for keys and values, of the engine.
    bytes: u64,
    /// Held while embeddings are computed.
    embedding: Arc<Mutex<()>>,
    /// Folder of the sessions of this model; `None` keeps them in memory.
    sessions: Option<PathBuf>,
    /// Revision of the sessions that are saved.
    saved: AtomicU64,
    /// Learning; `None` if it is off or its store cannot be used.
    learning: Option<ModelLearning>,
    /// Bank of lessons; `None` without a folder for what is learned.
    memory: Option<ModelMemory>,
}

impl LoadedModel {
    /// Loads a model, registers `adapters` and restores its sessions from their folder in
    /// `sessions`, which is named by the fingerprint of the model. What it learns is in `learning`;
    /// a store that cannot be used is logged, and the model answers without learning.
    ///
    /// A model of another backend has neither sessions nor learning.
    ///
    /// # Errors
    /// As [`Engine::load`], [`ruvllm::Error::Adapter`], and those of the entry's backend.
    pub(super) fn load(
        entry: &ModelEntry,
        adapters: &[(String, PathBuf)],
        (sessions, learning): (Option<&Path>, &Learning),
    ) -> Result<Self, ruvllm::Error> {
        if let Some(backend) = &entry.backend
            && let Some(queue) = backend.load(&entry.name)?
        {
            let model = Self::of(entry, Computed::Backend(queue), 0);
            model.register(adapters)?;
            return Ok(model);
        }
        let embedder = Embedder::load(&entry.source, &entry.options, &mut |_: LoadProgress<'_>| ())?;
        let (mut bytes, mut folder) = (super::engine_bytes(entry), None);
        let (mut learns, mut memory) = (None, None);
        if let Some(engine) = embedder.engine() {
            let weights = engine.model().weight_bytes();
            bytes = weights.private + weights.shared + engine.plan().kv_budget.value as u64;
            if let Some(sessions) = sessions {
                folder = Some(restore_sessions(engine, sessions)?);
            }
            learns = open_learning(entry, engine, learning);
            memory = learning.folder.as_deref().map(ModelMemory::new);
        }
        let mut model = Self::of(entry, Computed::Engine(embedder), bytes);
        model.register(adapters)?;
        (model.sessions, model.learning, model.memory) = (folder, learns, memory);
        let restored = model.sessions().map_or(0, |(_, sessions)| sessions.revision());
        model.saved.store(restored, Ordering::Relaxed);
        Ok(model)
    }

    /// A model without sessions and learning.
    fn of(entry: &ModelEntry, computed: Computed, bytes: u64) -> Self {
        Self {
            name: entry.name.as_str().into(),
            source: entry.source.clone(),
            quantize: entry.options.quantize,
            computed,
            bytes,
            embedding: Arc::default(),
            sessions: None,
            saved: AtomicU64::new(0),
            learning: None,
            memory: None,
        }
    }

    /// Registers the adapters of the configuration; nothing for an encoder.
    fn register(&self, adapters: &[(String, PathBuf)]) -> Result<(), ruvllm::Error> {
        let Some(registry) = self.adapter_registry() else { return Ok(()) };
        for (name, path) in adapters {
            registry
                .register(&Tenant::root(), name, path, Precision::default())
                .map_err(|source| ruvllm::Error::Adapter { source: source.into() })?;
        }
        Ok(())
    }

    /// Adapters by tenant and name; `None` for an encoder, and for a backend without adapters.
    pub(crate) fn adapter_registry(&self) -> Option<&Registry> {
        match &self.computed {
            Computed::Engine(embedder) => embedder.engine().map(Engine::adapter_registry),
            Computed::Backend(queue) => queue.backend().backend_adapters().map(BackendAdapters::registry),
        }
    }

    /// As [`adapter_registry`](Self::adapter_registry).
    ///
    /// # Errors
    /// 400 for a model without.
    pub(crate) fn adapters(&self) -> Result<&Registry, ApiError> {
        self.adapter_registry().ok_or_else(|| match &self.computed {
            Computed::Engine(_) => self.without_text(),
            Computed::Backend(queue) => self.without_engine(queue),
        })
    }

    /// The sessions of the engine and their folder, if there is one.
    fn sessions(&self) -> Option<(&Path, Sessions<'_>)> {
        Some((self.sessions.as_deref()?, self.try_engine()?.sessions()))
    }

    /// Saves the sessions if they have changed. A fault is logged; the next call tries again.
    pub(super) fn save_sessions(&self) {
        let Some((folder, sessions)) = self.sessions() else { return };
        // Taken before: a change meanwhile is saved by the next call.
        let revision = sessions.revision();
        if self.saved.load(Ordering::Relaxed) == revision {
            return;
        }
        match sessions.save(folder) {
            Ok(()) => self.saved.store(revision, Ordering::Relaxed),
            Err(error) => {
                tracing::error!(model = &*self.name, error = with_sources(&error), "cannot save sessions");
            }
        }
    }

    /// Logs failures of the prefix folder since the last call, such as a full disk: one line with
    /// their number. No request failed because of them.
    fn log_prefix_failures(&self) {
        let warnings = self.try_engine().map(Engine::take_prefix_warnings).unwrap_or_default();
        if let Some(first) = warnings.first() {
            tracing::warn!(
                model = &*self.name,
                failures = warnings.len(),
                error = first.as_str(),
                "files of the prefix cache failed"
            );
        }
    }

    /// Logs what the engine has to say since the last call.
    pub(super) fn log_engine(&self) {
        self.log_prefix_failures();
        self.log_tuning();
    }

    /// Logs decisions of the tuner since the last call, each with its reason.
    fn log_tuning(&self) {
        let changes = self.try_engine().map(Engine::take_tuning_changes).unwrap_or_default();
        for change in changes {
            let settings = change.settings;
            tracing::info!(
                model = &*self.name,
                decision = %change,
                batch = settings.max_batch,
                prefill_chunk = settings.prefill_chunk,
                draft = settings.draft_tokens,
                "settings follow the load"
            );
        }
    }

    /// Makes the adapters of the configuration those in `new` instead of those in `old`: requests
    /// that run finish on theirs. A file with the content of before stays as it is. What cannot be
    /// used is left out; returns its error.
    pub(super) fn set_adapters(
        &self,
        old: &[(String, PathBuf)],
        new: &[(String, PathBuf)],
    ) -> Vec<ruvllm::Error> {
        let Some(registry) = self.adapter_registry() else { return Vec::new() };
        let root = Tenant::root();
        for (name, _) in old.iter().filter(|(name, _)| !new.iter().any(|(kept, _)| kept == name)) {
            // A request may have removed it.
            let _ = registry.unload(&root, name);
        }
        let registered = registry.list(&root);
        let is_current = |name: &str, path: &Path| {
            let former = registered.iter().find(|former| former.version.name() == name);
            former.is_some_and(|former| {
                former.version.path() == path
                    && CompactFile::open(path).is_ok_and(|file| file.digest() == former.version.digest())
            })
        };
        let changed = new.iter().filter(|(name, path)| !is_current(name, path));
        let replaced = changed.map(|(name, path)| registry.replace(&root, name, path, Precision::default()));
        replaced
            .filter_map(Result::err)
            .map(|source| ruvllm::Error::Adapter { source: source.into() })
            .collect()
    }

    /// Learning; `None` if it is off or its store cannot be used.
    pub(crate) fn learning(&self) -> Option<&ModelLearning> {
        self.learning.as_ref()
    }

    /// The bank of lessons; `None` without a folder for what is learned.
    pub(crate) fn memory(&self) -> Option<&ModelMemory> {
        self.memory.as_ref()
    }

    /// Name of the model in replies.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Fingerprint of the weights.
    ///
    /// # Errors
    /// As [`ModelSource::fingerprint`].
    pub(crate) fn fingerprint(&self) -> Result<[u8; 32], ruvllm::Error> {
        self.source.fingerprint(self.quantize)
    }

    /// Bytes of weights and of the budget for keys and values in the machine's memory: 0 for a
    /// model on a device.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Memory on a device; `None` for a model without one.
    pub(crate) fn device_memory(&self) -> Option<DeviceMemory> {
        self.queue()?.backend().device_memory()
    }

    /// Counters of the prefixes in memory, of an engine or on a device; `None` without a prefix
    /// cache.
    pub(crate) fn prefix_statistics(&self) -> Option<TreeStatistics> {
        match self.queue() {
            Some(queue) => queue.backend().prefix_statistics(),
            None => self.try_engine()?.prefix_statistics().map(|statistics| statistics.memory),
        }
    }

    /// Counters of the prefixes that sequences on a device have displaced to memory of the host;
    /// `None` without a place for them.
    pub(crate) fn host_prefix_statistics(&self) -> Option<TreeStatistics> {
        self.queue()?.backend().host_prefix_statistics()
    }

    /// True once the model can compute nothing more and must be loaded again.
    pub(crate) fn is_lost(&self) -> bool {
        self.queue().is_some_and(BackendQueue::is_lost)
    }

    fn queue(&self) -> Option<&BackendQueue> {
        match &self.computed {
            Computed::Engine(_) => None,
            Computed::Backend(queue) => Some(queue),
        }
    }

    /// Tokenizer of the model.
    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        match &self.computed {
            Computed::Engine(embedder) => embedder.tokenizer(),
            Computed::Backend(queue) => queue.backend().codec().tokenizer(),
        }
    }

    /// Counts of the steps; `None` for an encoder.
    pub(crate) fn step_statistics(&self) -> Option<StepStatistics> {
        match &self.computed {
            Computed::Engine(embedder) => embedder.engine().map(Engine::step_statistics),
            Computed::Backend(queue) => Some(queue.step_statistics()),
        }
    }

    /// The steps from a number on, as far as they are kept.
    pub(crate) fn steps_since(&self, number: u64) -> Vec<StepRecord> {
        match &self.computed {
            Computed::Engine(embedder) => {
                embedder.engine().map(|engine| engine.steps_since(number)).unwrap_or_default()
            }
            Computed::Backend(queue) => queue.steps_since(number),
        }
    }

    /// Submits `n` choices of a request.
    ///
    /// # Errors
    /// As [`Engine::submit_many`]; 400 for an encoder.
    pub(crate) fn submit_many(
        &self,
        request: GenerateRequest,
        n: usize,
    ) -> Result<Vec<RequestHandle>, ApiError> {
        match &self.computed {
            Computed::Engine(_) => Ok(self.engine()?.submit_many(request, n)?),
            Computed::Backend(queue) => Ok(queue.submit_many(&request, n)?),
        }
    }

    /// The tenant of a caller in the memory of the engine; of another backend, whose stored
    /// prefixes it keeps apart, without an account.
    ///
    /// # Errors
    /// 500 for a name that the pool refuses.
    pub(crate) fn tenant_of(&self, caller: &Caller) -> Result<Tenant, ApiError> {
        match &self.computed {
            Computed::Backend(queue) if caller.key.is_some() => {
                queue.backend().tenant(&caller.tenant).map_err(|error| ApiError::internal(&error))
            }
            _ => self.try_engine().map_or_else(|| Ok(Tenant::root()), |engine| tenant_of(engine, caller)),
        }
    }

    /// Computes embeddings in a thread of its own; see [`Self::with_texts`].
    ///
    /// # Errors
    /// As [`Embedder::embed`]; 400 for a backend that computes none.
    pub(crate) async fn embed(self: &Arc<Self>, request: EmbeddingRequest) -> Result<Embeddings, ApiError> {
        self.with_texts(move |embedder| embedder.embed(&request)).await
    }

    /// Ranks documents in a thread of its own; see [`Self::with_texts`].
    ///
    /// # Errors
    /// As [`Embedder::rerank`]; 400 for a backend that ranks none.
    pub(crate) async fn rerank(self: &Arc<Self>, request: RerankRequest) -> Result<Ranking, ApiError> {
        self.with_texts(move |embedder| embedder.rerank(&request)).await
    }

    /// Computes something of texts in a thread of its own.
    ///
    /// One request at a time for each model, in the order of their arrival: its passes take all
    /// threads of the engine, so that several at once would only divide them, take buffers for
    /// each, and delay every step of the requests that generate.
    async fn with_texts<T: Send + 'static>(
        self: &Arc<Self>,
        compute: impl FnOnce(&Embedder) -> Result<T, ruvllm::Error> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = Arc::clone(&self.embedding).lock_owned().await;
        let model = Arc::clone(self);
        let computed = tokio::task::spawn_blocking(move || {
            // Held to the end, also if the client is gone meanwhile.
            let _turn = turn;
            match &model.computed {
                Computed::Engine(embedder) => Ok(compute(embedder)?),
                Computed::Backend(queue) => Err(model.without_engine(queue)),
            }
        });
        computed.await.map_err(|panic| ApiError::internal(&panic))?
    }

    /// Encodes a prompt in a thread of its own: chat templates are programs and may run long.
    ///
    /// # Errors
    /// As [`Engine::encode_prompt`], and 400 for an encoder.
    pub(crate) async fn encode(self: &Arc<Self>, prompt: Prompt) -> Result<Vec<TokenId>, ApiError> {
        let model = Arc::clone(self);
        let encoded = tokio::task::spawn_blocking(move || {
            let tokens = model.backend()?.codec().encode_prompt(&prompt)?;
            Ok::<_, ApiError>(tokens)
        });
        encoded.await.map_err(|panic| ApiError::internal(&panic))?
    }

    /// The engine of a model that generates; `None` for an encoder and for another backend.
    pub(crate) fn try_engine(&self) -> Option<&Engine> {
        match &self.computed {
            Computed::Engine(embedder) => embedder.engine(),
            Computed::Backend(_) => None,
        }
    }

    /// The engine of a model that generates.
    ///
    /// # Errors
    /// 400 for an encoder and for another backend.
    pub(crate) fn engine(&self) -> Result<&Engine, ApiError> {
        match &self.computed {
            Computed::Engine(embedder) => embedder.engine().ok_or_else(|| self.without_text()),
            Computed::Backend(queue) => Err(self.without_engine(queue)),
        }
    }

    /// The engine or backend of a model that generates.
    ///
    /// # Errors
    /// 400 for an encoder.
    pub(crate) fn backend(&self) -> Result<&dyn InferenceBackend, ApiError> {
        match &self.computed {
            Computed::Engine(_) => Ok(self.engine()?),
            Computed::Backend(queue) => Ok(&**queue.backend()),
        }
    }

    fn without_text(&self) -> ApiError {
        let message = format!("the model {} is an encoder and generates no text", self.name);
        ApiError::invalid_param("model", message)
    }

    /// Error of an operation of the engine on another backend.
    fn without_engine(&self, queue: &BackendQueue) -> ApiError {
        let message = format!(
            "the model {} runs on the backend {}, which has no embeddings, rankings, sessions, lessons and prefix \
             events; serve it with --device cpu for these",
            self.name,
            queue.backend().name()
        );
        ApiError::invalid_param("model", message)
    }
}

/// Opens the learning of a model, if it has a folder; a fault is logged.
fn open_learning(entry: &ModelEntry, engine: &Engine, learning: &Learning) -> Option<ModelLearning> {
    let mut options = LearningOptions::default();
    options.share = learning.share.unwrap_or(options.share);
    let lessons = &mut options.online.consolidation.lessons;
    *lessons = learning.consolidation_lessons.unwrap_or(*lessons);
    let opened = ModelLearning::open(engine, learning.folder.as_deref()?, options);
    let fault = |error: &ruvllm::Error| {
        tracing::error!(model = entry.name, error = with_sources(error), "the model learns nothing");
    };
    opened.inspect_err(fault).ok()
}

/// Restores the sessions of a model; returns their folder. Sessions that cannot be read are left
/// alone and reported: their requests compute their prompts again.
fn restore_sessions(engine: &Engine, sessions: &Path) -> Result<PathBuf, ruvllm::Error> {
    let folder = sessions.join(hex(&engine.fingerprint()?));
    if folder.is_dir() {
        match engine.sessions().restore(&folder) {
            Ok(count) => tracing::info!(count, "restored sessions"),
            Err(error) => tracing::error!(error = with_sources(&error), "cannot restore sessions"),
        }
    }
    Ok(folder)
}

/// Saves the sessions when the model is unloaded, or the server ends.
impl Drop for LoadedModel {
    fn drop(&mut self) {
        self.save_sessions();
        self.log_engine();
    }
}
