//! The response object, whole and as it grows in a stream.

use ruvllm::{Completion, FinishReason, GenerateRequest, Logprobs, Tokenizer};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::request::{Echo, ReasoningParam};
use crate::openai::chat::{TokenLogprob, token_logprobs};
use crate::openai::now;
use crate::request_id::random_id;

/// `response`
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ResponseObject {
    id: String,
    object: &'static str,
    created_at: u64,
    completed_at: Option<u64>,
    pub(super) status: Status,
    pub(super) error: Option<ResponseError>,
    incomplete_details: Option<IncompleteDetails>,
    instructions: Option<String>,
    max_output_tokens: Option<usize>,
    #[schema(value_type = Object)]
    metadata: Map<String, Value>,
    model: String,
    pub(super) output: Vec<OutputItem>,
    parallel_tool_calls: bool,
    /// Null: responses are not kept.
    previous_response_id: Option<String>,
    reasoning: ReasoningParam,
    store: bool,
    background: bool,
    temperature: f32,
    text: Value,
    tool_choice: Value,
    tools: Vec<Value>,
    top_logprobs: usize,
    top_p: f32,
    truncation: &'static str,
    usage: Option<ResponseUsage>,
    user: Option<String>,
}

/// State of a response or an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

/// Error of a response whose stream had begun.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ResponseError {
    pub(super) code: &'static str,
    pub(super) message: String,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct IncompleteDetails {
    reason: &'static str,
}

/// Thinking, a message or a call.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputItem {
    /// `summary` is always empty: the thinking is in `content`.
    Reasoning {
        id: String,
        status: Status,
        summary: Vec<Value>,
        content: Vec<OutputPart>,
    },
    Message {
        id: String,
        status: Status,
        role: &'static str,
        content: Vec<OutputPart>,
    },
    FunctionCall {
        id: String,
        status: Status,
        call_id: String,
        name: String,
        arguments: String,
    },
}

/// Text of thinking or of a message.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputPart {
    ReasoningText { text: String },
    OutputText { text: String, annotations: Vec<Value>, logprobs: Vec<TokenLogprob> },
}

/// Numbers of tokens.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct ResponseUsage {
    input_tokens: usize,
    input_tokens_details: InputTokens,
    output_tokens: usize,
    output_tokens_details: OutputTokens,
    total_tokens: usize,
}

#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
struct InputTokens {
    cached_tokens: usize,
    /// Always 0: nobody pays for what the prefix cache keeps.
    cache_write_tokens: usize,
}

#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
struct OutputTokens {
    reasoning_tokens: usize,
}

impl From<&Completion> for ResponseUsage {
    fn from(completion: &Completion) -> Self {
        let (input_tokens, output_tokens) = (completion.prompt_tokens, completion.tokens.len());
        Self {
            input_tokens,
            input_tokens_details: InputTokens {
                cached_tokens: completion.cached_tokens,
                cache_write_tokens: 0,
            },
            output_tokens,
            output_tokens_details: OutputTokens { reasoning_tokens: completion.reasoning_tokens },
            total_tokens: input_tokens + output_tokens,
        }
    }
}

impl OutputPart {
    pub(super) fn new(text: &str, logprobs: Vec<TokenLogprob>) -> Self {
        Self::OutputText { text: text.to_owned(), annotations: Vec::new(), logprobs }
    }
}

impl OutputItem {
    /// Thinking.
    pub(super) fn reasoning(text: &str, status: Status) -> Self {
        let content = vec![OutputPart::ReasoningText { text: text.to_owned() }];
        Self::Reasoning { id: random_id("rs_"), status, summary: Vec::new(), content }
    }

    /// A message with a text and the log-probabilities of its tokens.
    pub(super) fn message(text: &str, logprobs: Vec<TokenLogprob>, status: Status) -> Self {
        let content = vec![OutputPart::new(text, logprobs)];
        Self::Message { id: random_id("msg_"), status, role: "assistant", content }
    }

    /// A call of a function.
    pub(super) fn call(call_id: &str, name: &str, arguments: &str, status: Status) -> Self {
        let (call_id, name, arguments) = (call_id.to_owned(), name.to_owned(), arguments.to_owned());
        Self::FunctionCall { id: random_id("fc_"), status, call_id, name, arguments }
    }

    pub(super) fn id(&self) -> &str {
        match self {
            Self::Reasoning { id, .. } | Self::Message { id, .. } | Self::FunctionCall { id, .. } => id,
        }
    }

    pub(super) fn set_status(&mut self, new: Status) {
        match self {
            Self::Reasoning { status, .. }
            | Self::Message { status, .. }
            | Self::FunctionCall { status, .. } => *status = new,
        }
    }

