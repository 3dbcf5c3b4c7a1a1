//! State that all requests share, and the router.

mod router;

use std::sync::Arc;

use ruvllm::{Engine, Tenant};

pub(crate) use self::router::router;
use crate::api_error::ApiError;
use crate::auth::Caller;
use crate::generation::Observer;
use crate::models::ModelSet;

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
    observers: Vec<Box<dyn Observer>>,
    keeps_text: bool,
}

impl App {
    /// State without observers. `keeps_text`: some observer reads prompts and outputs.
    pub(crate) fn new(models: ModelSet, limits: RequestLimits) -> Self {
        Self { models: Arc::new(models), limits, observers: Vec::new(), keeps_text: false }
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
