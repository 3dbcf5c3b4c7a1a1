//! Request and result of a generation.

use std::sync::Arc;
use std::time::Instant;

use ruvllm_adapters::{Adapter, ScaledAdapter};
use ruvllm_kv_cache::KvPolicy;
use ruvllm_memory::{PressurePolicy, Tenant};
use ruvllm_text::TokenId;
use ruvllm_text::chat::Message;
use ruvllm_text::reasoning::ReasoningFormat;
use ruvllm_text::tool_call::{ToolCall, ToolCallFormat};

use crate::adapter_choice::{AdapterChoice, ServedAdapter};
use crate::answer::{OutputParser, ParsedText};
#[cfg(feature = "structured-output")]
use crate::constraint::Constraint;
use crate::error::{Error, Result};
use crate::sampler::{Logprobs, SamplingParams};
use crate::setters::setters;
use crate::speculation::Speculation;
use crate::tools::ToolChoice;

/// Input of a generation.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Prompt {
    /// Text. BOS is added if the model wants it; special tokens written in the text are parsed.
    Text(String),
    /// Token ids, used as they are.
    Tokens(Vec<TokenId>),
    /// A conversation, rendered with the model's chat template. Special tokens written in a message
    /// are plain text.
    Chat {
        /// The messages so far.
        messages: Vec<Message>,
        /// Functions that the model may call, in the JSON form of the chat-completions API.
        tools: Option<serde_json::Value>,
    },
}

impl Prompt {
    /// A conversation without tools.
    pub fn chat(messages: impl Into<Vec<Message>>) -> Self {
        Self::Chat { messages: messages.into(), tools: None }
    }

