//! State that all requests share.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use ruvllm::crates::adapters::AdapterStore;

use crate::config::Config;
use crate::generation::{Observer, Observers};
use crate::models::ModelSet;
use crate::routing::Routers;
use crate::telemetry::{Live, Metrics};
use crate::witness::Witness;

/// Limits of single requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestLimits {
    /// Most messages of a conversation, prompts of a call and texts to embed.
    pub(crate) items: usize,
    /// Most output tokens of a choice; also those of a request that names no number.
    pub(crate) output_tokens: Option<usize>,
    /// Longest time of a request.
    pub(crate) time: Option<std::time::Duration>,
    /// Most choices of all prompts of a call.
    pub(crate) choices: usize,
}

impl RequestLimits {
    /// The limits of a configuration.
    pub(crate) fn new(config: &Config) -> Self {
        let limits = &config.limits;
        Self {
            items: limits.items,
            output_tokens: limits.output_tokens,
            time: Some(limits.request_timeout_s.duration()),
            choices: limits.choices,
        }
    }
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self { items: 4096, output_tokens: None, time: None, choices: 128 }
    }
}

/// State that all requests share.
pub(crate) struct App {
    pub(crate) models: Arc<ModelSet>,
    pub(crate) routers: Arc<Routers>,
    limits: RwLock<RequestLimits>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) live: Arc<Live>,
    /// Folder of the adapters that requests may load.
    adapters: Option<AdapterStore>,
    is_ready: AtomicBool,
    witness: Option<Arc<Witness>>,
}

impl App {
    /// State without a witness log.
    pub(crate) fn new(models: ModelSet, limits: RequestLimits) -> Self {
        let models = Arc::new(models);
        let metrics = Arc::new(Metrics::new(&models));
        let live = Arc::new(Live::new(Arc::clone(&models), Arc::clone(&metrics)));
        Self {
            models,
            routers: Arc::default(),
            limits: RwLock::new(limits),
            metrics,
            live,
            adapters: None,
            is_ready: AtomicBool::new(false),
            witness: None,
        }
    }

    /// The limits of a request that begins now.
    pub(crate) fn limits(&self) -> RequestLimits {
        *self.limits.read()
    }

    /// Replaces the limits, for requests from now on.
    pub(crate) fn set_limits(&self, limits: RequestLimits) {
        *self.limits.write() = limits;
    }

    /// Sets the folder whose adapters requests may load.
    pub(crate) fn set_adapter_folder(&mut self, folder: &Path) {
        self.adapters = Some(AdapterStore::new(folder));
    }

    /// The adapters that requests may load; `None` for none.
    pub(crate) fn adapter_store(&self) -> Option<&AdapterStore> {
        self.adapters.as_ref()
    }

    /// Sets the routers.
    pub(crate) fn set_routers(&mut self, routers: Routers) {
        self.routers = Arc::new(routers);
    }

    /// Tells load balancers to send requests, or no more of them.
    pub(crate) fn set_ready(&self, is_ready: bool) {
        self.is_ready.store(is_ready, Ordering::Release);
    }

    /// True between the loading of the kept models and the shutdown.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Acquire)
    }

    /// Records calls in a witness log.
    pub(crate) fn set_witness(&mut self, witness: &Arc<Witness>) {
        let writer = Arc::clone(witness.writer());
        self.metrics.watch_dropped_records(move || writer.status().dropped);
        self.witness = Some(Arc::clone(witness));
    }

    /// The observers of calls: metrics, routers, and the witness log if there is one.
    pub(crate) fn observers(&self) -> Observers {
        let witness = self.witness.iter().map(|witness| Arc::clone(witness) as Arc<dyn Observer>);
        let metrics = Arc::clone(&self.metrics) as Arc<dyn Observer>;
        let routers = Arc::clone(&self.routers) as Arc<dyn Observer>;
        Observers::new([metrics, routers].into_iter().chain(witness).collect())
    }
}
