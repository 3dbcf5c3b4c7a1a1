//! Rate limits in the headers of responses, in OpenAI's form.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::bucket::BucketState;
use super::duration::short;
use super::tenant::LimitState;

/// Inserts `x-ratelimit-{limit,remaining,reset}-{requests,tokens}` for what is limited.
pub(crate) fn insert(state: &LimitState, headers: &mut HeaderMap) {
    const REQUESTS: [HeaderName; 3] = [
        HeaderName::from_static("x-ratelimit-limit-requests"),
        HeaderName::from_static("x-ratelimit-remaining-requests"),
        HeaderName::from_static("x-ratelimit-reset-requests"),
    ];
    const TOKENS: [HeaderName; 3] = [
        HeaderName::from_static("x-ratelimit-limit-tokens"),
        HeaderName::from_static("x-ratelimit-remaining-tokens"),
        HeaderName::from_static("x-ratelimit-reset-tokens"),
    ];
    for (names, bucket) in [(REQUESTS, state.requests), (TOKENS, state.tokens)] {
        let Some(BucketState { limit, remaining, reset }) = bucket else { continue };
        let [limit_name, remaining_name, reset_name] = names;
        headers.insert(limit_name, HeaderValue::from(limit));
        headers.insert(remaining_name, HeaderValue::from(remaining));
        if let Ok(value) = HeaderValue::from_str(&short(reset)) {
            headers.insert(reset_name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_what_is_limited_has_headers() {
        let bucket = BucketState { limit: 60, remaining: 59, reset: Duration::from_secs(1) };
        let mut headers = HeaderMap::new();
        insert(&LimitState { requests: Some(bucket), tokens: None }, &mut headers);
        assert_eq!(headers["x-ratelimit-limit-requests"], "60");
        assert_eq!(headers["x-ratelimit-remaining-requests"], "59");
        assert_eq!(headers["x-ratelimit-reset-requests"], "1s");
        assert_eq!(headers.len(), 3);
    }
}