    /// A conversation with tools: functions that the model may call.
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

/// A generation request.
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
    /// Name that the caller gives the request, 1 to 256 bytes: it comes back in
    /// [`Completion::id`] and in [`Error::InRequest`]. Nothing else depends on it. Default: none.
    pub id: Option<String>,
    /// The prompt.
    pub prompt: Prompt,
    /// Variables of the chat template besides those that it always has, for example
    /// `enable_thinking`. Their texts are plain text in the prompt, as those of messages. Nothing
    /// for prompts that are no conversation. Default: none.
    pub template_variables: serde_json::Map<String, serde_json::Value>,
    /// Maximum number of tokens to generate; `None` = up to the context length, 0 = none: then the
    /// prompt is computed only for [`prompt_logprobs`](Self::prompt_logprobs).
    pub max_tokens: Option<usize>,
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// Log-probabilities of each generated token and of so many most likely ones, 0 to 128, in
    /// [`Chunk::logprobs`](crate::Chunk::logprobs) and [`Completion::logprobs`]. They are those of
    /// the model: log-softmax of the raw logits, before constraint, penalties, bias, filters and
    /// temperature. Tokens that a constraint forces are then computed one by one. Default: none.
    pub logprobs: Option<usize>,
    /// Log-probabilities of each prompt token from the second on, and of so many most likely ones,
    /// 0 to 128, in [`Completion::prompt_logprobs`]: log-softmax of the raw logits, as
    /// [`logprobs`](Self::logprobs). The whole prompt is computed, also with
    /// [`max_tokens`](Self::max_tokens) 0; no prefix is reused, because cached tokens have no
    /// logits. Default: none.
    pub prompt_logprobs: Option<usize>,
    /// Stop sequences: texts that end the generation and are not part of the output.
    pub stop: Vec<String>,
    /// Continues after EOS and end-of-turn tokens, for measurements.
    pub ignore_eos: bool,
    /// Tenant charged for keys and values, within its quotas; from the pool of the engine's
    /// [`kv_store`](crate::Engine::kv_store). Prefix hits come from the tenant's own prefixes only,
    /// so that TTFT reveals nothing about prompts of other tenants. Default: the root.
    pub tenant: Tenant,
    /// First tokens of the prompt, in whole blocks, whose prefix is shared by all tenants. For
    /// system prompts that are no secret: TTFT shows that one was sent before. Default: 0.
    pub shared_tokens: usize,
    /// Id of the session that the request goes on with and leaves its sequence in, 1 to 256 bytes;
    /// made if the tenant has none: see [`Sessions`](crate::Sessions). Of several choices the first
    /// one does. Default: none.
    pub session: Option<String>,
    /// Adapters of this request with their scales: loaded with
    /// [`Engine::load_adapter`](crate::Engine::load_adapter) by the same engine, or names of its
    /// registry. Their updates add up, in their order. Empty (default):
    /// [`Engine::adapters`](crate::Engine::adapters).
    ///
    /// A name means the version of the submission, whatever replaces it afterwards, and all tokens
    /// are computed with one format of its factors. A cold adapter is loaded in the background,
    /// while the request waits and others are computed; [`Completion::adapters`] tells what served.
    ///
    /// Scales, combinations and gates ([`AdapterGate::over`](crate::AdapterGate::over)) take no
    /// memory. Prefix hits come from sequences with the same adapters, scales and gates, apart from
    /// those that change no keys and values ([`kv_digest`](crate::crates::adapters::kv_digest)).
    pub adapters: Vec<AdapterChoice>,
    /// KV-cache policy of the sequence: the engine's
    /// ([`Engine::kv_policy`](crate::Engine::kv_policy)), or one of
    /// [`EngineOptions::request_kv`](crate::EngineOptions::request_kv). Prefix hits come from
    /// sequences of the same policy. Default: the engine's.
    pub kv: Option<KvPolicy>,
    /// Policy under memory pressure. Default: the engine's.
    pub pressure: Option<PressurePolicy>,
    /// Reads prefixes from the prefix cache and leaves them in it. Default: true.
    pub cache_prefix: bool,
    /// Shortest prefix that is reused, in tokens: [`Completion::cached_tokens`] is 0 or at least
    /// this. A shorter hit, in the prefix cache or in the kept sequence of a conversation, is
    /// computed again; after preemption the limit does not apply. Default: 0.
    pub min_cache_tokens: usize,
    /// Priority among waiting requests; higher goes first. Default: 0.
    pub priority: i32,
    /// Time from which on the result is worthless: the request ends with
    /// [`Error::DeadlineExceeded`](crate::Error::DeadlineExceeded). Default: none.
    pub deadline: Option<Instant>,
    /// Speculative decoding: drafts of the next tokens, which change speed, never output. Default:
    /// the engine's.
    pub speculation: Option<Speculation>,
    /// Most tokens of thinking before the answer: after as many, the tokens that end it are forced,
    /// and the answer follows. 0 = no thinking: then the switches of the chat template for it
    /// (`enable_thinking`, `thinking`) are false, unless
    /// [`template_variables`](Self::template_variables) sets them, and thinking that the prompt
    /// opens is closed. No effect on models that do not think. Default: no limit.
    pub thinking_budget: Option<usize>,
    /// Format of the thinking. Default: in a conversation that of the chat template,
    /// [`ReasoningFormat::of_template`]; else none, and all of the output is text.
    pub reasoning_format: Option<ReasoningFormat>,
    /// Language of the answer: a schema, a grammar, a regular expression, choices. Thinking before
    /// it is free where the vocabulary has tokens for its markers; elsewhere there is none.
    /// Default: any text.
    #[cfg(feature = "structured-output")]
    pub constraint: Option<Constraint>,
    /// Tools of the prompt that the answer may call. Default: [`ToolChoice::Auto`], the model
    /// decides.
    pub tool_choice: ToolChoice,
    /// Allows several calls in one answer, if the format has them. Default: true.
    pub parallel_tool_calls: bool,
    /// Restricts calls to the names and schemas of the tools. Without it, calls of
    /// [`ToolChoice::Auto`] are as the model writes them. Default: true.
    pub constrain_tools: bool,
    /// Format of tool calls. Default: that of the chat template,
    /// [`ToolCallFormat::of_template`].
    pub tool_format: Option<ToolCallFormat>,
}

