//! OpenAI's interface: chat completions, completions, responses, embeddings, models.
//!
//! Fields, their order of precedence and the shapes of replies follow the published API reference;
//! fields that this server adds have the names of llama.cpp's server where it has them.

pub(crate) mod chat;
mod chunk;
mod common;
pub(crate) mod completions;
pub(crate) mod embeddings;
mod memory;
pub(crate) mod models;
mod one_or_many;
pub(crate) mod responses;
mod usage;

use self::chunk::{ChunkFields, ChunkHead};
#[cfg(feature = "grpc")]
pub(crate) use self::common::AdapterField;
pub(crate) use self::common::{Common, Target};
pub(crate) use self::memory::{MemoryField, MemoryUse, arm_name, text_of};
pub(crate) use self::one_or_many::OneOrMany;
pub(crate) use self::usage::{Timings, Usage};

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since the Unix epoch, for `created`.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Log-probability in JSON, which has no infinity: OpenAI writes this number for impossible tokens.
pub(crate) fn finite(logprob: f64) -> f64 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}

/// `finish_reason` of a choice.
pub(crate) fn finish_reason(reason: ruvllm::FinishReason) -> &'static str {
    match reason {
        ruvllm::FinishReason::Cancelled => "stop",
        reason => reason.name(),
    }
}

#[cfg(test)]
mod tests;
