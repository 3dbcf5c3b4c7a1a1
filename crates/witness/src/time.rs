//! Times of lines: UTC in milliseconds, written as RFC 3339.

use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// 9999-12-31T23:59:59.999Z, the last time with a year of four digits.
const LAST: u64 = 253_402_300_799_999;

/// UTC time in milliseconds. Text form: `2026-11-23T18:05:00.250Z`, whose order is that of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Time of the system's clock.
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub fn unix_ms(self) -> u64 {
        self.0
    }
}

/// A clock before 1970 or after 9999 gives the first or last time there is.
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(LAST).min(LAST))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, ms) = (self.0 / 86_400_000, self.0 % 86_400_000);
        let (year, month, day) = date_of(days);
        let (hour, minute) = (ms / 3_600_000, ms / 60_000 % 60);
        let (second, ms) = (ms / 1000 % 60, ms % 1000);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
    }
}

/// Reads `2026-11-23`, `2026-11-23T18:05Z`, `2026-11-23T18:05:00Z` and `2026-11-23T18:05:00.250Z`.
impl FromStr for Timestamp {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or("expected a UTC time such as 2026-11-23 or 2026-11-23T18:05:00Z")
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

fn parse(text: &str) -> Option<Timestamp> {
    let (date, time) = match text.split_once('T') {
        Some((date, time)) => (date, time.strip_suffix('Z')?),
        None => (text, "00:00"),
    };
    let (year, rest) = date.split_once('-')?;
    let (month, day) = rest.split_once('-')?;
    let (year, month, day) = (number(year, 4)?, number(month, 2)?, number(day, 2)?);
    let (clock, ms) = time.split_once('.').unwrap_or((time, "000"));
    let (hour, rest) = clock.split_once(':')?;
    let (minute, second) = rest.split_once(':').unwrap_or((rest, "00"));
    let (hour, minute, second, ms) =
        (number(hour, 2)?, number(minute, 2)?, number(second, 2)?, number(ms, 3)?);
    let days = days_of(year, month, day)?;
    if date_of(days) != (year, month, day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    Some(Timestamp((((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + ms))
}

/// A number of exactly this many digits.
fn number(text: &str, digits: usize) -> Option<u64> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

/// Days since 1970-01-01 of a date in the Gregorian calendar (H. Hinnant, `days_from_civil`).
fn days_of(year: u64, month: u64, day: u64) -> Option<u64> {
    if year < 1970 || !(1..=12).contains(&month) {
        return None;
    }
    let (year, shifted) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * shifted + 2) / 5 + day.checked_sub(1)?;
    (era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year).checked_sub(719_468)
}

/// Date of a number of days since 1970-01-01 (`civil_from_days`).
fn date_of(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_written_and_read() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_001, "2000-02-29T00:00:00.001Z"),
            (1_795_457_100_250, "2026-11-23T18:05:00.250Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (LAST, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(Timestamp(ms).to_string(), text);
            assert_eq!(text.parse(), Ok(Timestamp(ms)));
        }
        for (short, whole) in [
            ("2026-11-23", "2026-11-23T00:00:00.000Z"),
            ("2026-11-23T18:05Z", "2026-11-23T18:05:00.000Z"),
            ("2026-11-23T18:05:09Z", "2026-11-23T18:05:09.000Z"),
        ] {
            assert_eq!(short.parse::<Timestamp>(), whole.parse());
        }
    }

    #[test]
    fn texts_that_are_no_time_are_refused() {
        for text in [
            "",
            "2026",
            "2026-13-01",
            "2026-00-01",
            "2026-02-29",
            "2026-01-00",
            "2026-1-01",
            "1969-12-31",
            "+026-01-01",
            "2026-01-01T24:00Z",
            "2026-01-01T23:60Z",
            "2026-01-01T23:59:60Z",
            "2026-01-01T23:59:59",
            "2026-01-01T23:59:59.1Z",
            "2026-01-01T23:59:59+01:00",
            "99999-01-01",
        ] {
            assert!(text.parse::<Timestamp>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn clocks_far_off_have_the_nearest_time() {
        assert_eq!(Timestamp::from(UNIX_EPOCH - Duration::from_secs(1)), Timestamp(0));
        let far = UNIX_EPOCH.checked_add(Duration::from_secs(400_000_000_000)).unwrap();
        assert_eq!(Timestamp::from(far), Timestamp(LAST));
    }

    #[test]
    fn every_day_of_the_calendar_has_its_number() {
        for days in 0..2_932_897 {
            let (year, month, day) = date_of(days);
            assert_eq!(days_of(year, month, day), Some(days));
        }
    }
}