    /// Adds to the text of the thinking or the message, or to the arguments of the call.
    pub(super) fn push(&mut self, delta: &str, more: &[TokenLogprob]) {
        match self {
            Self::Reasoning { content, .. } | Self::Message { content, .. } => match content.first_mut() {
                Some(OutputPart::ReasoningText { text }) => text.push_str(delta),
                Some(OutputPart::OutputText { text, logprobs, .. }) => {
                    text.push_str(delta);
                    logprobs.extend_from_slice(more);
                }
                None => {}
            },
            Self::FunctionCall { arguments, .. } => arguments.push_str(delta),
        }
    }
}

impl ResponseObject {
    /// The response to a request, before there is output.
    pub(super) fn new(model: &str, echo: Echo, request: &GenerateRequest) -> Self {
        Self {
            id: random_id("resp_"),
            object: "response",
            created_at: now(),
            completed_at: None,
            status: Status::InProgress,
            error: None,
            incomplete_details: None,
            instructions: echo.instructions,
            max_output_tokens: echo.max_output_tokens,
            metadata: echo.metadata.unwrap_or_default(),
            model: model.to_owned(),
            output: Vec::new(),
            parallel_tool_calls: request.parallel_tool_calls,
            previous_response_id: None,
            reasoning: echo.reasoning.unwrap_or_default(),
            store: false,
            background: false,
            temperature: request.sampling.temperature,
            text: echo.text.unwrap_or_else(|| json!({"format": {"type": "text"}})),
            tool_choice: echo.tool_choice.unwrap_or_else(|| json!("auto")),
            tools: echo.tools.unwrap_or_default(),
            top_logprobs: echo.top_logprobs.unwrap_or_default(),
            top_p: request.sampling.top_p,
            truncation: "disabled",
            usage: None,
            user: echo.user,
        }
    }

    /// The response with its output.
    pub(super) fn complete(mut self, completion: &Completion, tokenizer: &Tokenizer) -> Self {
        let status = status_of(completion);
        let calls = completion.tool_calls.iter();
        let calls =
            calls.map(|call| OutputItem::call(&call.id, &call.name, &call.arguments, Status::Completed));
        let invalid = completion.invalid_tool_calls().iter().map(|(name, arguments)| {
            OutputItem::call(&random_id("call_"), name, arguments, Status::Incomplete)
        });
        let calls: Vec<_> = calls.chain(invalid).collect();
        if let Some(thinking) = completion.reasoning() {
            let status = if completion.is_thinking() { status } else { Status::Completed };
            self.output.push(OutputItem::reasoning(thinking, status));
        }
        if !completion.content().is_empty() || (calls.is_empty() && !completion.is_thinking()) {
            let text = completion.content();
            let logprobs = token_logprobs(of_text(completion, tokenizer), tokenizer);
            self.output.push(OutputItem::message(text, logprobs, status));
        }
        self.output.extend(calls);
        self.end(completion);
        self
    }

    /// Sets status and usage of a response that has its output.
    pub(super) fn end(&mut self, completion: &Completion) {
        self.status = status_of(completion);
        let is_cut = self.status == Status::Incomplete;
        self.incomplete_details = is_cut.then_some(IncompleteDetails { reason: "max_output_tokens" });
        self.completed_at = (!is_cut).then(now);
        self.usage = Some(completion.into());
    }
}

/// Log-probabilities of the tokens of the text between thinking and calls.
fn of_text<'c>(completion: &'c Completion, tokenizer: &Tokenizer) -> &'c [Logprobs] {
    let bytes_of =
        |position: &Logprobs| tokenizer.token_bytes(position.token.token).map_or(0, |bytes| bytes.len());
    let mut all = completion.logprobs.as_slice();
    if completion.reasoning_tokens > 0 {
        let mut before = completion.text.rfind(completion.content()).unwrap_or(0);
        while let Some((first, rest)) = all.split_first().filter(|_| before > 0) {
            before = before.saturating_sub(bytes_of(first));
            all = rest;
        }
    }
    if completion.tool_calls.is_empty() {
        return all;
    }
    let mut left = completion.content().len();
    let belongs = |position: &&Logprobs| {
        let is_text = left > 0;
        left = left.saturating_sub(bytes_of(position));
        is_text
    };
    &all[..all.iter().take_while(belongs).count()]
}

/// Status of a response, and of the item that was the last one.
pub(super) fn status_of(completion: &Completion) -> Status {
    match completion.finish_reason {
        FinishReason::Length => Status::Incomplete,
        _ => Status::Completed,
    }
}
