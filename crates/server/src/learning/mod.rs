//! Learning of a model in memory: its store, the recorder of requests, and the adapters of each
//! tenant (ADR-0083).
//!
//! Only tenants that the configuration allows are recorded and taught.

pub(crate) mod background;
pub(crate) mod figures;
pub(crate) mod memory;
pub(crate) mod recall;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use ruvllm::crates::sona::online::Standing;
use ruvllm::crates::sona::store::StoreOptions;
use ruvllm::crates::sona::trajectory::{AdapterVersion, Embedding, Timings, Trajectory};
use ruvllm::crates::sona::{self, LearningStore, Recorder, RecorderOptions};
use ruvllm::{Completion, Engine, FinishReason, KvPolicy, LearningOptions, OnlineAdapter, Tenant};

use self::figures::{LearningCounters, LearningFigures};
use crate::api_error::with_sources;
use crate::hex::hex;

/// Bytes of the page cache of a store.
const CACHE_BYTES: usize = 4 << 20;

/// The adapters of one tenant by name.
type Adapters = BTreeMap<String, Arc<OnlineAdapter>>;

/// Circumstances of a request that its completion does not have.
#[derive(Debug)]
pub(crate) struct Circumstances<'c> {
    /// Router and arm.
    pub(crate) route: Option<String>,
    /// Embedding of the prompt.
    pub(crate) embedding: Option<&'c [f32]>,
    /// KV policy of the request; `None` for that of the engine.
    pub(crate) kv: Option<KvPolicy>,
}

/// Learning of a model in memory.
pub(crate) struct ModelLearning {
    store: LearningStore,
    recorder: Recorder,
    options: LearningOptions,
    /// Digest of the weights as hexadecimal digits.
    digest: String,
    /// Adapters of each tenant that was seen, by the tenant's name in the store.
    tenants: Mutex<HashMap<String, Adapters>>,
    counters: LearningCounters,
}

impl ModelLearning {
    /// Opens the store of a model, a file in `folder` that is named by the digest of its weights.
    ///
    /// # Errors
    /// [`ruvllm::Error::Learning`] for a store that cannot be used; errors of the weights' digest.
    pub(crate) fn open(
        engine: &Engine,
        folder: &Path,
        learning: LearningOptions,
    ) -> Result<Self, ruvllm::Error> {
        let digest = hex(&engine.fingerprint()?);
        let path = folder.join(format!("{digest}.redb"));
        let failed = |source| ruvllm::Error::Learning { source };
        let create = std::fs::create_dir_all(folder);
        create.map_err(|error| failed(sona::Error::File { path: folder.to_owned(), error }))?;
        // A snapshot holds the ordinary positions: 10 MB with the built-in model.
        let options = StoreOptions { snapshots: 2, cache_bytes: CACHE_BYTES, ..StoreOptions::default() };
        let store = LearningStore::open(path, options).map_err(failed)?;
        let recorder = Recorder::start(store.clone(), RecorderOptions::default()).map_err(failed)?;
        let (tenants, counters) = Default::default();
        Ok(Self { store, recorder, options: learning, digest, tenants, counters })
    }

    /// The store.
    pub(crate) fn store(&self) -> &LearningStore {
        &self.store
    }

    /// The recorder.
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Counters for metrics.
    pub(crate) fn counters(&self) -> &LearningCounters {
        &self.counters
    }

    /// Values of the counters and of the recorder.
    pub(crate) fn figures(&self) -> LearningFigures {
        self.counters.read(&self.recorder.status())
    }

    /// Reads standing and harm of an adapter for metrics. Waits for a lesson that it learns.
    pub(crate) fn observe(&self, owner: &str, name: &str, adapter: &OnlineAdapter) {
        match adapter.status() {
            Ok(status) => {
                let is_quarantined = matches!(status.standing, Standing::Quarantined { .. });
                self.counters.set_adapter(owner, name, is_quarantined, status.harm);
            }
            Err(error) => {
                tracing::warn!(adapter = name, error = with_sources(&error), "an adapter cannot be read");
            }
        }
    }

