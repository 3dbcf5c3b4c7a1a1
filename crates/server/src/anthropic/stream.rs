//! The reply as a stream of events.

use std::sync::Arc;

use ruvllm::ToolCallEvent;
use serde_json::{Value, json};

use super::reply::{MessageReply, MessageUsage, stop_reason};
use crate::api_error::ApiError;
use crate::generation::{Event, EventKind, StreamWriter, write_event};
use crate::models::LoadedModel;
use crate::request_id::RequestId;

/// Type of the content block that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    ToolUse,
}

/// Writes the events of a message: its blocks one after another, each begun and ended.
pub(crate) struct EventWriter {
    model: Arc<LoadedModel>,
    request_id: RequestId,
    prompt_tokens: usize,
    open: Option<Open>,
    /// Number of the open block, or of the next one.
    index: usize,
}

impl EventWriter {
    pub(crate) fn new(model: Arc<LoadedModel>, request_id: RequestId, prompt_tokens: usize) -> Self {
        Self { model, request_id, prompt_tokens, open: None, index: 0 }
    }

    fn begin_block(&mut self, kind: Open, block: &Value, out: &mut Vec<u8>) {
        self.end_block(out);
        let data = json!({"type": "content_block_start", "index": self.index, "content_block": block});
        write_event(out, Some("content_block_start"), &data);
        self.open = Some(kind);
    }

    fn end_block(&mut self, out: &mut Vec<u8>) {
        if self.open.take().is_some() {
            let data = json!({"type": "content_block_stop", "index": self.index});
            write_event(out, Some("content_block_stop"), &data);
            self.index += 1;
        }
    }

    fn write_delta(&self, delta: &Value, out: &mut Vec<u8>) {
        let data = json!({"type": "content_block_delta", "index": self.index, "delta": delta});
        write_event(out, Some("content_block_delta"), &data);
    }

    fn write_call(&mut self, event: &ToolCallEvent, out: &mut Vec<u8>) {
        match event {
            ToolCallEvent::Begin { id, name, .. } => {
                let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                self.begin_block(Open::ToolUse, &block, out);
            }
            ToolCallEvent::Arguments { delta, .. } => {
                self.write_delta(&json!({"type": "input_json_delta", "partial_json": delta}), out);
            }
            _ => self.end_block(out),
        }
    }
}

impl StreamWriter for EventWriter {
    fn begin(&mut self, out: &mut Vec<u8>) {
        let message = MessageReply::empty(self.model.name(), MessageUsage::of_prompt(self.prompt_tokens));
        write_event(out, Some("message_start"), &json!({"type": "message_start", "message": message}));
        write_event(out, Some("ping"), &json!({"type": "ping"}));
    }

    fn event(&mut self, event: Event, out: &mut Vec<u8>) {
        match event.kind {
            EventKind::Reasoning(piece) => {
                if self.open != Some(Open::Thinking) {
                    let block = json!({"type": "thinking", "thinking": "", "signature": ""});
                    self.begin_block(Open::Thinking, &block, out);
                }
                self.write_delta(&json!({"type": "thinking_delta", "thinking": piece.text}), out);
            }
            EventKind::Text(piece) if piece.text.is_empty() => {}
            EventKind::Text(piece) => {
                if self.open != Some(Open::Text) {
                    self.begin_block(Open::Text, &json!({"type": "text", "text": ""}), out);
                }
                self.write_delta(&json!({"type": "text_delta", "text": piece.text}), out);
            }
            EventKind::ToolCall(call) => self.write_call(&call, out),
            EventKind::End(completion) => {
                self.end_block(out);
                let (reason, sequence) = stop_reason(&completion);
                let data = json!({
                    "type": "message_delta",
                    "delta": {"stop_reason": reason, "stop_sequence": sequence},
                    "usage": MessageUsage::of(&completion),
                });
                write_event(out, Some("message_delta"), &data);
            }
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        write_event(out, Some("message_stop"), &json!({"type": "message_stop"}));
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        write_event(out, Some("error"), &error.anthropic(self.request_id.as_str()));
    }
}
