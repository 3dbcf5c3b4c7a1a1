//! Models of the server: loaded when they are first asked for, unloaded when memory is wanted.
//!
//! A request holds its model by an `Arc`; a model that a request holds is never unloaded. Loading
//! and unloading take seconds, so both happen in threads of their own, one load at a time.

mod backend;
#[cfg(test)]
pub(crate) mod fragile;
mod loaded;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use ruvllm::{EngineOptions, KvPolicy, ModelSource};

pub use self::backend::{BackendLoader, LoadedBackend};
pub(crate) use self::loaded::LoadedModel;
use crate::api_error::{ApiError, with_sources};
use crate::config::Learning;

/// A model that the server offers.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ModelEntry {
    /// Name in requests: `model`.
    pub name: String,
    /// Further names. `*` stands for every name that no model has.
    pub aliases: Vec<String>,
    /// File or folder of the model.
    pub source: ModelSource,
    /// Options of its engine.
    pub options: EngineOptions,
    /// Backend that computes the model in place of the engine. Default: none.
    pub backend: Option<BackendLoader>,
    /// Adapters that are registered when the model is loaded: name and compact file.
    pub adapters: Vec<(String, PathBuf)>,
    /// Loads the model at the start and keeps it.
    pub keep: bool,
}

impl ModelEntry {
    /// A model that is loaded when it is first asked for, without adapters.
    pub fn new(name: impl Into<String>, source: ModelSource, options: EngineOptions) -> Self {
        Self {
            name: name.into(),
            aliases: Vec::new(),
            source,
            options,
            backend: None,
            adapters: Vec::new(),
            keep: false,
        }
    }
}

/// One model and its state.
struct Slot {
    entry: ModelEntry,
    /// Adapters of the entry, which a reload replaces.
    adapters: RwLock<Arc<[(String, PathBuf)]>>,
    state: RwLock<Option<Arc<LoadedModel>>>,
    /// Order of last use; larger is later.
    used: AtomicU64,
}

impl Slot {
    /// The model if it is loaded and not lost.
    fn usable(&self) -> Option<Arc<LoadedModel>> {
        self.state.read().clone().filter(|model| !model.is_lost())
    }

    /// Drops the model, whose backend is lost, after the end of its requests, so that its memory is
    /// free for the next load. A reply that is read slowly is not waited for.
    async fn drop_lost(&self) {
        let Some(model) = self.state.write().take() else { return };
        tracing::error!(model = &**model.name(), "the backend of a model is lost; loading it again");
        for _ in 0..LOST_POLLS {
            if Arc::strong_count(&model) == 1 {
                break;
            }
            tokio::time::sleep(LOST_POLL).await;
        }
        // Ends its thread.
        let _ = tokio::task::spawn_blocking(move || drop(model)).await;
    }
}

/// Longest wait for the requests of a lost model, as polls and the time between them.
const LOST_POLLS: usize = 200;
const LOST_POLL: Duration = Duration::from_millis(10);

/// The models of a server.
pub(crate) struct ModelSet {
    slots: Vec<Slot>,
    /// Most bytes of weights and of keys and values of all models together.
    memory_limit: Option<u64>,
    /// Time of the last change to the files, as far as clients can tell: that of the start.
    created: u64,
    clock: AtomicU64,
    /// Folder of the sessions of all models.
    sessions: Option<PathBuf>,
    /// Folder of what all models learn.
    learning: Learning,
    /// Held by the one load.
    loading: tokio::sync::Mutex<()>,
}

/// Model of a request, by name.
pub(crate) struct Chosen {
    pub(crate) model: Arc<LoadedModel>,
    /// Adapter that the name means besides the model.
    pub(crate) adapter: Option<String>,
    /// KV-cache policy that a router has chosen; `None`: the model's.
    pub(crate) kv: Option<KvPolicy>,
}

/// A name that requests may give, for lists of models.
pub(crate) struct Offered<'m> {
    pub(crate) name: String,
    /// Model of an adapter; `None` for a model.
    pub(crate) parent: Option<&'m str>,
    pub(crate) loaded: Option<Arc<LoadedModel>>,
}

