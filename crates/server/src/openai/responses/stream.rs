//! The response as a stream of events.

use std::sync::Arc;

use ruvllm::ToolCallEvent;
use serde::Serialize;
use serde_json::{Value, json};

use super::reply::{OutputItem, OutputPart, ResponseError, ResponseObject, Status, status_of};
use crate::api_error::{ApiError, ErrorKind};
use crate::generation::{Event, EventKind, Piece, StreamWriter, write_event};
use crate::models::LoadedModel;
use crate::openai::chat::{TokenLogprob, token_logprobs};

/// An event; its name is its type.
#[derive(Serialize)]
struct Typed<'e> {
    #[serde(rename = "type")]
    name: &'e str,
    sequence_number: usize,
    #[serde(flatten)]
    data: &'e Value,
}

/// Writes the events of a response. The last item of its output is open while text or arguments
/// are added to it.
pub(super) struct EventWriter {
    response: ResponseObject,
    model: Arc<LoadedModel>,
    /// Log-probabilities of tokens whose text has not come yet.
    logprobs: Vec<TokenLogprob>,
    is_open: bool,
    sequence_number: usize,
}

impl EventWriter {
    pub(super) fn new(response: ResponseObject, model: Arc<LoadedModel>) -> Self {
        Self { response, model, logprobs: Vec::new(), is_open: false, sequence_number: 0 }
    }

    fn write(&mut self, name: &str, data: &Value, out: &mut Vec<u8>) {
        let event = Typed { name, sequence_number: self.sequence_number, data };
        self.sequence_number += 1;
        write_event(out, Some(name), &event);
    }

    fn write_response(&mut self, name: &str, out: &mut Vec<u8>) {
        let data = json!({"response": self.response});
        self.write(name, &data, out);
    }

    /// Number of the open item.
    fn index(&self) -> usize {
        self.response.output.len().saturating_sub(1)
    }

    fn begin_item(&mut self, item: OutputItem, out: &mut Vec<u8>) {
        self.end_item(Status::Completed, out);
        self.response.output.push(item);
        self.is_open = true;
        let (index, item) = (self.index(), &self.response.output[self.index()]);
        let id = item.id().to_owned();
        let mut added = json!({"output_index": index, "item": item});
        let part = match item {
            OutputItem::Reasoning { content, .. } | OutputItem::Message { content, .. } => {
                content.first().cloned()
            }
            OutputItem::FunctionCall { .. } => None,
        };
        if part.is_some() {
            added["item"]["content"] = json!([]);
        }
        self.write("response.output_item.added", &added, out);
        if let Some(part) = part {
            let data = json!({"item_id": id, "output_index": index, "content_index": 0, "part": part});
            self.write("response.content_part.added", &data, out);
        }
    }

