//! Temporal realism of data sets.

use serde_json::Value;

use crate::error::Result;

use super::{Sample, Score, Scorer};

/// Share of rows whose timestamp is credible: readable, not before the row before it, not in the
/// future ([`Sample::now_ms`]), and not after a gap of more than [`max_gap`](Self::max_gap) times
/// the median. The text is JSON lines or a JSON array of objects.
#[derive(Debug, Clone)]
pub struct TemporalRealism {
    /// Name of the timestamp property: RFC 3339 (UTC without an offset), a date, or Unix time in
    /// seconds, from 10^11 in milliseconds.
    pub field: String,
    /// Largest gap between rows, as a multiple of the median gap.
    pub max_gap: f64,
}

impl TemporalRealism {
    /// Makes a scorer for a property, with a largest gap of 100 medians.
    pub fn new(field: impl Into<String>) -> Self {
        Self { field: field.into(), max_gap: 100.0 }
    }

    /// Timestamps of the rows in milliseconds; `None` for rows without a readable one.
    fn timestamps(&self, text: &str) -> Vec<Option<i64>> {
        let read = |row: &Value| row.get(&self.field).and_then(timestamp);
        if let Ok(Value::Array(rows)) = serde_json::from_str(text) {
            return rows.iter().map(read).collect();
        }
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        lines.map(|line| serde_json::from_str(line).ok().as_ref().and_then(read)).collect()
    }
}

impl Scorer for TemporalRealism {
    fn name(&self) -> &'static str {
        "temporal"
    }

    fn score(&self, sample: &Sample<'_>) -> Result<Score> {
        let rows = self.timestamps(sample.text);
        let times: Vec<i64> = rows.iter().copied().flatten().collect();
        if times.len() < 3 {
            return Ok(Score::absent(format!("{} rows with a {}, need 3", times.len(), self.field)));
        }
        let mut gaps: Vec<i64> =
            times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).filter(|&gap| gap > 0).collect();
        gaps.sort_unstable();
        let median = gaps.get(gaps.len() / 2).copied();
        let (mut unreadable, mut backward, mut future, mut gap_faults, mut faulty) = (0, 0, 0, 0, 0);
        let mut previous: Option<i64> = None;
        for row in &rows {
            let Some(time) = *row else {
                unreadable += 1;
                faulty += 1;
                continue;
            };
            let gap = previous.map_or(0, |previous| time.saturating_sub(previous));
            let is_backward = gap < 0;
            let is_future = sample.now_ms.is_some_and(|now| i128::from(time) > i128::from(now));
            let is_gap = median.is_some_and(|median| gap as f64 > self.max_gap * median as f64);
            backward += usize::from(is_backward);
            future += usize::from(is_future);
            gap_faults += usize::from(is_gap);
            faulty += usize::from(is_backward || is_future || is_gap);
            previous = Some(time);
        }
        let mut evidence = vec![
            ("rows", rows.len() as f64),
            ("unreadable", unreadable as f64),
            ("backward", backward as f64),
            ("future", future as f64),
            ("long_gaps", gap_faults as f64),
        ];
        evidence.extend(median.map(|median| ("median_gap_s", median as f64 / 1e3)));
        Ok(Score::new(1.0 - faulty as f64 / rows.len() as f64, evidence))
    }
}

fn timestamp(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => {
            let number = number.as_f64()?;
            let ms = if number.abs() >= 1e11 { number } else { number * 1e3 };
            (ms.abs() < 1e17).then_some(ms as i64)
        }
        Value::String(text) => rfc3339_ms(text),
        _ => None,
    }
}