impl ModelSet {
    pub(crate) fn new(entries: Vec<ModelEntry>, memory_limit: Option<u64>) -> Self {
        let slot = |entry: ModelEntry| Slot {
            adapters: RwLock::new(entry.adapters.as_slice().into()),
            entry,
            state: RwLock::default(),
            used: AtomicU64::new(0),
        };
        let created = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            slots: entries.into_iter().map(slot).collect(),
            memory_limit,
            created: created.map_or(0, |time| time.as_secs()),
            clock: AtomicU64::new(1),
            sessions: None,
            learning: Learning::default(),
            loading: tokio::sync::Mutex::new(()),
        }
    }

    /// Keeps the sessions of callers in a folder while their model is not loaded.
    #[must_use]
    pub(crate) fn with_sessions(mut self, folder: Option<PathBuf>) -> Self {
        self.sessions = folder;
        self
    }

    /// Keeps what models learn in a folder.
    #[must_use]
    pub(crate) fn with_learning(mut self, learning: Learning) -> Self {
        self.learning = learning;
        self
    }

    /// True if models that generate learn, for tenants that may.
    pub(crate) fn learn(&self) -> bool {
        self.learning.folder.is_some()
    }

    /// Seconds since the Unix epoch for `created` of models.
    pub(crate) fn created(&self) -> u64 {
        self.created
    }

    /// All names of models and of their adapters.
    pub(crate) fn offered(&self) -> impl Iterator<Item = Offered<'_>> {
        self.slots.iter().flat_map(|slot| {
            let loaded = slot.state.read().clone();
            let name = slot.entry.name.as_str();
            let model = Offered { name: name.to_owned(), parent: None, loaded: loaded.clone() };
            let adapters: Vec<String> = slot.adapters.read().iter().map(|(name, _)| name.clone()).collect();
            std::iter::once(model).chain(adapters.into_iter().map(move |adapter| Offered {
                name: adapter,
                parent: Some(name),
                loaded: loaded.clone(),
            }))
        })
    }

    /// The models that are loaded.
    pub(crate) fn loaded(&self) -> Vec<Arc<LoadedModel>> {
        self.slots.iter().filter_map(|slot| slot.state.read().clone()).collect()
    }

    /// The model that a request names, loaded now if it is not; without a name the first one. The
    /// name of an adapter means its model with the adapter.
    ///
    /// # Errors
    /// 404 for an unknown name; 503 if all memory is in use; 500 if the model cannot be loaded.
    pub(crate) async fn choose(self: &Arc<Self>, name: Option<&str>) -> Result<Chosen, ApiError> {
        let (index, adapter) = self.find(name)?;
        let slot = &self.slots[index];
        slot.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        let model = match slot.usable() {
            Some(model) => model,
            None => self.load(index).await?,
        };
        Ok(Chosen { model, adapter, kv: None })
    }

    /// The model of this name, if it is in memory.
    pub(crate) fn in_memory(&self, name: &str) -> Option<Arc<LoadedModel>> {
        self.slots.iter().find(|slot| slot.entry.name == name)?.state.read().clone()
    }

    /// True if the configuration gives a model an adapter of this name.
    pub(crate) fn has_adapter(&self, model: &str, adapter: &str) -> bool {
        let slot = self.slots.iter().find(|slot| slot.entry.name == model);
        slot.is_some_and(|slot| slot.adapters.read().iter().any(|(name, _)| name == adapter))
    }

    fn find(&self, name: Option<&str>) -> Result<(usize, Option<String>), ApiError> {
        let Some(name) = name else {
            return if self.slots.is_empty() { Err(ApiError::no_model("", "none")) } else { Ok((0, None)) };
        };
        let position = |matches: &dyn Fn(&Slot) -> bool| self.slots.iter().position(matches);
        if let Some(index) = position(&|slot| slot.entry.name == name)
            .or_else(|| position(&|slot| slot.entry.aliases.iter().any(|alias| alias == name)))
        {
            return Ok((index, None));
        }
        if let Some(index) = position(&|slot| slot.adapters.read().iter().any(|(adapter, _)| adapter == name))
        {
            return Ok((index, Some(name.to_owned())));
        }
        if let Some(index) = position(&|slot| slot.entry.aliases.iter().any(|alias| alias == "*")) {
            return Ok((index, None));
        }
        let names: Vec<_> = self.slots.iter().map(|slot| slot.entry.name.as_str()).collect();
        Err(ApiError::no_model(name, &names.join(", ")))
    }

    /// Loads the models that are kept from the start on.
    ///
    /// # Errors
    /// The error of the first one that cannot be loaded, with its name.
    pub(crate) async fn load_kept(self: &Arc<Self>) -> Result<(), (String, ruvllm::Error)> {
        for (index, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.entry.keep) {
            self.load_now(index).await.map_err(|error| (slot.entry.name.clone(), error))?;
        }
        Ok(())
    }

    /// Loads a model when memory is free for it, unless that has happened meanwhile.
    async fn load(self: &Arc<Self>, index: usize) -> Result<Arc<LoadedModel>, ApiError> {
        let _one_at_a_time = self.loading.lock().await;
        let slot = &self.slots[index];
        if let Some(model) = slot.usable() {
            return Ok(model);
        }
        slot.drop_lost().await;
        self.make_room(index).await?;
        let name = slot.entry.name.clone();
        self.load_now(index).await.map_err(|error| {
            tracing::error!(model = name, error = with_sources(&error), "cannot load a model");
            ApiError::overloaded(format!("the model {name} cannot be loaded now"), None)
        })
    }

    async fn load_now(self: &Arc<Self>, index: usize) -> Result<Arc<LoadedModel>, ruvllm::Error> {
        let slot = &self.slots[index];
        let (entry, adapters) = (slot.entry.clone(), Arc::clone(&slot.adapters.read()));
        let name = entry.name.clone();
        let (sessions, learning) = (self.sessions.clone(), self.learning.clone());
        let load = move || LoadedModel::load(&entry, &adapters, (sessions.as_deref(), &learning));
        let loaded = tokio::task::spawn_blocking(load).await;
        let model = loaded.unwrap_or(Err(ruvllm::Error::EngineStopped))?;
        let device_bytes = model.device_memory().map(|memory| memory.used);
        tracing::info!(model = name, bytes = model.bytes(), device_bytes, "loaded a model");
        let model = Arc::new(model);
        *self.slots[index].state.write() = Some(Arc::clone(&model));
        Ok(model)
    }

    /// Unloads models without requests, the least recently used first, until a model fits.
    ///
    /// # Errors
    /// 503 if those that are left are in use or kept.
    async fn make_room(self: &Arc<Self>, index: usize) -> Result<(), ApiError> {
        let Some(limit) = self.memory_limit else { return Ok(()) };
        let wanted = expected_bytes(&self.slots[index].entry);
        loop {
            let in_use: u64 = self.loaded().iter().map(|model| model.bytes()).sum();
            if in_use + wanted <= limit || in_use == 0 {
                return Ok(());
            }
            let Some(model) = self.take_least_recent() else {
                let message = "all models in memory are in use; try again later";
                return Err(ApiError::overloaded(message, None));
            };
            let name = model.name().to_string();
            // Ends its threads and waits for files that they write.
            let _ = tokio::task::spawn_blocking(move || drop(model)).await;
            tracing::info!(model = name, "unloaded a model");
        }
    }

    /// Takes the model out whose last use is longest ago, of those that nobody else holds.
    fn take_least_recent(&self) -> Option<Arc<LoadedModel>> {
        let mut slots: Vec<_> = self.slots.iter().filter(|slot| !slot.entry.keep).collect();
        slots.sort_by_key(|slot| slot.used.load(Ordering::Relaxed));
        slots.into_iter().find_map(|slot| {
            // Requests clone under the lock, so the count cannot grow meanwhile.
            let mut state = slot.state.write();
            let idle = state.as_ref().is_some_and(|model| model.bytes() > 0 && Arc::strong_count(model) == 1);
            if idle { state.take() } else { None }
        })
    }

    /// Saves the sessions that have changed, of all models in memory, every `interval`.
    pub(crate) async fn save_sessions(&self, interval: Duration) {
        if self.sessions.is_none() {
            return;
        }
        loop {
            tokio::time::sleep(interval).await;
            // A load that needs memory waits, and does not take the model for one in use.
            let _no_load = self.loading.lock().await;
            for model in self.loaded() {
                let _ = tokio::task::spawn_blocking(move || model.save_sessions()).await;
            }
        }
    }

    /// Logs failures of prefix folders and decisions of tuners, of all models in memory, every
    /// `interval`.
    pub(crate) async fn log_engines(&self, interval: Duration) {
        loop {
            tokio::time::sleep(interval).await;
            self.loaded().iter().for_each(|model| model.log_engine());
        }
    }

    /// Takes the adapters of a new configuration for the models that exist. Other changes to models
    /// need a restart and are reported in the log. Returns the errors of adapters that cannot be
    /// used, which are left out.
    pub(crate) fn set_adapters(&self, entries: &[ModelEntry]) -> Vec<ruvllm::Error> {
        // A model that is loaded meanwhile would register the former ones.
        let _no_load = self.loading.blocking_lock();
        let is_same = self.slots.len() == entries.len()
            && self.slots.iter().zip(entries).all(|(slot, entry)| slot.entry.name == entry.name);
        if !is_same {
            tracing::warn!("reload: other models need a restart; their former list is kept");
        }
        let mut faults = Vec::new();
        for slot in &self.slots {
            let Some(entry) = entries.iter().find(|entry| entry.name == slot.entry.name) else { continue };
            let new: Arc<[_]> = entry.adapters.as_slice().into();
            let old = std::mem::replace(&mut *slot.adapters.write(), Arc::clone(&new));
            if let Some(model) = slot.state.read().clone() {
                faults.extend(model.set_adapters(&old, &new));
            }
        }
        faults
    }

    /// Unloads all models; those with requests end when these do.
    pub(crate) fn clear(&self) {
        for slot in &self.slots {
            let model = slot.state.write().take();
            drop(model);
        }
    }
}

/// Bytes that a model is expected to take of the machine's memory: none for a model that another
/// backend computes.
fn expected_bytes(entry: &ModelEntry) -> u64 {
    if entry.backend.is_some() { 0 } else { engine_bytes(entry) }
}

/// Bytes that a model takes in the engine, before it is loaded: those of its files and of its
/// budget for keys and values.
fn engine_bytes(entry: &ModelEntry) -> u64 {
    let weights = match &entry.source {
        ModelSource::Path(path) => file_bytes(path),
        ModelSource::Static { bytes, .. } => bytes.len() as u64,
        _ => 0,
    };
    weights + entry.options.kv_budget.unwrap_or(0) as u64
}

/// Size of a file, or of the files in a folder.
fn file_bytes(path: &Path) -> u64 {
    let Ok(entries) = path.read_dir() else { return path.metadata().map_or(0, |data| data.len()) };
    entries.flatten().filter_map(|entry| entry.path().metadata().ok()).map(|data| data.len()).sum()
}
