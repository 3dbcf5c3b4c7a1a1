//! Trajectories: one request each, with the feedback that it got.

mod embedding;
mod feedback;
mod line;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

pub use embedding::Embedding;
pub use feedback::{Feedback, Signals};
pub(crate) use line::Line;

/// Largest number of tokens in a prompt, a response or a correction.
pub const MAX_TOKENS: usize = 1 << 20;
/// Bytes of the longest text of a prompt or response.
pub const MAX_TEXT_BYTES: usize = 16 << 20;
/// Bytes of the longest name: tenant, request id, session, adapter, route, KV policy.
pub const MAX_NAME_BYTES: usize = 256;
/// Largest number of adapters of a request.
pub const MAX_ADAPTERS: usize = 256;

/// Number of a stored trajectory, unique in its store and never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TrajectoryId(pub u64);

impl fmt::Display for TrajectoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Request as it was served: prompt, response and circumstances.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trajectory {
    /// Id of the request, unique within the tenant.
    pub request_id: String,
    /// Owner of the data.
    pub tenant: String,
    /// Session of the request.
    pub session: Option<String>,
    /// Digest of the model's weights, as the engine names it.
    pub model_digest: String,
    /// Token ids of the prompt.
    pub prompt_tokens: Vec<u32>,
    /// Token ids of the response.
    pub response_tokens: Vec<u32>,
    /// Text of the prompt, where the tenant has opted in.
    pub prompt_text: Option<String>,
    /// Text of the response, where the tenant has opted in.
    pub response_text: Option<String>,
    /// Pooled hidden state of the prompt.
    pub embedding: Option<Embedding>,
    /// Adapters that were applied.
    pub adapters: Vec<AdapterVersion>,
    /// Route that was chosen.
    pub route: Option<String>,
    /// Policy of the KV cache.
    pub kv_policy: Option<String>,
    /// Measured times.
    pub timings: Timings,
    /// Wall clock at the end of the request, in milliseconds since 1970.
    pub created_ms: u64,
}

/// Adapter and version that were applied to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdapterVersion {
    /// Name of the adapter.
    pub name: String,
    /// Its version.
    pub version: u64,
}

/// Times of a request; absent where not measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timings {
    /// Milliseconds in the queue.
    pub queue_ms: Option<f32>,
    /// Milliseconds to the first token.
    pub ttft_ms: Option<f32>,
    /// Milliseconds of decode.
    pub decode_ms: Option<f32>,
    /// Decode throughput in tokens per second.
    pub tokens_per_second: Option<f32>,
}

/// Trajectory in a store, with its feedback in the order in which it was attached.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredTrajectory {
    /// Number in the store.
    pub id: TrajectoryId,
    /// The request.
    pub trajectory: Trajectory,
    /// Feedback, the oldest first.
    pub feedback: Vec<Feedback>,
}

impl Trajectory {
    /// Checks names, sizes and times.
    ///
    /// # Errors
    /// [`Error::Record`] with the field.
    pub fn check(&self) -> Result<()> {
        check_name("tenant", &self.tenant)?;
        check_name("request_id", &self.request_id)?;
        check_name("model_digest", &self.model_digest)?;
        let names = [("session", &self.session), ("route", &self.route), ("kv_policy", &self.kv_policy)];
        for (field, name) in names {
            name.as_deref().map_or(Ok(()), |name| check_name(field, name))?;
        }
        check_len("prompt_tokens", self.prompt_tokens.len(), MAX_TOKENS)?;
        check_len("response_tokens", self.response_tokens.len(), MAX_TOKENS)?;
        for (field, text) in [("prompt_text", &self.prompt_text), ("response_text", &self.response_text)] {
            check_len(field, text.as_ref().map_or(0, String::len), MAX_TEXT_BYTES)?;
        }
        check_len("adapters", self.adapters.len(), MAX_ADAPTERS)?;
        self.adapters.iter().try_for_each(|adapter| check_name("adapters.name", &adapter.name))?;
        self.timings.check()
    }

    /// Bytes of the value and of what it points to.
    pub fn memory_bytes(&self) -> usize {
        let texts = [&self.session, &self.prompt_text, &self.response_text, &self.route, &self.kv_policy];
        let texts: usize = texts.iter().filter_map(|text| text.as_ref()).map(String::capacity).sum();
        let adapters: usize = self.adapters.iter().map(|adapter| adapter.name.capacity()).sum();
        size_of::<Self>()
            + self.request_id.capacity()
            + self.tenant.capacity()
            + self.model_digest.capacity()
            + texts
            + (self.prompt_tokens.capacity() + self.response_tokens.capacity()) * size_of::<u32>()
            + self.embedding.as_ref().map_or(0, Embedding::heap_bytes)
            + self.adapters.capacity() * size_of::<AdapterVersion>()
            + adapters
    }
}

impl Timings {
    fn check(&self) -> Result<()> {
        let times = [
            ("timings.queue_ms", self.queue_ms),
            ("timings.ttft_ms", self.ttft_ms),
            ("timings.decode_ms", self.decode_ms),
            ("timings.tokens_per_second", self.tokens_per_second),
        ];
        for (field, time) in times {
            if let Some(time) = time.filter(|time| !time.is_finite() || *time < 0.0) {
                let reason = format!("{time}; it must be finite and not negative");
                return Err(Error::Record { field, reason });
            }
        }
        Ok(())
    }
}

/// Checks a name: not empty, not too long, no control characters.
pub(crate) fn check_name(field: &'static str, name: &str) -> Result<()> {
    let reason = if name.is_empty() {
        "it is empty".to_owned()
    } else if name.len() > MAX_NAME_BYTES {
        format!("{} bytes; at most {MAX_NAME_BYTES}", name.len())
    } else if name.chars().any(char::is_control) {
        "it holds a control character".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::Record { field, reason })
}

fn check_len(field: &'static str, len: usize, max: usize) -> Result<()> {
    if len > max {
        return Err(Error::Record { field, reason: format!("length {len}; at most {max}") });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> Trajectory {
        Trajectory {
            request_id: "r".to_owned(),
            tenant: "t".to_owned(),
            model_digest: "m".to_owned(),
            ..Trajectory::default()
        }
    }

    #[test]
    fn bad_fields_are_named() {
        valid().check().expect("valid");
        let nan = Timings { ttft_ms: Some(f32::NAN), ..Timings::default() };
        let negative = Timings { queue_ms: Some(-1.0), ..Timings::default() };
        let adapter = AdapterVersion { name: String::new(), version: 1 };
        for (bad, field) in [
            (Trajectory { tenant: String::new(), ..valid() }, "tenant"),
            (Trajectory { request_id: "a\n".to_owned(), ..valid() }, "request_id"),
            (Trajectory { session: Some("x".repeat(257)), ..valid() }, "session"),
            (Trajectory { prompt_tokens: vec![0; MAX_TOKENS + 1], ..valid() }, "prompt_tokens"),
            (Trajectory { response_text: Some("x".repeat(MAX_TEXT_BYTES + 1)), ..valid() }, "response_text"),
            (Trajectory { timings: nan, ..valid() }, "timings.ttft_ms"),
            (Trajectory { timings: negative, ..valid() }, "timings.queue_ms"),
            (Trajectory { adapters: vec![adapter], ..valid() }, "adapters.name"),
        ] {
            let error = bad.check().expect_err(field);
            assert!(matches!(error, Error::Record { field: named, .. } if named == field), "{error}");
        }
    }
}