    /// Records a choice of a request that is complete. A full queue drops and counts it.
    pub(crate) fn record(
        &self,
        engine: &Engine,
        tenant: &str,
        (request, choice): (&str, usize),
        Circumstances { route, embedding, kv }: Circumstances<'_>,
        completion: &Completion,
    ) {
        let Completion { prompt, tokens, timings, adapters, .. } = completion;
        let mut response = tokens.clone();
        if completion.finish_reason == FinishReason::Stop && completion.stop_sequence.is_none() {
            // The model ended its answer itself, which is part of what was generated.
            response.extend(engine.tokenizer().eos());
        }
        let float = |value: Option<f64>| value.map(|value| value as f32);
        let embedding = embedding.and_then(|values| Embedding::quantize(values).ok());
        let adapters = adapters.iter();
        let refused = self.recorder.record(Trajectory {
            request_id: choice_id(request, choice),
            tenant: tenant.to_owned(),
            model_digest: self.digest.clone(),
            prompt_tokens: prompt.clone(),
            response_tokens: response,
            adapters: adapters
                .map(|adapter| AdapterVersion { name: adapter.name.clone(), version: adapter.version })
                .collect(),
            timings: Timings {
                queue_ms: float(timings.queue_ms),
                ttft_ms: float(timings.ttft_ms),
                tokens_per_second: float(timings.decode_tok_s),
                ..Timings::default()
            },
            route,
            kv_policy: Some(kv.unwrap_or(*engine.kv_policy()).to_string()),
            embedding,
            created_ms: now_ms(),
            ..Trajectory::default()
        });
        if let Err(refusal) = refused {
            tracing::debug!(%refusal, request, "a request is not recorded for feedback");
        }
    }

    /// Registers the adapters of a tenant that the store has, so that requests can name them. Only
    /// the first call for a tenant does something.
    ///
    /// # Errors
    /// As [`Engine::online_adapter`]. The next call tries again.
    pub(crate) fn open_tenant(&self, engine: &Engine, tenant: &Tenant) -> Result<(), ruvllm::Error> {
        self.with_adapters(engine, tenant, |_| Ok(()))
    }

    /// The adapter `name` of a tenant, begun now if there is none.
    ///
    /// # Errors
    /// As [`Engine::online_adapter`].
    pub(crate) fn adapter(
        &self,
        engine: &Engine,
        tenant: &Tenant,
        name: &str,
    ) -> Result<Arc<OnlineAdapter>, ruvllm::Error> {
        self.with_adapters(engine, tenant, |adapters| {
            if let Some(adapter) = adapters.get(name) {
                return Ok(Arc::clone(adapter));
            }
            let adapter = self.open_adapter(engine, tenant, name)?;
            adapters.insert(name.to_owned(), Arc::clone(&adapter));
            Ok(adapter)
        })
    }

    /// All adapters of a tenant by name.
    ///
    /// # Errors
    /// As [`Engine::online_adapter`].
    pub(crate) fn adapters(&self, engine: &Engine, tenant: &Tenant) -> Result<Adapters, ruvllm::Error> {
        self.with_adapters(engine, tenant, |adapters| Ok(adapters.clone()))
    }

    /// Adapters of all tenants that were seen, by the tenant's name in the store and their own.
    pub(crate) fn opened(&self) -> Vec<(String, String, Arc<OnlineAdapter>)> {
        let tenants = self.tenants.lock();
        let adapters = tenants.iter().flat_map(|(tenant, adapters)| {
            let of_tenant = |(name, adapter): (&String, &Arc<OnlineAdapter>)| {
                (tenant.clone(), name.clone(), Arc::clone(adapter))
            };
            adapters.iter().map(of_tenant)
        });
        adapters.collect()
    }

    fn with_adapters<T>(
        &self,
        engine: &Engine,
        tenant: &Tenant,
        run: impl FnOnce(&mut Adapters) -> Result<T, ruvllm::Error>,
    ) -> Result<T, ruvllm::Error> {
        let mut tenants = self.tenants.lock();
        let owner = OnlineAdapter::owner(tenant);
        if let Some(adapters) = tenants.get_mut(owner) {
            return run(adapters);
        }
        let failed = |source| ruvllm::Error::Learning { source };
        let mut adapters = Adapters::new();
        for name in self.store.adapters(owner).map_err(failed)? {
            match self.open_adapter(engine, tenant, &name) {
                Ok(adapter) => _ = adapters.insert(name, adapter),
                // Others of the tenant go on; requests that name this one are refused.
                Err(error) => tracing::error!(
                    adapter = name,
                    tenant = owner,
                    error = with_sources(&error),
                    "a learned adapter cannot be used"
                ),
            }
        }
        run(tenants.entry(owner.to_owned()).or_insert(adapters))
    }

    fn open_adapter(
        &self,
        engine: &Engine,
        tenant: &Tenant,
        name: &str,
    ) -> Result<Arc<OnlineAdapter>, ruvllm::Error> {
        let adapter = engine.online_adapter(tenant, name, &self.store, self.options.clone())?;
        self.observe(OnlineAdapter::owner(tenant), name, &adapter);
        Ok(adapter)
    }
}

/// Wall clock in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |time| time.as_millis() as u64)
}

/// Name of a choice of a request in the store.
pub(crate) fn choice_id(request: &str, choice: usize) -> String {
    if choice == 0 { request.to_owned() } else { format!("{request}#{choice}") }
}
