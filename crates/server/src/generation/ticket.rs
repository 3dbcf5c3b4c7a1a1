//! The account of one call of the API: caller, tokens, times, outcome. Observers count or record
//! it.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::extract::FromRequestParts;
use axum::http::Extensions;
use axum::http::request::Parts;
use ruvllm::{Completion, FinishReason, ServedAdapter, Timings};
use serde_json::Value;

use super::routed::{ArmRecord, Routed};
use crate::api_error::{ApiError, ErrorKind};
use crate::auth::Caller;
use crate::limits::Permit;
use crate::request_id::RequestId;

/// Interfaces that work with models; the names are labels of metrics and the witness log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Endpoint {
    Chat,
    Completions,
    Responses,
    Messages,
    Embeddings,
    Rerank,
    #[cfg(feature = "grpc")]
    GrpcGenerate,
    #[cfg(feature = "grpc")]
    GrpcEmbed,
}

impl Endpoint {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat_completions",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
            Self::Rerank => "rerank",
            #[cfg(feature = "grpc")]
            Self::GrpcGenerate => "grpc_generate",
            #[cfg(feature = "grpc")]
            Self::GrpcEmbed => "grpc_embed",
        }
    }

    /// Path of its route.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
            Self::Embeddings => "/v1/embeddings",
            Self::Rerank => "/v1/rerank",
            #[cfg(feature = "grpc")]
            Self::GrpcGenerate => "/ruvllm.v1.Inference/Generate",
            #[cfg(feature = "grpc")]
            Self::GrpcEmbed => "/ruvllm.v1.Inference/Embed",
        }
    }
}

/// Facts of a call, filled in while it runs.
#[derive(Debug, Clone)]
pub(crate) struct Observed {
    pub(crate) endpoint: Option<Endpoint>,
    /// Name of the model, once it is known.
    pub(crate) model: Option<Arc<str>>,
    pub(crate) adapters: Vec<ServedAdapter>,
    /// Parameters besides the prompt.
    pub(crate) parameters: Value,
    /// The prompt as it was sent; kept only if somebody asks for it.
    pub(crate) prompt: String,
    /// Generated text of each choice, likewise.
    pub(crate) outputs: Vec<String>,
    pub(crate) streamed: bool,
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) output_tokens: usize,
    pub(crate) drafted_tokens: usize,
    pub(crate) accepted_tokens: usize,
    /// Timings of the last prompt's first choice.
    pub(crate) timings: Timings,
    /// Time from the arrival of the call to its first token.
    pub(crate) first_token: Option<Duration>,
    /// Ends of the choices, in their order of arrival.
    pub(crate) finish_reasons: Vec<FinishReason>,
    /// True once the reply was computed as a whole.
    pub(crate) is_complete: bool,
    pub(crate) error: Option<ErrorKind>,
    /// Time of the arrival.
    pub(crate) started: Instant,
}

/// Facts about a call of a model, for its log line and its span.
#[derive(Debug)]
pub(crate) struct CallSummary {
    pub(crate) model: Option<Arc<str>>,
    pub(crate) tenant: Arc<str>,
    pub(crate) error: Option<ErrorKind>,
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) output_tokens: usize,
    pub(crate) first_token: Option<Duration>,
}

/// Place in the extensions of a request for the summary of its call.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallRecord(Arc<OnceLock<CallSummary>>);

impl CallRecord {
    /// Leaves the summary at the end of the call.
    fn set(&self, summary: CallSummary) {
        let _ = self.0.set(summary);
    }

    /// The summary of a call that has ended; `None` for a request that is no call of a model.
    pub(crate) fn get(&self) -> Option<&CallSummary> {
        self.0.get()
    }
}

/// A future without a name.
pub(crate) type Room<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Something that counts or records calls.
pub(crate) trait Observer: Send + Sync {
    /// True if it reads prompts and outputs.
    fn reads_text(&self) -> bool {
        false
    }

