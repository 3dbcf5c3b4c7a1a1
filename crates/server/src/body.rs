//! Bodies of requests: JSON with errors that name the field.

use std::time::Duration;

use axum::body::{Bytes, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::header;
use serde::de::DeserializeOwned;

use crate::api_error::ApiError;
use crate::limits::is_too_deep;

/// Limits of a body; an extension of every request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimits {
    /// Most bytes.
    pub(crate) bytes: usize,
    /// Longest time until it has arrived.
    pub(crate) time: Duration,
    /// Deepest nesting of arrays and objects.
    pub(crate) depth: usize,
}

impl BodyLimits {
    /// Limits of a request that has not passed the gate.
    pub(crate) const DEFAULT: Self = Self { bytes: 1 << 20, time: Duration::from_secs(30), depth: 64 };
}

/// A JSON body as its type.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let JsonBytes(bytes) = JsonBytes::from_request(request, state).await?;
        parse(&bytes).map(Self)
    }
}

/// A JSON body as it was sent, for [`parse`].
///
/// Only `application/json` is taken: a web page of another origin can send that only if the server
/// allows its origin (CORS).
pub(crate) struct JsonBytes(pub(crate) Bytes);

impl<S: Sync> FromRequest<S> for JsonBytes {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        if !is_json(&request) {
            return Err(ApiError::media_type());
        }
        let limits = *request.extensions().get::<BodyLimits>().unwrap_or(&BodyLimits::DEFAULT);
        let too_large =
            || ApiError::too_large(format!("the body is larger than {} bytes, the limit here", limits.bytes));
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > limits.bytes as u64) {
            return Err(too_large());
        }
        let body = tokio::time::timeout(limits.time, to_bytes(request.into_body(), limits.bytes)).await;
        match body {
            Ok(Ok(bytes)) if is_too_deep(&bytes, limits.depth) => {
                let message =
                    format!("the body is nested deeper than {} levels, the limit here", limits.depth);
                Err(ApiError::invalid(message).with_code("invalid_json"))
            }
            Ok(Ok(bytes)) => Ok(Self(bytes)),
            // The limit is the only error of a connection that can still be answered.
            Ok(Err(_)) => Err(too_large()),
            Err(_) => Err(ApiError::slow_request()),
        }
    }
}

/// Reads a JSON text; the error names the field of the wrong type.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        if !error.is_data() {
            return ApiError::invalid(format!("the body is no valid JSON: {error}"))
                .with_code("invalid_json");
        }
        // The place in the text says less than the path.
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        match path.as_str() {
            "." => ApiError::invalid(message),
            path => ApiError::invalid_param(path, format!("{path}: {message}")).with_code("invalid_type"),
        }
    })?;
    deserializer.end().map_err(|error| {
        ApiError::invalid(format!("the body is no valid JSON: {error}")).with_code("invalid_json")
    })?;
    Ok(value)
}

fn is_json(request: &Request) -> bool {
    let value = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = value.and_then(|value| value.split(';').next()).map(|kind| kind.trim().to_ascii_lowercase());
    kind.is_some_and(|kind| kind == "application/json" || kind.ends_with("+json"))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Inner {
        #[allow(dead_code)]
        text: String,
    }

    #[derive(Debug, Deserialize)]
    struct Outer {
        #[allow(dead_code)]
        parts: Vec<Inner>,
    }

    #[test]
    fn the_error_names_the_field_of_the_wrong_type() {
        let error = parse::<Outer>(br#"{"parts": [{"text": "a"}, {"text": 3}]}"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("parts[1].text"));
        assert_eq!(error.message, "parts[1].text: invalid type: integer `3`, expected a string");
    }

    #[test]
    fn what_is_no_json_is_refused() {
        let deep = [b"[".repeat(10_000), b"]".repeat(10_000)].concat();
        let unclosed = br#"{"parts": ["#.to_vec();
        let invalid = b"{\"parts\": [{\"text\": \"\xff\"}]}".to_vec();
        for text in [&b""[..], b"{}x", b"nul", &unclosed, &deep, &invalid] {
            assert_eq!(parse::<serde_json::Value>(text).unwrap_err().code, Some("invalid_json"));
        }
    }
}
