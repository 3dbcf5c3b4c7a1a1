//! The reply as a stream of chunks.

use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use super::Echo;
use super::logprobs::TextLogprobs;
use crate::api_error::ApiError;
use crate::generation::{Event, EventKind, StreamWriter, write_event};
use crate::models::LoadedModel;
use crate::openai::{Timings, Usage, finish_reason, now};
use crate::request_id::random_id;

/// `text_completion`, one piece of it.
#[derive(Serialize, ToSchema)]
pub(crate) struct TextChunk<'w> {
    id: &'w str,
    object: &'static str,
    created: u64,
    model: &'w str,
    choices: &'w [ChunkChoice<'w>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = TextChunkChoice)]
struct ChunkChoice<'w> {
    text: &'w str,
    index: usize,
    logprobs: Option<TextLogprobs>,
    finish_reason: Option<&'static str>,
}

/// Writes the chunks of all choices; they have one id and one time.
pub(super) struct ChunkWriter {
    id: String,
    created: u64,
    model: Arc<LoadedModel>,
    echoes: Option<Vec<Echo>>,
    /// Choices of each prompt.
    n: usize,
    /// Characters written of each choice.
    offsets: Vec<usize>,
    with_logprobs: bool,
    with_usage: bool,
    usage: Usage,
}

impl ChunkWriter {
    pub(super) fn new(
        model: Arc<LoadedModel>,
        echoes: Option<Vec<Echo>>,
        n: usize,
        choices: usize,
        with_logprobs: bool,
        with_usage: bool,
    ) -> Self {
        Self {
            id: random_id("cmpl-"),
            created: now(),
            model,
            echoes,
            n,
            offsets: vec![0; choices],
            with_logprobs,
            with_usage,
            usage: Usage::default(),
        }
    }

    fn write(
        &self,
        out: &mut Vec<u8>,
        choices: &[ChunkChoice<'_>],
        usage: Option<Usage>,
        timings: Option<Timings>,
    ) {
        let chunk = TextChunk {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: self.model.name(),
            choices,
            usage: self.with_usage.then_some(usage),
            timings,
        };
        write_event(out, None, &chunk);
    }
}

impl StreamWriter for ChunkWriter {
    fn begin(&mut self, out: &mut Vec<u8>) {
        let Some(echoes) = &self.echoes else { return };
        for (index, offset) in self.offsets.iter_mut().enumerate() {
            *offset = echoes[index / self.n].text.chars().count();
        }
        for index in 0..self.offsets.len() {
            let text = &echoes[index / self.n].text;
            self.write(out, &[ChunkChoice { text, index, logprobs: None, finish_reason: None }], None, None);
        }
    }

    fn event(&mut self, event: Event, out: &mut Vec<u8>) {
        let Event { index, kind } = event;
        match kind {
            EventKind::Text(piece) => {
                let mut logprobs = None;
                if let Ok(engine) = self.model.engine()
                    && self.with_logprobs
                {
                    let all: &mut TextLogprobs = logprobs.insert(TextLogprobs::default());
                    all.extend(&piece.logprobs, engine.tokenizer(), &mut self.offsets[index]);
                }
                let choice = ChunkChoice { text: &piece.text, index, logprobs, finish_reason: None };
                self.write(out, &[choice], None, None);
            }
            // Completions have no tools.
            EventKind::ToolCall(_) => {}
            EventKind::End(completion) => {
                self.usage.add(&completion, index % self.n == 0);
                let reason = Some(finish_reason(completion.finish_reason));
                let choice = ChunkChoice { text: "", index, logprobs: None, finish_reason: reason };
                let timings = (index == 0).then(|| completion.timings.into());
                self.write(out, &[choice], None, timings);
            }
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.with_usage {
            self.write(out, &[], Some(self.usage), None);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        write_event(out, None, &error.openai());
    }
}