impl GenerateRequest {
    /// A request with default sampling, no stop sequences, and the context length as its only
    /// limit.
    pub fn new(prompt: impl Into<Prompt>) -> Self {
        Self {
            id: None,
            prompt: prompt.into(),
            template_variables: serde_json::Map::new(),
            max_tokens: None,
            sampling: SamplingParams::default(),
            logprobs: None,
            prompt_logprobs: None,
            stop: Vec::new(),
            ignore_eos: false,
            tenant: Tenant::root(),
            shared_tokens: 0,
            session: None,
            adapters: Vec::new(),
            kv: None,
            pressure: None,
            cache_prefix: true,
            min_cache_tokens: 0,
            priority: 0,
            deadline: None,
            speculation: None,
            thinking_budget: None,
            reasoning_format: None,
            #[cfg(feature = "structured-output")]
            constraint: None,
            tool_choice: ToolChoice::Auto,
            parallel_tool_calls: true,
            constrain_tools: true,
            tool_format: None,
        }
    }

    /// The tools of the prompt.
    pub(crate) fn tools(&self) -> Option<&serde_json::Value> {
        match &self.prompt {
            Prompt::Chat { tools, .. } => tools.as_ref().filter(|tools| !tools.is_null()),
            Prompt::Text(_) | Prompt::Tokens(_) => None,
        }
    }
}

setters! {
    GenerateRequest {
        set with_prompt(prompt: Prompt);
        set with_template_variables(template_variables: serde_json::Map<String, serde_json::Value>);
        some with_max_tokens(max_tokens: usize);
        set with_sampling(sampling: SamplingParams);
        some with_logprobs(logprobs: usize);
        some with_prompt_logprobs(prompt_logprobs: usize);
        set with_ignore_eos(ignore_eos: bool);
        set with_tenant(tenant: Tenant);
        set with_shared_tokens(shared_tokens: usize);
        some with_kv(kv: KvPolicy);
        some with_pressure(pressure: PressurePolicy);
        set with_cache_prefix(cache_prefix: bool);
        set with_min_cache_tokens(min_cache_tokens: usize);
        set with_priority(priority: i32);
        some with_deadline(deadline: Instant);
        set with_tool_choice(tool_choice: ToolChoice);
        set with_parallel_tool_calls(parallel_tool_calls: bool);
        set with_constrain_tools(constrain_tools: bool);
        some with_tool_format(tool_format: ToolCallFormat);
        some with_speculation(speculation: Speculation);
        some with_thinking_budget(thinking_budget: usize);
        some with_reasoning_format(reasoning_format: ReasoningFormat);
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

    /// Sets [`id`](Self::id).
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets [`session`](Self::session).
    #[must_use]
    pub fn with_session(mut self, id: impl Into<String>) -> Self {
        self.session = Some(id.into());
        self
    }

    /// Sets [`adapters`](Self::adapters) to loaded ones.
    #[must_use]
    pub fn with_adapters(mut self, adapters: Vec<ScaledAdapter>) -> Self {
        self.adapters = adapters.into_iter().map(AdapterChoice::Loaded).collect();
        self
    }

    /// Adds a name of the registry to [`adapters`](Self::adapters).
    #[must_use]
    pub fn with_named_adapter(mut self, name: impl Into<String>, scale: f32) -> Self {
        self.adapters.push(AdapterChoice::Named { name: name.into(), scale });
        self
    }

    /// Sets [`adapters`](Self::adapters) to one adapter as it was loaded, or to none.
    #[must_use]
    pub fn with_adapter(mut self, adapter: impl Into<Option<Arc<Adapter>>>) -> Self {
        self.adapters =
            adapter.into().map(|adapter| AdapterChoice::Loaded(adapter.into())).into_iter().collect();
        self
    }

    /// Sets the sampling seed: [`SamplingParams::seed`].
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.sampling.seed = Some(seed);
        self
    }

    /// Checks what needs no model.
    ///
    /// # Errors
    /// [`Error::IdLength`], [`Error::InvalidOption`].
    pub(crate) fn check(&self) -> Result<()> {
        for (name, top_n) in [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)] {
            if let Some(value) = top_n.filter(|&top_n| top_n > MOST_LOGPROBS) {
                return Err(Error::InvalidOption { name, value, expected: "at most 128" });
            }
        }
        self.session.as_deref().map_or(Ok(()), |id| check_id("session", id))?;
        self.id.as_deref().map_or(Ok(()), |id| check_id("request", id))
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

/// Most log-probabilities at a position besides that of the token.
const MOST_LOGPROBS: usize = 128;

/// Largest number of bytes in the id of a request or a session.
const ID_BYTES: usize = 256;

/// Checks the length of an id; `of` names its owner.
///
/// # Errors
/// [`Error::IdLength`].
pub(crate) fn check_id(of: &'static str, id: &str) -> Result<()> {
    match id.len() {
        1..=ID_BYTES => Ok(()),
        bytes => Err(Error::IdLength { of, bytes, most: ID_BYTES }),
    }
}

/// Reason that a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// EOS, end of turn, or a stop sequence.
    Stop,
    /// Token limit or context length reached.
    Length,
    /// The answer ended with tool calls.
    ToolCalls,
    /// Ended by the caller, through the cancel token or the text callback.
    Cancelled,
}