    /// Ready once there is room for another call.
    fn room(&self) -> Room<'_> {
        Box::pin(ready(()))
    }

    /// Tokens of a choice have arrived, `gap` after those before them.
    fn tokens(&self, _ticket: &Ticket, _tokens: usize, _gap: Duration) {}

    /// The call has ended, or its client is gone.
    fn ended(&self, ticket: &Ticket);
}

/// The observers of all calls: an extension of every request.
#[derive(Default)]
pub(crate) struct Observers {
    all: Vec<Arc<dyn Observer>>,
    /// True if one of them reads prompts and outputs, which are then kept to the end of a call.
    reads_text: bool,
}

impl Observers {
    pub(crate) fn new(all: Vec<Arc<dyn Observer>>) -> Self {
        let reads_text = all.iter().any(|observer| observer.reads_text());
        Self { all, reads_text }
    }
}

/// The account of one call; it is closed when it is dropped.
pub(crate) struct Ticket {
    observers: Arc<Observers>,
    pub(crate) caller: Caller,
    pub(crate) request_id: RequestId,
    pub(crate) observed: Observed,
    /// Decision of a router, if the call names one.
    pub(crate) routed: Option<Routed>,
    /// Place for the name of its arm.
    arm: ArmRecord,
    /// Place for the summary of the call.
    record: CallRecord,
    /// Place among the running requests of the caller.
    _permit: Option<Arc<Permit>>,
}

impl Ticket {
    pub(crate) fn set_endpoint(&mut self, endpoint: Endpoint) {
        self.observed.endpoint = Some(endpoint);
    }

    pub(crate) fn set_model(&mut self, name: &Arc<str>) {
        self.observed.model = Some(Arc::clone(name));
    }

    /// Notes the decision of a router.
    pub(crate) fn set_routed(&mut self, routed: Routed) {
        self.arm.set(&routed);
        self.routed = Some(routed);
    }

    pub(crate) fn set_streamed(&mut self) {
        self.observed.streamed = true;
    }

    /// Notes prompt and parameters of a JSON body, for a witness log. The fields `prompts` are the
    /// prompt, all others the parameters.
    pub(crate) fn set_request(&mut self, body: &[u8], prompts: &[&str]) {
        if !self.observers.reads_text {
            return;
        }
        if let Ok(Value::Object(fields)) = serde_json::from_slice(body) {
            self.set_fields(fields, prompts);
        }
    }

    /// As [`set_request`](Self::set_request), for a message of another form.
    #[cfg(feature = "grpc")]
    pub(crate) fn set_message(&mut self, message: &impl serde::Serialize, prompts: &[&str]) {
        if !self.observers.reads_text {
            return;
        }
        if let Ok(Value::Object(mut fields)) = serde_json::to_value(message) {
            let is_absent = |value: &Value| {
                value.is_null()
                    || value.as_array().is_some_and(Vec::is_empty)
                    || value.as_object().is_some_and(serde_json::Map::is_empty)
            };
            fields.retain(|_, value| !is_absent(value));
            self.set_fields(fields, prompts);
        }
    }

    fn set_fields(&mut self, mut fields: serde_json::Map<String, Value>, prompts: &[&str]) {
        let prompt = prompts.iter().filter_map(|&name| fields.shift_remove(name));
        let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        self.observed.prompt = prompt.map(text).collect();
        self.observed.parameters = Value::Object(fields);
    }

    pub(crate) fn set_error(&mut self, error: &ApiError) {
        self.observed.error.get_or_insert(error.kind);
    }

    /// Passes a result on that comes before the generation; an error closes the call.
    ///
    /// # Errors
    /// Error of the result, unchanged.
    pub(crate) fn check<T>(mut self, result: Result<T, ApiError>) -> Result<(Self, T), ApiError> {
        let value = result.inspect_err(|error| self.set_error(error))?;
        Ok((self, value))
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.observed.error.is_some()
    }