    /// Ends the open item, if there is one.
    fn end_item(&mut self, status: Status, out: &mut Vec<u8>) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let index = self.index();
        let item = &mut self.response.output[index];
        item.set_status(status);
        let item = item.clone();
        match &item {
            OutputItem::Reasoning { id, content, .. } | OutputItem::Message { id, content, .. } => {
                for (number, part) in content.iter().enumerate() {
                    let at = json!({"item_id": id, "output_index": index, "content_index": number});
                    let mut data = at.clone();
                    let name = match part {
                        OutputPart::ReasoningText { text } => {
                            data["text"] = text.as_str().into();
                            "response.reasoning_text.done"
                        }
                        OutputPart::OutputText { text, logprobs, .. } => {
                            data["text"] = text.as_str().into();
                            data["logprobs"] = json!(logprobs);
                            "response.output_text.done"
                        }
                    };
                    self.write(name, &data, out);
                    data = at;
                    data["part"] = json!(part);
                    self.write("response.content_part.done", &data, out);
                }
            }
            OutputItem::FunctionCall { id, name, arguments, .. } => {
                let data =
                    json!({"item_id": id, "output_index": index, "name": name, "arguments": arguments});
                self.write("response.function_call_arguments.done", &data, out);
            }
        }
        self.write("response.output_item.done", &json!({"output_index": index, "item": item}), out);
    }

    /// Adds text to the open thinking or message, or arguments to the open call.
    fn write_delta(&mut self, delta: &str, out: &mut Vec<u8>) {
        let index = self.index();
        let Some(item) = self.response.output.last_mut() else { return };
        let logprobs = std::mem::take(&mut self.logprobs);
        item.push(delta, &logprobs);
        let mut data = json!({"item_id": item.id(), "output_index": index, "delta": delta});
        let name = match item {
            OutputItem::FunctionCall { .. } => "response.function_call_arguments.delta",
            OutputItem::Reasoning { .. } => {
                data["content_index"] = 0.into();
                "response.reasoning_text.delta"
            }
            OutputItem::Message { .. } => {
                data["content_index"] = 0.into();
                data["logprobs"] = json!(logprobs);
                "response.output_text.delta"
            }
        };
        self.write(name, &data, out);
    }

    /// Adds a piece; one without text is part of a character, or of a call.
    fn write_text(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        let last = self.response.output.last();
        let (is_message, is_call) = (
            matches!(last, Some(OutputItem::Message { .. })),
            matches!(last, Some(OutputItem::FunctionCall { .. })),
        );
        if !(is_call && piece.text.is_empty()) {
            self.logprobs.extend(token_logprobs(&piece.logprobs, self.model.tokenizer()));
        }
        if piece.text.is_empty() {
            return;
        }
        if !self.is_open || !is_message {
            self.begin_item(OutputItem::message("", Vec::new(), Status::InProgress), out);
        }
        self.write_delta(&piece.text, out);
    }

    /// Adds a piece of thinking, whose log-probabilities are left out.
    fn write_reasoning(&mut self, text: &str, out: &mut Vec<u8>) {
        if text.is_empty() {
            return;
        }
        let is_reasoning = matches!(self.response.output.last(), Some(OutputItem::Reasoning { .. }));
        if !self.is_open || !is_reasoning {
            self.begin_item(OutputItem::reasoning("", Status::InProgress), out);
        }
        self.write_delta(text, out);
    }

    fn write_call(&mut self, event: &ToolCallEvent, out: &mut Vec<u8>) {
        self.logprobs.clear();
        match event {
            ToolCallEvent::Begin { id, name, .. } => {
                self.begin_item(OutputItem::call(id, name, "", Status::InProgress), out);
            }
            ToolCallEvent::Arguments { delta, .. } => self.write_delta(delta, out),
            ToolCallEvent::Invalid { .. } => self.end_item(Status::Incomplete, out),
            _ => self.end_item(Status::Completed, out),
        }
    }
}

impl StreamWriter for EventWriter {
    fn begin(&mut self, out: &mut Vec<u8>) {
        self.write_response("response.created", out);
        self.write_response("response.in_progress", out);
    }

    fn event(&mut self, event: Event, out: &mut Vec<u8>) {
        match event.kind {
            EventKind::Reasoning(piece) => self.write_reasoning(&piece.text, out),
            EventKind::Text(piece) => self.write_text(&piece, out),
            EventKind::ToolCall(call) => self.write_call(&call, out),
            EventKind::End(completion) => {
                let has_answer =
                    self.response.output.iter().any(|item| !matches!(item, OutputItem::Reasoning { .. }));
                if !has_answer && !completion.is_thinking() {
                    self.begin_item(OutputItem::message("", Vec::new(), Status::InProgress), out);
                }
                self.end_item(status_of(&completion), out);
                self.response.end(&completion);
            }
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        match self.response.status {
            Status::Incomplete => self.write_response("response.incomplete", out),
            _ => self.write_response("response.completed", out),
        }
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        self.end_item(Status::Incomplete, out);
        let code = match error.kind {
            ErrorKind::InvalidRequest => "invalid_prompt",
            ErrorKind::RateLimit => "rate_limit_exceeded",
            _ => "server_error",
        };
        self.response.status = Status::Failed;
        self.response.error = Some(ResponseError { code, message: error.message.clone() });
        self.write_response("response.failed", out);
    }
}
