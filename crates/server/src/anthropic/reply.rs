//! The reply that is not streamed, and the parts that streams have too.

use ruvllm::{Completion, FinishReason};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::request_id::random_id;

/// `message`
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MessageReply {
    pub(super) id: String,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) role: &'static str,
    pub(super) model: String,
    pub(super) content: Vec<ContentBlock>,
    /// Null at the beginning of a stream.
    pub(super) stop_reason: Option<&'static str>,
    pub(super) stop_sequence: Option<String>,
    pub(super) usage: MessageUsage,
}

/// A content block of an answer.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ContentBlock {
    /// Thinking, before the text.
    Thinking {
        thinking: String,
        /// Empty: this server takes thinking back as it is.
        signature: &'static str,
    },
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        #[schema(value_type = Object)]
        input: Map<String, Value>,
    },
}

/// Numbers of tokens. Those of the prompt that came from the prefix cache count apart.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct MessageUsage {
    pub(super) input_tokens: usize,
    pub(super) cache_creation_input_tokens: usize,
    pub(super) cache_read_input_tokens: usize,
    pub(super) output_tokens: usize,
}

/// Reply of `count_tokens`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenCount {
    pub(crate) input_tokens: usize,
}

impl MessageUsage {
    /// Before the prompt is computed.
    pub(super) fn of_prompt(tokens: usize) -> Self {
        Self {
            input_tokens: tokens,
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: 0,
            output_tokens: 0,
        }
    }

    pub(super) fn of(completion: &Completion) -> Self {
        let Completion { prompt_tokens, cached_tokens, tokens, .. } = completion;
        Self {
            input_tokens: prompt_tokens - cached_tokens,
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: *cached_tokens,
            output_tokens: tokens.len(),
        }
    }
}

impl MessageReply {
    /// A message without content.
    pub(super) fn empty(model: &str, usage: MessageUsage) -> Self {
        Self {
            id: random_id("msg_"),
            kind: "message",
            role: "assistant",
            model: model.to_owned(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage,
        }
    }

    /// The whole answer.
    pub(super) fn new(model: &str, completion: &Completion) -> Self {
        let thinking = completion
            .reasoning()
            .map(|thinking| ContentBlock::Thinking { thinking: thinking.to_owned(), signature: "" });
        let text = completion.content();
        let text = (!text.is_empty()).then(|| ContentBlock::Text { text: text.to_owned() });
        let calls = completion.tool_calls.iter().map(|call| ContentBlock::ToolUse {
            id: call.id.clone(),
            name: call.name.clone(),
            input: serde_json::from_str(&call.arguments).unwrap_or_default(),
        });
        let (stop_reason, stop_sequence) = stop_reason(completion);
        Self {
            content: thinking.into_iter().chain(text).chain(calls).collect(),
            stop_reason: Some(stop_reason),
            stop_sequence: stop_sequence.map(str::to_owned),
            ..Self::empty(model, MessageUsage::of(completion))
        }
    }
}

/// `stop_reason` and `stop_sequence`.
pub(super) fn stop_reason(completion: &Completion) -> (&'static str, Option<&str>) {
    match (completion.finish_reason, completion.stop_sequence.as_deref()) {
        (FinishReason::ToolCalls, _) => ("tool_use", None),
        (FinishReason::Length, _) => ("max_tokens", None),
        (_, Some(stop)) => ("stop_sequence", Some(stop)),
        (_, None) => ("end_turn", None),
    }
}