    /// Counts tokens of a choice that have arrived; `last` is the time of those before them.
    pub(crate) fn count_tokens(&mut self, tokens: usize, last: &mut Option<Instant>) {
        if tokens == 0 {
            return;
        }
        let now = Instant::now();
        self.observed.output_tokens += tokens;
        let started = self.observed.started;
        self.observed.first_token.get_or_insert_with(|| now - started);
        if let Some(before) = last.replace(now) {
            let gap = now - before;
            self.observers.all.iter().for_each(|observer| observer.tokens(self, tokens, gap));
        }
    }

    /// Adds the facts of a complete choice; the prompt counts with the first one of its choices.
    pub(crate) fn add_completion(&mut self, completion: &Completion, is_first: bool) {
        let observed = &mut self.observed;
        if is_first {
            observed.prompt_tokens += completion.prompt_tokens;
            observed.cached_tokens += completion.cached_tokens;
            observed.timings = completion.timings;
            observed.adapters.clone_from(&completion.adapters);
        }
        observed.drafted_tokens += completion.drafted_tokens;
        observed.accepted_tokens += completion.accepted_tokens;
        observed.finish_reasons.push(completion.finish_reason);
    }

    /// Adds generated text of a choice, for a witness log.
    pub(crate) fn add_text(&mut self, index: usize, text: &str) {
        if self.observers.reads_text {
            let outputs = &mut self.observed.outputs;
            outputs.resize_with(outputs.len().max(index + 1), String::new);
            outputs[index].push_str(text);
        }
    }

    /// Notes that the reply was computed as a whole.
    pub(crate) fn set_complete(&mut self) {
        self.observed.is_complete = true;
    }

    /// Sets the number of prompt tokens of a call without completions.
    pub(crate) fn set_prompt_tokens(&mut self, tokens: usize) {
        self.observed.prompt_tokens = tokens;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.caller.limits.charge_tokens(
            (self.observed.prompt_tokens + self.observed.output_tokens) as u64,
            Instant::now(),
        );
        let observers = Arc::clone(&self.observers);
        observers.all.iter().for_each(|observer| observer.ended(self));
        let observed = &self.observed;
        self.record.set(CallSummary {
            model: observed.model.clone(),
            tenant: Arc::clone(&self.caller.tenant),
            error: observed.error,
            prompt_tokens: observed.prompt_tokens,
            cached_tokens: observed.cached_tokens,
            output_tokens: observed.output_tokens,
            first_token: observed.first_token,
        });
    }
}

impl Ticket {
    /// Opens the account of a request with these extensions, once there is room to record it.
    ///
    /// # Errors
    /// 401 for a request that has not passed the gate.
    pub(crate) async fn open(extensions: &Extensions) -> Result<Self, ApiError> {
        let observers = extensions.get::<Arc<Observers>>().cloned().unwrap_or_default();
        for observer in &observers.all {
            observer.room().await;
        }
        let caller = extensions.get::<Caller>().cloned();
        Ok(Self {
            observers,
            caller: caller.ok_or_else(|| ApiError::unauthorized("the request has no API key"))?,
            request_id: extensions.get::<RequestId>().cloned().unwrap_or_default(),
            routed: None,
            arm: extensions.get::<ArmRecord>().cloned().unwrap_or_default(),
            record: extensions.get::<CallRecord>().cloned().unwrap_or_default(),
            _permit: extensions.get::<Arc<Permit>>().cloned(),
            observed: Observed {
                endpoint: None,
                model: None,
                adapters: Vec::new(),
                parameters: Value::Null,
                prompt: String::new(),
                outputs: Vec::new(),
                streamed: false,
                prompt_tokens: 0,
                cached_tokens: 0,
                output_tokens: 0,
                drafted_tokens: 0,
                accepted_tokens: 0,
                timings: Timings::default(),
                first_token: None,
                finish_reasons: Vec::new(),
                is_complete: false,
                error: None,
                started: Instant::now(),
            },
        })
    }
}

impl<S: Sync> FromRequestParts<S> for Ticket {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Self::open(&parts.extensions).await
    }
}
