//! The reply as a stream of chunks.

use std::sync::Arc;

use ruvllm::ToolCallEvent;
use serde::Serialize;
use utoipa::ToSchema;

use super::logprobs::ChoiceLogprobs;
use crate::api_error::ApiError;
use crate::generation::{Event, EventKind, Piece, StreamWriter, write_event};
use crate::models::LoadedModel;
use crate::openai::{ChunkFields, ChunkHead, MemoryUse, Timings, finish_reason};

/// `chat.completion.chunk`
#[derive(Serialize, ToSchema)]
pub(crate) struct ChatChunk<'w> {
    #[serde(flatten)]
    fields: ChunkFields<'w>,
    choices: &'w [ChunkChoice<'w>],
}

#[derive(Serialize, ToSchema)]
#[schema(as = ChatChunkChoice)]
struct ChunkChoice<'w> {
    index: usize,
    delta: Delta<'w>,
    logprobs: Option<ChoiceLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize, ToSchema)]
struct Delta<'w> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'w str>,
    /// Thinking, under the name of DeepSeek and llama.cpp.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'w str>,
    /// The same under the name of vLLM and OpenRouter.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'w str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[CallDelta<'w>; 1]>,
}

#[derive(Serialize, ToSchema)]
struct CallDelta<'w> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'w str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: FunctionDelta<'w>,
}

#[derive(Serialize, ToSchema)]
struct FunctionDelta<'w> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'w str>,
    arguments: &'w str,
}

/// Writes the chunks of all choices.
pub(crate) struct ChunkWriter {
    head: ChunkHead,
    n: usize,
    with_logprobs: bool,
}

impl ChunkWriter {
    pub(crate) fn new(model: Arc<LoadedModel>, n: usize, with_logprobs: bool, with_usage: bool) -> Self {
        let head = ChunkHead::new("chatcmpl-", "chat.completion.chunk", model, with_usage);
        Self { head, n, with_logprobs }
    }

    /// Reports the lessons of the prompt.
    pub(crate) fn with_memory(self, memory: Option<MemoryUse>) -> Self {
        Self { head: self.head.with_memory(memory), ..self }
    }

    fn write(&self, out: &mut Vec<u8>, choice: ChunkChoice<'_>, timings: Option<Timings>) {
        write_event(out, None, &ChatChunk { fields: self.head.fields(timings), choices: &[choice] });
    }

    fn write_delta(&self, out: &mut Vec<u8>, index: usize, delta: Delta<'_>) {
        let choice = ChunkChoice { index, delta, logprobs: None, finish_reason: None };
        self.write(out, choice, None);
    }

    fn write_piece(&self, out: &mut Vec<u8>, index: usize, piece: &Piece, delta: Delta<'_>) {
        let has_logprobs = self.with_logprobs && !piece.logprobs.is_empty();
        let logprobs =
            has_logprobs.then(|| ChoiceLogprobs::new(&piece.logprobs, self.head.model.tokenizer()));
        self.write(out, ChunkChoice { index, delta, logprobs, finish_reason: None }, None);
    }

    fn write_call(&self, out: &mut Vec<u8>, index: usize, event: &ToolCallEvent) {
        let (call, id, name, arguments) = match event {
            ToolCallEvent::Begin { index, id, name } => (*index, Some(id), Some(name), ""),
            ToolCallEvent::Arguments { index, delta } => (*index, None, None, delta.as_str()),
            _ => return,
        };
        let delta = CallDelta {
            index: call,
            id: id.map(String::as_str),
            kind: id.map(|_| "function"),
            function: FunctionDelta { name: name.map(String::as_str), arguments },
        };
        self.write_delta(out, index, Delta { tool_calls: Some([delta]), ..Delta::default() });
    }
}

impl StreamWriter for ChunkWriter {
    fn begin(&mut self, out: &mut Vec<u8>) {
        for index in 0..self.n {
            let delta = Delta { role: Some("assistant"), content: Some(""), ..Delta::default() };
            self.write_delta(out, index, delta);
        }
    }

    fn event(&mut self, event: Event, out: &mut Vec<u8>) {
        let Event { index, kind } = event;
        match kind {
            EventKind::Text(piece) => {
                let delta = Delta { content: Some(&piece.text), ..Delta::default() };
                self.write_piece(out, index, &piece, delta);
            }
            EventKind::Reasoning(piece) => {
                let text = Some(piece.text.as_str());
                let delta = Delta { reasoning_content: text, reasoning: text, ..Delta::default() };
                self.write_piece(out, index, &piece, delta);
            }
            EventKind::ToolCall(call) => self.write_call(out, index, &call),
            EventKind::End(completion) => {
                self.head.usage.add(&completion, index == 0);
                let reason = Some(finish_reason(completion.finish_reason));
                let choice =
                    ChunkChoice { index, delta: Delta::default(), logprobs: None, finish_reason: reason };
                let timings = (index == 0).then(|| completion.timings.into());
                self.write(out, choice, timings);
            }
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        self.head.write_end(out);
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        write_event(out, None, &error.openai());
    }
}
