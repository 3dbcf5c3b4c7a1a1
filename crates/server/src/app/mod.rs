//! State that all requests share, and the router.

mod router;

use std::sync::Arc;

use ruvllm::{Engine, Tenant};

pub(crate) use self::router::router;
use crate::api_error::ApiError;
use crate::auth::Caller;
use crate::generation::Observer;
use crate::models::ModelSet;
use crate::telemetry::{Live, Metrics};

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

impl Default for RequestLimits {
    fn default() -> Self {
        Self { items: 4096, output_tokens: None, time: None, choices: 128 }
    }
}

/// State that all requests share.
pub(crate) struct App {
    pub(crate) models: Arc<ModelSet>,
    pub(crate) limits: RequestLimits,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) live: Live,
    observers: Vec<Box<dyn Observer>>,
    /// Some observer reads prompts and outputs.
    keeps_text: bool,
}

impl App {
    /// State whose one observer are the metrics.
    pub(crate) fn new(models: ModelSet, limits: RequestLimits) -> Self {
        let models = Arc::new(models);
        let metrics = Arc::new(Metrics::new(&models));
        let observers: Vec<Box<dyn Observer>> = vec![Box::new(Arc::clone(&metrics))];
        Self { models, limits, metrics, live: Live::default(), observers, keeps_text: false }
    }

    /// Adds an observer of calls; `reads_text` if it reads prompts and outputs.
    pub(crate) fn observe(&mut self, observer: Box<dyn Observer>, reads_text: bool) {
        self.observers.push(observer);
        self.keeps_text |= reads_text;
    }

    pub(crate) fn observers(&self) -> &[Box<dyn Observer>] {
        &self.observers
    }

    /// True if prompts and outputs are kept until the end of a call.
    pub(crate) fn keeps_text(&self) -> bool {
        self.keeps_text
    }

    /// The tenant of a caller in an engine's pool: the root for callers without a key.
    ///
    /// # Errors
    /// 400 for a name that the pool refuses.
    pub(crate) fn tenant(engine: &Engine, caller: &Caller) -> Result<Tenant, ApiError> {
        if caller.key.is_none() {
            return Ok(Tenant::root());
        }
        engine.kv_store().pool().tenant(&caller.tenant).map_err(|error| ApiError::internal(&error))
    }
}
