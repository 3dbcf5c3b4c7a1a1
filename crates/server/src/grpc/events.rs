//! The output of a generation as a stream of messages.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use ruvllm::{Completion, FinishReason, ToolCallEvent};
use tonic::Status;

use super::proto::{self, generate_event::Event as Kind};
use super::status;
use crate::generation::{Event, EventKind, Generation, Piece};

/// Events of all choices. Dropping it, as when the client cancels, cancels their requests.
pub(super) struct EventStream {
    /// `None` after the end.
    generation: Option<Box<Generation>>,
    model: Arc<str>,
}

impl EventStream {
    pub(super) fn new(generation: Generation, model: Arc<str>) -> Self {
        Self { generation: Some(Box::new(generation)), model }
    }

    /// The message of an event; `None` for an event that has none.
    fn message(&self, event: Event) -> Option<proto::GenerateEvent> {
        let Event { index, kind } = event;
        let kind = match kind {
            EventKind::Text(piece) => Kind::Piece(piece.into()),
            EventKind::Reasoning(piece) => Kind::Piece(proto::Piece { is_thinking: true, ..piece.into() }),
            EventKind::ToolCall(event) => Kind::ToolCall(tool_call(event)?),
            EventKind::End(completion) => Kind::Finish(finish(&completion, &self.model)),
        };
        Some(proto::GenerateEvent { choice: count(index), event: Some(kind) })
    }
}

impl Stream for EventStream {
    type Item = Result<proto::GenerateEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while let Some(generation) = &mut self.generation {
            match ready!(generation.poll_next(context)) {
                Some(Ok(event)) => {
                    if let Some(message) = self.message(event) {
                        return Poll::Ready(Some(Ok(message)));
                    }
                }
                Some(Err(error)) => {
                    self.generation = None;
                    return Poll::Ready(Some(Err(status::of(&error))));
                }
                // Frees memory and counts the request before the client has read the last byte.
                None => self.generation = None,
            }
        }
        Poll::Ready(None)
    }
}

/// A number of tokens or choices, which memory bounds far below the limit of the type.
pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl From<Piece> for proto::Piece {
    fn from(piece: Piece) -> Self {
        let Piece { text, tokens, logprobs } = piece;
        Self { text, tokens, logprobs: logprobs.iter().map(Into::into).collect(), is_thinking: false }
    }
}

impl From<&ruvllm::Logprobs> for proto::Logprobs {
    fn from(logprobs: &ruvllm::Logprobs) -> Self {
        let token = |of: &ruvllm::TokenLogprob| proto::TokenLogprob { token: of.token, logprob: of.logprob };
        Self { token: Some(token(&logprobs.token)), top: logprobs.top.iter().map(token).collect() }
    }
}

/// Part of a call; `None` for its end.
fn tool_call(event: ToolCallEvent) -> Option<proto::ToolCallPart> {
    Some(match event {
        ToolCallEvent::Begin { index, id, name } => proto::ToolCallPart {
            index: count(index),
            id: Some(id),
            name: Some(name),
            arguments: String::new(),
        },
        ToolCallEvent::Arguments { index, delta } => {
            proto::ToolCallPart { index: count(index), id: None, name: None, arguments: delta }
        }
        _ => return None,
    })
}

fn finish(completion: &Completion, model: &str) -> proto::Finish {
    let reason = match completion.finish_reason {
        FinishReason::Stop => proto::FinishReason::Stop,
        FinishReason::Length => proto::FinishReason::Length,
        FinishReason::ToolCalls => proto::FinishReason::ToolCalls,
        FinishReason::Cancelled => proto::FinishReason::Cancelled,
    };
    let timings = crate::openai::Timings::from(completion.timings);
    proto::Finish {
        reason: reason.into(),
        stop_sequence: completion.stop_sequence.clone(),
        model: model.to_owned(),
        seed: completion.seed,
        usage: Some(proto::Usage {
            prompt_tokens: count(completion.prompt_tokens),
            cached_tokens: count(completion.cached_tokens),
            output_tokens: count(completion.tokens.len()),
            drafted_tokens: count(completion.drafted_tokens),
            accepted_tokens: count(completion.accepted_tokens),
            reasoning_tokens: count(completion.reasoning_tokens),
        }),
        timings: Some(proto::Timings {
            queue_ms: timings.queue_ms,
            ttft_ms: timings.ttft_ms,
            prompt_per_second: timings.prompt_per_second,
            predicted_per_second: timings.predicted_per_second,
        }),
    }
}
