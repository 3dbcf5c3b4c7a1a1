//! A model in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ruvllm::crates::adapters::CompactFile;
use ruvllm::crates::models::quantize::Recipe;
use ruvllm::{
    Embedder, EmbeddingRequest, Embeddings, Engine, LearningOptions, LoadProgress, ModelSource, Precision,
    Prompt, Sessions, Tenant, TokenId,
};
use tokio::sync::Mutex;

use super::ModelEntry;
use crate::api_error::{ApiError, with_sources};
use crate::config::Learning;
use crate::hex::hex;
use crate::learning::ModelLearning;
use crate::learning::memory::ModelMemory;

/// A loaded model: a decoder, which generates, or an encoder, which only embeds.
pub(crate) struct LoadedModel {
    name: Arc<str>,
    source: ModelSource,
    /// Recipe by which the weights are quantized while they are loaded.
    quantize: Option<Recipe>,
    embedder: Embedder,
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
    /// # Errors
    /// As [`Engine::load`], and [`ruvllm::Error::Adapter`].
    pub(super) fn load(
        entry: &ModelEntry,
        adapters: &[(String, PathBuf)],
        (sessions, learning): (Option<&Path>, &Learning),
    ) -> Result<Self, ruvllm::Error> {
        let embedder = Embedder::load(&entry.source, &entry.options, &mut |_: LoadProgress<'_>| ())?;
        let (mut bytes, mut folder) = (super::expected_bytes(entry), None);
        let (mut learns, mut memory) = (None, None);
        if let Some(engine) = embedder.engine() {
            let weights = engine.model().weight_bytes();
            bytes = weights.private + weights.shared + engine.plan().kv_budget.value as u64;
            for (name, path) in adapters {
                let registered =
                    engine.adapter_registry().register(&Tenant::root(), name, path, Precision::default());
                registered.map_err(|source| ruvllm::Error::Adapter { source: source.into() })?;
            }
            if let Some(sessions) = sessions {
                folder = Some(restore_sessions(engine, sessions)?);
            }
            learns = open_learning(entry, engine, learning);
            memory = learning.folder.as_deref().map(ModelMemory::new);
        }
        let name = entry.name.as_str().into();
        let model = Self {
            name,
            source: entry.source.clone(),
            quantize: entry.options.quantize,
            embedder,
            bytes,
            embedding: Arc::default(),
            sessions: folder,
            saved: AtomicU64::new(0),
            learning: learns,
            memory,
        };
        let restored = model.sessions().map_or(0, |(_, sessions)| sessions.revision());
        model.saved.store(restored, Ordering::Relaxed);
        Ok(model)
    }

    /// The sessions of the engine and their folder, if there is one.
    fn sessions(&self) -> Option<(&Path, Sessions<'_>)> {
        Some((self.sessions.as_deref()?, self.embedder.engine()?.sessions()))
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
        let warnings = self.embedder.engine().map(Engine::take_prefix_warnings).unwrap_or_default();
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
        let changes = self.embedder.engine().map(Engine::take_tuning_changes).unwrap_or_default();
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
        let Some(engine) = self.embedder.engine() else { return Vec::new() };
        let (registry, root) = (engine.adapter_registry(), Tenant::root());
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

    /// Bytes of weights and of the budget for keys and values.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The model for embeddings.
    pub(crate) fn embedder(&self) -> &Embedder {
        &self.embedder
    }

    /// Computes embeddings in a thread of its own.
    ///
    /// One request at a time for each model, in the order of their arrival: its passes take all
    /// threads of the engine, so that several at once would only divide them, take buffers for
    /// each, and delay every step of the requests that generate.
    ///
    /// # Errors
    /// As [`Embedder::embed`].
    pub(crate) async fn embed(self: &Arc<Self>, request: EmbeddingRequest) -> Result<Embeddings, ApiError> {
        let turn = Arc::clone(&self.embedding).lock_owned().await;
        let model = Arc::clone(self);
        let computed = tokio::task::spawn_blocking(move || {
            // Held to the end, also if the client is gone meanwhile.
            let _turn = turn;
            model.embedder.embed(&request)
        });
        Ok(computed.await.map_err(|panic| ApiError::internal(&panic))??)
    }

    /// Encodes a prompt in a thread of its own: chat templates are programs and may run long.
    ///
    /// # Errors
    /// As [`Engine::encode_prompt`], and 400 for an encoder.
    pub(crate) async fn encode(self: &Arc<Self>, prompt: Prompt) -> Result<Vec<TokenId>, ApiError> {
        let model = Arc::clone(self);
        let encoded = tokio::task::spawn_blocking(move || {
            let tokens = model.engine()?.encode_prompt(&prompt)?;
            Ok::<_, ApiError>(tokens)
        });
        encoded.await.map_err(|panic| ApiError::internal(&panic))?
    }

    /// The engine of a model that generates.
    ///
    /// # Errors
    /// 400 for an encoder.
    pub(crate) fn engine(&self) -> Result<&Engine, ApiError> {
        self.embedder.engine().ok_or_else(|| {
            let message = format!("the model {} computes embeddings and generates no text", self.name);
            ApiError::invalid_param("model", message)
        })
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