impl FinishReason {
    /// Name in JSON documents: `stop`, `length`, `tool_calls` or `cancelled`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::Cancelled => "cancelled",
        }
    }
}

impl std::fmt::Display for FinishReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Timings of a generation. Phases that did not happen are absent.
///
/// Load time is separate: [`Engine::load_time`](crate::Engine::load_time).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Timings {
    /// Time from the submission to the start of the request in milliseconds: encoding, the queue,
    /// and the load of its adapters.
    pub queue_ms: Option<f64>,
    /// Time to first token in milliseconds, encoding and prefill included.
    pub ttft_ms: Option<f64>,
    /// Prompt tokens per second of prefill, cached tokens not counted.
    pub prefill_tok_s: Option<f64>,
    /// Generated tokens per second, from the second token on.
    pub decode_tok_s: Option<f64>,
}

/// Outcome of the quality target of the KV policy.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct KvQuality {
    /// Latest tokens that stay hot, as the controller has set.
    pub hot_tokens: usize,
    /// Estimated relative error of attention output; absent before the first sample.
    pub error: Option<f32>,
    /// Number of error samples.
    pub samples: usize,
}

/// The result of a generation.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Completion {
    /// [`GenerateRequest::id`].
    pub id: Option<String>,
    /// Generated text: the pieces that the callback got, joined. Thinking and tool calls are part
    /// of it: [`content`](Self::content) is the text without them.
    pub text: String,
    /// Generated token ids, without EOS. After a stop sequence: up to and including the token that
    /// completed it.
    pub tokens: Vec<TokenId>,
    /// Log-probabilities at the positions of [`tokens`](Self::tokens), as many; empty unless
    /// [`GenerateRequest::logprobs`] asks for them.
    pub logprobs: Vec<Logprobs>,
    /// Log-probabilities of the prompt tokens: entry `i` is that of token `i + 1`, since nothing
    /// predicts the first one. Empty unless [`GenerateRequest::prompt_logprobs`] asks for them; of
    /// a request that was cancelled, those that were computed. Choices of a prompt share them.
    pub prompt_logprobs: Arc<[Logprobs]>,
    /// Number of tokens of the encoded prompt.
    pub prompt_tokens: usize,
    /// Ids of these tokens.
    pub prompt: Vec<TokenId>,
    /// Prompt tokens served from the prefix cache or an earlier turn.
    pub cached_tokens: usize,
    /// Reason that the generation ended.
    pub finish_reason: FinishReason,
    /// Stop sequence that ended the generation; `None` if something else did.
    pub stop_sequence: Option<String>,
    /// Sampling seed; the same request with this seed repeats the output.
    pub seed: u64,
    /// Durations and rates.
    pub timings: Timings,
    /// Outcome of the quality target; absent if the KV policy has none.
    pub kv_quality: Option<KvQuality>,
    /// Oldest tokens after the attention sinks that were dropped; only with
    /// [`PressurePolicy::DropOldest`].
    pub dropped_tokens: usize,
    /// Adapters of the registry that served, in the order of
    /// [`GenerateRequest::adapters`]; empty if the request ended before it had them.
    pub adapters: Vec<ServedAdapter>,
    /// Tokens of drafts that were verified; 0 without speculative decoding.
    pub drafted_tokens: usize,
    /// Drafted tokens that became output.
    pub accepted_tokens: usize,
    /// The sequence at the end; `None` if the request ended before it had one.
    pub(crate) sequence: Option<SequenceSize>,
    /// Tool calls of the answer, in their order; complete ones only.
    pub tool_calls: Vec<ToolCall>,
    /// Number of [`tokens`](Self::tokens) that are thinking, without its markers.
    pub reasoning_tokens: usize,
    /// Text outside of the calls; `None` if all of the output is text.
    pub(crate) parsed: Option<ParsedText>,
}

