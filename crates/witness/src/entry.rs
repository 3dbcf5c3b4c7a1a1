//! Entries: a request as it is recorded.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::digest::Digest;

/// A request: who asked what of which model, and the outcome.
///
/// A value that was not measured or does not apply is `None` and absent from the log. No field is
/// for secrets: a key is named, never shown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Id of the request.
    pub request_id: String,
    /// Tenant, a path such as `org/team`.
    pub tenant: String,
    /// Name of the API key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Endpoint, such as `/v1/chat/completions`.
    pub endpoint: String,
    /// Name of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Fingerprint of the model's weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Adapters of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<AdapterUse>,
    /// Parameters such as temperature and seed.
    #[serde(default)]
    pub parameters: Map<String, Value>,
    /// The prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Content>,
    /// The output; of several choices, all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Content>,
    /// Tokens of the prompt.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Prompt tokens served from the prefix cache.
    #[serde(default)]
    pub cached_tokens: u64,
    /// Tokens of all outputs.
    #[serde(default)]
    pub output_tokens: u64,
    /// Time in the queue.
    #[serde(default, with = "millis", skip_serializing_if = "Option::is_none")]
    pub queue_ms: Option<Duration>,
    /// Time to first token.
    #[serde(default, with = "millis", skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<Duration>,
    /// Time from the request to its end.
    #[serde(default, with = "millis", skip_serializing_if = "Option::is_none")]
    pub total_ms: Option<Duration>,
    /// Outcome of the request.
    pub outcome: Outcome,
    /// True if texts and parameters are left out because the line would be too long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shortened: bool,
}

/// Adapter of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdapterUse {
    /// Name.
    pub name: String,
    /// Version or digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Scale.
    pub scale: f32,
}

/// A prompt or an output: its digest and size, and its text if that is recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// SHA-256 of the text in UTF-8.
    pub sha256: Digest,
    /// Bytes of the text.
    pub bytes: u64,
    /// The text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl Content {
    /// Content without its text.
    pub fn hashed(text: &str) -> Self {
        Self { sha256: Digest::of(text.as_bytes()), bytes: text.len() as u64, text: None }
    }

    /// Content with its text.
    pub fn with_text(text: String) -> Self {
        let hashed = Self::hashed(&text);
        Self { text: Some(text), ..hashed }
    }
}

/// Outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Finish reason of each choice, such as `stop` and `length`.
    Finished(Vec<String>),
    /// Kind of the error, such as `rate_limit_error`.
    Failed(String),
    /// The caller left before the end.
    Cancelled,
}

impl Default for Outcome {
    fn default() -> Self {
        Self::Finished(Vec::new())
    }
}

impl Entry {
    /// The entry without texts and parameters.
    pub(crate) fn without_texts(&self) -> Self {
        let mut short = self.clone();
        short.prompt.iter_mut().chain(&mut short.outputs).for_each(|content| content.text = None);
        Self { parameters: Map::new(), shortened: true, ..short }
    }
}

/// Durations as milliseconds with three decimals.
mod millis {
    use std::time::Duration;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    // Serde passes fields by reference.
    #[allow(clippy::ref_option)]
    pub(super) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => serializer.serialize_f64((time.as_secs_f64() * 1e6).round() / 1e3),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let ms = Option::<f64>::deserialize(deserializer)?;
        ms.map(|ms| Duration::try_from_secs_f64(ms / 1e3).map_err(D::Error::custom)).transpose()
    }
}