/// Unix time in milliseconds of `YYYY-MM-DD[(T| )HH:MM[:SS[.fraction]][Z|±HH:MM]]`.
fn rfc3339_ms(text: &str) -> Option<i64> {
    let text = text.trim();
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        let digits = text.get(range)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let at = |index: usize, allowed: &[u8]| text.as_bytes().get(index).is_some_and(|b| allowed.contains(b));
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    if !at(4, b"-")
        || !at(7, b"-")
        || !(1..=12).contains(&month)
        || !(1..=days_in(year, month)).contains(&day)
    {
        return None;
    }
    let midnight = days_from_civil(year, month, day) * 86_400_000;
    if text.len() == 10 {
        return Some(midnight);
    }
    let (hour, minute) = (number(11..13)?, number(14..16)?);
    if !at(10, b"Tt ") || !at(13, b":") || hour > 23 || minute > 59 {
        return None;
    }
    let mut rest = text.get(16..)?;
    let mut ms = 0;
    if rest.starts_with(':') {
        // 60 is a leap second.
        let second = number(17..19).filter(|&second| second <= 60)?;
        rest = &text[19..];
        if let Some(fraction) = rest.strip_prefix('.') {
            let len = fraction.bytes().take_while(u8::is_ascii_digit).count();
            let digits: String = fraction[..len].chars().chain("000".chars()).take(3).collect();
            ms = digits.parse::<i64>().ok().filter(|_| len > 0)?;
            rest = &fraction[len..];
        }
        ms += second * 1000;
    }
    let offset = match rest {
        "" | "Z" | "z" => 0,
        _ => {
            let base = text.len() - rest.len();
            let sign = if at(base, b"+") { 1 } else { -1 };
            if rest.len() != 6 || !at(base, b"+-") || !at(base + 3, b":") {
                return None;
            }
            sign * (number(base + 1..base + 3)? * 60 + number(base + 4..base + 6)?) * 60_000
        }
    };
    Some(midnight + (hour * 60 + minute) * 60_000 + ms - offset)
}

fn days_in(year: i64, month: i64) -> i64 {
    let next =
        if month == 12 { days_from_civil(year + 1, 1, 1) } else { days_from_civil(year, month + 1, 1) };
    next - days_from_civil(year, month, 1)
}

/// Days since 1970-01-01 in the Gregorian calendar. Years begin in March, so that the leap day is
/// their last day.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn score(rows: &[&str], now_ms: Option<u64>) -> Score {
        let text: String = rows.iter().map(|row| format!("{{\"t\": {row}}}\n")).collect();
        TemporalRealism::new("t").score(&Sample { now_ms, ..Sample::new(&text) }).unwrap()
    }

    #[test]
    fn dates_have_their_unix_time() {
        for (text, seconds) in [
            ("1970-01-01", 0),
            ("2000-02-29T00:00:00Z", 951_782_400),
            ("2026-11-26T12:37:26+02:00", 1_795_689_446),
            ("1969-12-31 23:59", -60),
        ] {
            assert_eq!(rfc3339_ms(text), Some(seconds * 1000), "{text}");
        }
        assert_eq!(rfc3339_ms("1970-01-01T00:00:01.5Z"), Some(1500));
        for bad in [
            "2025-02-29",
            "2026-13-01",
            "2026-11-26T24:00",
            "2026-1-1",
            "x",
            "2026-11-26T12:00:00+2",
            "\u{e9}",
        ] {
            assert_eq!(rfc3339_ms(bad), None, "{bad}");
        }
    }

    #[test]
    fn each_kind_of_fault_lowers_the_score() {
        let good = ["1000", "1010", "1020", "1031", "1040", "1050"];
        assert_eq!(score(&good, None).value, Some(1.0));
        assert_eq!(score(&good, Some(1_045_000)).get("future"), Some(1.0));
        for (at, bad, kind) in [
            (3, "500", "backward"),
            (5, "90000", "long_gaps"),
            (2, "\"soon\"", "unreadable"),
            (2, "null", "unreadable"),
        ] {
            let mut rows = good;
            rows[at] = bad;
            let score = score(&rows, None);
            assert_eq!((score.get(kind), score.value), (Some(1.0), Some(5.0 / 6.0)), "{kind}");
        }
        assert_eq!(score(&["1", "2"], None).value, None);
    }

    proptest! {
        #[test]
        fn days_increase_by_one(days in -700_000i64..2_000_000) {
            // Every day number has exactly one date: found by search from an estimate.
            let year = 1970 + days * 400 / 146_097;
            let dates = (year - 1..=year + 1).flat_map(|y| (1..=12).flat_map(move |m| {
                (1..=days_in(y, m)).map(move |d| days_from_civil(y, m, d))
            }));
            prop_assert_eq!(dates.filter(|&d| d == days).count(), 1);
        }

        #[test]
        fn any_text_is_read_without_panic(text in "[0-9TZ:+. é-]{0,30}") {
            let _ = rfc3339_ms(&text);
        }
    }
}
