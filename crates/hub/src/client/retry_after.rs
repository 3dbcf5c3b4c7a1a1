//! How long a server asks to wait: seconds, or a date in one of the three forms of HTTP (RFC 9110, sections 5.6.7 and 10.2.3).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ureq::http::HeaderMap;

use super::header;

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The wait of `Retry-After`; nothing without one, or with one that is not understood.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = header(headers, "retry-after")?.trim();
    let seconds = text.parse().ok().or_else(|| {
        // The server's own clock, so that it does not matter whether the one here is right.
        let now = header(headers, "date").and_then(seconds_since_1970).unwrap_or_else(|| {
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
        });
        Some(seconds_since_1970(text)?.saturating_sub(now))
    })?;
    Some(Duration::from_secs(seconds))
}

/// Reads `Sun, 06 Nov 1994 08:49:37 GMT`, `Sunday, 06-Nov-94 08:49:37 GMT` or `Sun Nov  6 08:49:37 1994`. The weekday is not
/// looked at; dates before 1970 count as its begin.
fn seconds_since_1970(text: &str) -> Option<u64> {
    let mut words = text.split([' ', ',', '-']).filter(|word| !word.is_empty()).skip(1);
    let mut next = || words.next();
    let first = next()?;
    let (day, month, year, time) = if MONTHS.contains(&first) {
        let (day, time) = (next()?, next()?);
        (day, first, next()?, time)
    } else {
        (first, next()?, next()?, next()?)
    };
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let year = match (number(year, 9999)?, year.len()) {
        (year, 2) if year < 70 => 2000 + year,
        (year, 2) => 1900 + year,
        (year, _) => year,
    };
    let mut times = time.splitn(3, ':');
    let mut next = |highest| number(times.next()?, highest);
    let (hour, minute, second) = (next(23)?, next(59)?, next(60)?);
    let days = days_since_1970(year, month, number(day, 31)?);
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

/// A number of digits alone.
fn number(text: &str, highest: u64) -> Option<u64> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_number && *number <= highest)
}

/// Days of the Gregorian calendar. Years begin with March, so that a leap day is the last of its year.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    const BEFORE_1970: u64 = 719_469;
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.saturating_sub(1), month + 9) };
    let in_year = (153 * month + 2) / 5 + day;
    (year * 365 + year / 4 - year / 100 + year / 400 + in_year).saturating_sub(BEFORE_1970)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_three_forms_of_a_date_are_the_same_time() {
        for text in
            ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
        {
            assert_eq!(seconds_since_1970(text), Some(784_111_777), "{text}");
        }
        for (text, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Thu, 29 Feb 2024 12:34:56 GMT", 1_709_210_096),
            ("Fri, 01 Mar 2024 00:00:00 GMT", 1_709_251_200),
            ("Mon, 01 Mar 2100 00:00:00 GMT", 4_107_542_400),
            ("Mon, 31-Dec-68 23:59:60 GMT", 3_124_224_000),
            ("Sat, 01 Jan 0000 00:00:00 GMT", 0),
        ] {
            assert_eq!(seconds_since_1970(text), Some(seconds), "{text}");
        }
    }

    #[test]
    fn what_is_no_date_is_no_wait() {
        for text in [
            "",
            "soon",
            "Sun, 06 Nov 1994",
            "Sun, 06 Nov 1994 08:49 GMT",
            "Sun, 06 Brumaire 1994 08:49:37 GMT",
            "Sun, 32 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov +994 08:49:37 GMT",
            "Sun, 06 Nov 99999 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:00:00 GMT",
        ] {
            assert_eq!(seconds_since_1970(text), None, "{text}");
        }
    }

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
        assert_eq!(wait(&[later]), Some(Duration::ZERO), "long past by the clock here");
        assert_eq!(wait(&[now, ("retry-after", "tomorrow")]), None);
        assert_eq!(wait(&[now]), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "[A-Z][a-z]{2},? [0-9]{1,5}[ -](Nov|Feb|x) ?[0-9:]{0,9} [0-9:]{0,9}|\\PC*") {
            let _ = seconds_since_1970(&text);
        }
    }
}
