//! The reply that is not streamed.

use ruvllm::{Completion, Tokenizer, ToolCall};
use serde::Serialize;
use utoipa::ToSchema;

use super::logprobs::ChoiceLogprobs;
use crate::openai::{MemoryUse, Timings, Usage, finish_reason, now};
use crate::request_id::random_id;

/// `chat.completion`
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatCompletion {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<ChatChoice>,
    usage: Usage,
    timings: Timings,
    /// Lessons that matched, if the request asks for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryUse>,
}

#[derive(Debug, Serialize, ToSchema)]
struct ChatChoice {
    index: usize,
    message: Answer,
    logprobs: Option<ChoiceLogprobs>,
    finish_reason: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
struct Answer {
    role: &'static str,
    /// Null where there are calls alone.
    content: Option<String>,
    refusal: Option<()>,
    /// Thinking before the answer, under the name of DeepSeek and llama.cpp.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    /// The same under the name of vLLM and OpenRouter.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallObject>,
}

#[derive(Debug, Serialize, ToSchema)]
struct CallObject {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: FunctionObject,
}

#[derive(Debug, Serialize, ToSchema)]
struct FunctionObject {
    name: String,
    arguments: String,
}

impl From<&ToolCall> for CallObject {
    fn from(call: &ToolCall) -> Self {
        let ToolCall { id, name, arguments, .. } = call.clone();
        Self { id, kind: "function", function: FunctionObject { name, arguments } }
    }
}

impl ChatCompletion {
    /// The reply with all choices of a prompt.
    pub(crate) fn new(model: &str, completions: &[Completion], tokenizer: &Tokenizer) -> Self {
        let choice = |(index, completion): (usize, &Completion)| {
            let content = completion.content();
            let only_calls = content.is_empty() && !completion.tool_calls.is_empty();
            let reasoning = completion.reasoning().map(str::to_owned);
            let message = Answer {
                role: "assistant",
                content: (!only_calls).then(|| content.to_owned()),
                refusal: None,
                reasoning_content: reasoning.clone(),
                reasoning,
                tool_calls: completion.tool_calls.iter().map(CallObject::from).collect(),
            };
            let logprobs = &completion.logprobs;
            ChatChoice {
                index,
                message,
                logprobs: (!logprobs.is_empty()).then(|| ChoiceLogprobs::new(logprobs, tokenizer)),
                finish_reason: finish_reason(completion.finish_reason),
            }
        };
        Self {
            id: random_id("chatcmpl-"),
            object: "chat.completion",
            created: now(),
            model: model.to_owned(),
            choices: completions.iter().enumerate().map(choice).collect(),
            usage: Usage::of(completions, completions.len().max(1)),
            timings: completions.first().map(|first| first.timings.into()).unwrap_or_default(),
            memory: None,
        }
    }

    /// Reports the lessons of the prompt.
    pub(crate) fn with_memory(self, memory: Option<MemoryUse>) -> Self {
        Self { memory, ..self }
    }
}
