//! Ids: of requests, from the caller or made here, and of the objects in replies.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

/// Header of the id, in requests and replies.
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The same under Anthropic's name, in replies.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Most characters of an id that a caller gives.
const MOST_CHARACTERS: usize = 128;

/// Characters of random ids.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789AB";

/// Id of a request: it is in the reply, the logs and the witness log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RequestId(Arc<str>);

impl RequestId {
    /// The caller's id if it is up to 128 visible ASCII characters, else a random one.
    fn of(headers: &HeaderMap) -> Self {
        let visible = |text: &&str| {
            (1..=MOST_CHARACTERS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let given = headers.get(X_REQUEST_ID).and_then(|value| value.to_str().ok()).filter(visible);
        Self(given.map_or_else(|| random_id("req_"), str::to_owned).into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A random id with a prefix, 24 characters long without it.
pub(crate) fn random_id(prefix: &str) -> String {
    let mut bytes = [0; 24];
    // Without a source of random numbers ids repeat; nothing but logs depends on them.
    let _ = getrandom::fill(&mut bytes);
    let characters = bytes.iter().map(|byte| char::from(ALPHABET[usize::from(byte & 63)]));
    prefix.chars().chain(characters).collect()
}

/// Layer that gives each request its id and repeats it in the reply.
pub(crate) async fn set(mut request: Request, next: Next) -> Response {
    let id = RequestId::of(request.headers());
    let value = HeaderValue::from_str(id.as_str()).ok();
    request.extensions_mut().insert(id);
    let mut response = next.run(request).await;
    if let Some(value) = value {
        response.headers_mut().insert(X_REQUEST_ID, value.clone());
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_callers_are_kept_if_they_are_plain() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(X_REQUEST_ID, HeaderValue::from_static(text));
            RequestId::of(&headers).as_str().to_owned()
        };
        assert_eq!(of("trace-17"), "trace-17");
        assert!(of("two words").starts_with("req_"));
        assert!(of("").starts_with("req_"));
        assert_ne!(RequestId::of(&HeaderMap::new()), RequestId::of(&HeaderMap::new()));
    }
}
