//! The reply as a stream of chunks.

use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use super::Echo;
use super::logprobs::TextLogprobs;
use crate::api_error::ApiError;
use crate::generation::{Event, EventKind, StreamWriter, write_event};
use crate::models::LoadedModel;
use crate::openai::{ChunkFields, ChunkHead, MemoryUse, Timings, finish_reason};

/// `text_completion`, one piece of it.
#[derive(Serialize, ToSchema)]
pub(crate) struct TextChunk<'w> {
    #[serde(flatten)]
    fields: ChunkFields<'w>,
    choices: &'w [ChunkChoice<'w>],
}

#[derive(Serialize, ToSchema)]
#[schema(as = TextChunkChoice)]
struct ChunkChoice<'w> {
    text: &'w str,
    index: usize,
    logprobs: Option<TextLogprobs>,
    finish_reason: Option<&'static str>,
}

/// Writes the chunks of all choices.
pub(super) struct ChunkWriter {
    head: ChunkHead,
    echoes: Option<Vec<Echo>>,
    /// Choices of each prompt.
    n: usize,
    /// Characters written of each choice.
    offsets: Vec<usize>,
    with_logprobs: bool,
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
        let head = ChunkHead::new("cmpl-", "text_completion", model, with_usage);
        Self { head, echoes, n, offsets: vec![0; choices], with_logprobs }
    }

    /// Reports the lessons of the prompt.
    pub(super) fn with_memory(self, memory: Option<MemoryUse>) -> Self {
        Self { head: self.head.with_memory(memory), ..self }
    }

    fn write(&self, out: &mut Vec<u8>, choice: ChunkChoice<'_>, timings: Option<Timings>) {
        write_event(out, None, &TextChunk { fields: self.head.fields(timings), choices: &[choice] });
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
            self.write(out, ChunkChoice { text, index, logprobs: None, finish_reason: None }, None);
        }
    }

    fn event(&mut self, event: Event, out: &mut Vec<u8>) {
        let Event { index, kind } = event;
        match kind {
            EventKind::Text(piece) => {
                let mut logprobs = None;
                if self.with_logprobs {
                    let all: &mut TextLogprobs = logprobs.insert(TextLogprobs::default());
                    all.extend(&piece.logprobs, self.head.model.tokenizer(), &mut self.offsets[index]);
                }
                let choice = ChunkChoice { text: &piece.text, index, logprobs, finish_reason: None };
                self.write(out, choice, None);
            }
            // Completions have no tools.
            EventKind::Reasoning(_) | EventKind::ToolCall(_) => {}
            EventKind::End(completion) => {
                self.head.usage.add(&completion, index % self.n == 0);
                let reason = Some(finish_reason(completion.finish_reason));
                let choice = ChunkChoice { text: "", index, logprobs: None, finish_reason: reason };
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