impl Completion {
    /// Generated text without thinking and tool calls.
    pub fn content(&self) -> &str {
        self.parsed.as_ref().map_or(&self.text, |parsed| &parsed.content)
    }

    /// Text of the thinking before the answer; `None` if there is none.
    pub fn reasoning(&self) -> Option<&str> {
        self.parsed.as_ref()?.reasoning.as_deref()
    }

    /// True if the output ended within the thinking: there is no answer then.
    pub fn is_thinking(&self) -> bool {
        self.parsed.as_ref().is_some_and(|parsed| parsed.is_thinking)
    }

    /// Calls that began and are not valid, because the output was cut or not constrained: function
    /// name and the part of the arguments that is there.
    pub fn invalid_tool_calls(&self) -> &[(String, String)] {
        self.parsed.as_ref().map_or(&[], |parsed| &parsed.invalid)
    }

    /// The answer as a message of the conversation, for the next prompt. Its thinking is in
    /// `reasoning_content`: the chat template decides where it is sent again.
    pub fn message(&self) -> Message {
        let mut message = match self.tool_calls.is_empty() {
            true => Message::assistant(self.content()),
            false => Message::assistant_with_calls(self.content(), &self.tool_calls),
        };
        if let Some(reasoning) = self.reasoning() {
            message.extra.insert("reasoning_content".to_owned(), reasoning.into());
        }
        message
    }

    /// Finds thinking and tool calls in the text.
    pub(crate) fn parse(&mut self, parser: &OutputParser) {
        let (calls, parsed) = parser.parse(&self.text);
        (self.tool_calls, self.parsed) = (calls, Some(parsed));
        if self.finish_reason == FinishReason::Stop && !self.tool_calls.is_empty() {
            self.finish_reason = FinishReason::ToolCalls;
        }
    }
}

impl Completion {
    /// Mean log-probability of the generated tokens; `None` without [`logprobs`](Self::logprobs).
    pub fn mean_logprob(&self) -> Option<f64> {
        let sum: f64 = self.logprobs.iter().map(|logprobs| logprobs.token.logprob).sum();
        (!self.logprobs.is_empty()).then(|| sum / self.logprobs.len() as f64)
    }
}

/// Size of a sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SequenceSize {
    /// Number of tokens.
    pub(crate) tokens: usize,
    /// Bytes of their keys and values.
    pub(crate) bytes: usize,
}
