//! Rate limits in the headers of responses, in OpenAI's form.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::bucket::BucketState;
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

fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// Duration as OpenAI writes it: `20ms`, `1s`, `6m0s`, `2h0m5s`. Fractions are rounded up.
pub(crate) fn short(time: Duration) -> String {
    let milliseconds = time.as_nanos().div_ceil(1_000_000);
    if (1..1000).contains(&milliseconds) {
        return format!("{milliseconds}ms");
    }
    let seconds = whole_seconds(time);
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_form_of_openai() {
        for (milliseconds, text) in [
            (0, "0s"),
            (1, "1ms"),
            (999, "999ms"),
            (1000, "1s"),
            (1001, "2s"),
            (60_000, "1m0s"),
            (360_000, "6m0s"),
            (7_205_000, "2h0m5s"),
        ] {
            assert_eq!(short(Duration::from_millis(milliseconds)), text);
        }
        assert_eq!(short(Duration::from_nanos(1)), "1ms");
    }

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
