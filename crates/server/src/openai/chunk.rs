//! Fields that the chunks of streamed chat completions and completions share.

use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use super::{MemoryUse, Timings, Usage, now};
use crate::generation::write_event;
use crate::models::LoadedModel;
use crate::request_id::random_id;

/// Fields of a chunk besides its choices.
#[derive(Serialize, ToSchema)]
pub(crate) struct ChunkFields<'h> {
    id: &'h str,
    object: &'static str,
    created: u64,
    model: &'h str,
    /// Absent unless the request asks for it; then null until the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
    /// Beside `timings`, if the request asks for lessons.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<MemoryUse>)]
    memory: Option<&'h MemoryUse>,
}

/// The chunk behind all choices.
#[derive(Serialize)]
struct LastChunk<'h> {
    #[serde(flatten)]
    fields: ChunkFields<'h>,
    choices: [(); 0],
}

/// Head of a stream: its chunks have one id and one time.
pub(crate) struct ChunkHead {
    id: String,
    object: &'static str,
    created: u64,
    pub(crate) model: Arc<LoadedModel>,
    with_usage: bool,
    memory: Option<MemoryUse>,
    /// Numbers of tokens of the choices that have ended.
    pub(crate) usage: Usage,
}

impl ChunkHead {
    /// Head of chunks of the type `object`, whose id begins with `prefix`.
    pub(crate) fn new(prefix: &str, object: &'static str, model: Arc<LoadedModel>, with_usage: bool) -> Self {
        let (id, created, usage) = (random_id(prefix), now(), Usage::default());
        Self { id, object, created, model, with_usage, memory: None, usage }
    }

    /// Reports lessons in the chunk that has the timings.
    pub(crate) fn with_memory(self, memory: Option<MemoryUse>) -> Self {
        Self { memory, ..self }
    }

    /// Fields of a chunk.
    pub(crate) fn fields(&self, timings: Option<Timings>) -> ChunkFields<'_> {
        ChunkFields {
            id: &self.id,
            object: self.object,
            created: self.created,
            model: self.model.name(),
            usage: self.with_usage.then_some(None),
            memory: timings.and(self.memory.as_ref()),
            timings,
        }
    }

    /// Writes the end of the stream, with the numbers of tokens if the request asks for them.
    pub(crate) fn write_end(&self, out: &mut Vec<u8>) {
        if self.with_usage {
            let fields = ChunkFields { usage: Some(Some(self.usage)), ..self.fields(None) };
            write_event(out, None, &LastChunk { fields, choices: [] });
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }
}
