//! `Retry-After`: seconds, or a date in one of the three forms of HTTP (RFC 9110, sections 5.6.7
//! and 10.2.3).

use std::time::{Duration, SystemTime};

use httpdate::parse_http_date;
use ureq::http::HeaderMap;

use super::header;

/// The wait of `Retry-After`; nothing without one, or with one that is not understood.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = header(headers, "retry-after")?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = parse_http_date(text).ok()?;
    // The server's own clock, so that it does not matter whether the one here is right.
    let now = header(headers, "date").and_then(|date| parse_http_date(date).ok());
    Some(until.duration_since(now.unwrap_or_else(SystemTime::now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_counted_from_the_servers_clock() {
        let wait = |pairs: &[(&'static str, &str)]| {
            let header = |(name, text): &(&'static str, &str)| (name.parse().unwrap(), text.parse().unwrap());
            retry_after(&pairs.iter().map(header).collect())
        };
        let now = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(wait(&[now, ("retry-after", " 7 ")]), Some(Duration::from_secs(7)));
        let later = ("retry-after", "Sun, 06 Nov 1994 08:50:37 GMT");
        assert_eq!(wait(&[now, later]), Some(Duration::from_secs(60)));
        for form in ["Sunday, 06-Nov-94 08:50:37 GMT", "Sun Nov  6 08:50:37 1994"] {
            assert_eq!(wait(&[now, ("retry-after", form)]), Some(Duration::from_secs(60)), "{form}");
        }
        assert_eq!(wait(&[later]), Some(Duration::ZERO), "long past by the clock here");
        assert_eq!(wait(&[now, ("retry-after", "tomorrow")]), None);
        assert_eq!(wait(&[now]), None);
    }
}
