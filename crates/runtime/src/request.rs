//! Request and result of a generation.

use std::sync::Arc;

use ruvllm_adapters::Adapter;
use ruvllm_memory::{PressurePolicy, Tenant};
use ruvllm_text::TokenId;
use ruvllm_text::chat::Message;

#[cfg(feature = "structured-output")]
use crate::constraint::Constraint;
use crate::sampler::SamplingParams;
use crate::setters::setters;

/// Input of a generation.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Prompt {
    /// Text, encoded as the model's rules say: the beginning-of-text token is added where the model
    /// wants it, and special tokens written in the text are recognized.
    Text(String),
    /// Token ids, taken as they are.
    Tokens(Vec<TokenId>),
    /// A conversation that the model answers, through its chat template. Special tokens written in
    /// a message are plain text.
    Chat {
        /// The messages so far.
        messages: Vec<Message>,
        /// The functions that the model may call, in the JSON form that chat-completion servers
        /// take.
        tools: Option<serde_json::Value>,
    },
}

impl Prompt {
    /// A conversation that the model answers, without functions that it may call.
    pub fn chat(messages: impl Into<Vec<Message>>) -> Self {
        Self::Chat { messages: messages.into(), tools: None }
    }

    /// A conversation that the model answers, and the functions that it may call.
    pub fn chat_with_tools(messages: impl Into<Vec<Message>>, tools: serde_json::Value) -> Self {
        Self::Chat { messages: messages.into(), tools: Some(tools) }
    }
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// One generation.
///
/// # Examples
/// ```
/// use ruvllm::{GenerateRequest, Quota};
///
/// # fn request(engine: &ruvllm::Engine) -> Result<GenerateRequest, Box<dyn std::error::Error>> {
/// let pool = engine.kv_store().pool();
/// let team = pool.tenant("acme/search")?;
/// pool.set_quota(&team, Quota { hard_pages: 64, soft_pages: 48 })?;
/// Ok(GenerateRequest::new("Once upon a time").with_max_tokens(64).with_tenant(team))
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GenerateRequest {
    /// The prompt.
    pub prompt: Prompt,
    /// Largest number of tokens to generate: 0 gives none, `None` goes on to the end of the
    /// context.
    pub max_tokens: Option<usize>,
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// Texts that end the generation and are not part of it.
    pub stop: Vec<String>,
    /// Goes on after an end-of-text or end-of-turn token, for measurements.
    pub ignore_eos: bool,
    /// Tenant charged for the keys and values, of the pool of the engine's
    /// [`kv_store`](crate::Engine::kv_store), within its quotas. A tenant's prompts begin with
    /// prefixes of its own only, so that nobody learns from the time to the first token what
    /// another one has asked. Default: the root.
    pub tenant: Tenant,
    /// Tokens at the beginning of the prompt that prompts of all tenants may begin with, in whole
    /// blocks: an instruction that is no secret. Anybody who sends it can tell that it was sent
    /// before. Default: 0.
    pub shared_tokens: usize,
    /// Adapter of this request, loaded with [`Engine::load_adapter`](crate::Engine::load_adapter)
    /// by the same engine. Default: that of the engine, which usually has none.
    pub adapter: Option<Arc<Adapter>>,
    /// Policy under memory pressure. Default: the engine's.
    pub pressure: Option<PressurePolicy>,
    /// Language of the output: a schema, a grammar, a regular expression, choices. Default: any
    /// text.
    #[cfg(feature = "structured-output")]
    pub constraint: Option<Constraint>,
}

impl GenerateRequest {
    /// A request with default sampling, no stop strings and no token limit but the context.
    pub fn new(prompt: impl Into<Prompt>) -> Self {
        Self {
            prompt: prompt.into(),
            max_tokens: None,
            sampling: SamplingParams::default(),
            stop: Vec::new(),
            ignore_eos: false,
            tenant: Tenant::root(),
            shared_tokens: 0,
            adapter: None,
            pressure: None,
            #[cfg(feature = "structured-output")]
            constraint: None,
        }
    }
}

setters! {
    GenerateRequest {
        set with_prompt(prompt: Prompt);
        some with_max_tokens(max_tokens: usize);
        set with_sampling(sampling: SamplingParams);
        set with_ignore_eos(ignore_eos: bool);
        set with_tenant(tenant: Tenant);
        set with_shared_tokens(shared_tokens: usize);
        some with_adapter(adapter: Arc<Adapter>);
        some with_pressure(pressure: PressurePolicy);
    }
}

#[cfg(feature = "structured-output")]
setters! {
    GenerateRequest {
        some with_constraint(constraint: Constraint);
    }
}

impl GenerateRequest {
    /// Sets [`stop`](Self::stop).
    #[must_use]
    pub fn with_stop(mut self, texts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.stop = texts.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the seed of the draws: [`SamplingParams::seed`].
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.sampling.seed = Some(seed);
        self
    }
}

impl From<&str> for GenerateRequest {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for GenerateRequest {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl From<Prompt> for GenerateRequest {
    fn from(prompt: Prompt) -> Self {
        Self::new(prompt)
    }
}

impl From<&Self> for GenerateRequest {
    fn from(request: &Self) -> Self {
        request.clone()
    }
}

/// Reason that a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended the text or turn, or a stop string was met.
    Stop,
    /// The token limit or the end of the context was reached.
    Length,
    /// The caller ended it, through the cancel token or the text callback.
    Cancelled,
}

impl FinishReason {
    /// The word of JSON documents: `stop`, `length` or `cancelled`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
        }
    }
}

impl std::fmt::Display for FinishReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Timings of a generation. A phase that did not happen has no value. What did not happen was not
/// measured and is absent.
///
/// The time to load the model belongs to the engine:
/// [`Engine::load_time`](crate::Engine::load_time).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Timings {
    /// Milliseconds from the call to the first token, encoding and prefill included.
    pub ttft_ms: Option<f64>,
    /// Prompt tokens per second of prefill, without those that were cached.
    pub prefill_tok_s: Option<f64>,
    /// Tokens per second after the first one.
    pub decode_tok_s: Option<f64>,
}

/// Outcome of the policy's quality target for keys and values.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct KvQuality {
    /// Tokens at the end that stay hot, as many as the controller has come to.
    pub hot_tokens: usize,
    /// Its estimate of the relative error of attention's output; absent before the first sample.
    pub error: Option<f32>,
    /// Errors that were sampled.
    pub samples: usize,
}

/// The result of a generation.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Completion {
    /// The text: exactly the pieces that the callback got, joined.
    pub text: String,
    /// The generated ids, without a token that ended the text. With a stop string they go up to the
    /// token that completed it.
    pub tokens: Vec<TokenId>,
    /// Tokens of the encoded prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens served from the prefix cache or an earlier turn.
    pub cached_tokens: usize,
    /// Reason that it ended.
    pub finish_reason: FinishReason,
    /// The seed of the draws: repeating the request with it repeats the output.
    pub seed: u64,
    /// Durations and rates.
    pub timings: Timings,
    /// Outcome of the quality target; absent if the policy of keys and values has none.
    pub kv_quality: Option<KvQuality>,
    /// Tokens dropped behind the attention sinks, with [`PressurePolicy::DropOldest`] alone.
    pub dropped_tokens: usize,
}
