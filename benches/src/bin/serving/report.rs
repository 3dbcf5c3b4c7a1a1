//! Numbers of measurements as JSON and as a table.

use std::time::Duration;

use serde_json::{Value, json};

use crate::load::{Overhead, Round};

/// The value below which `share` of the sorted values lie, in milliseconds.
pub(crate) fn percentile(sorted: &[Duration], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = (last as f64 * share).round() as usize;
    Some(sorted[at].as_secs_f64() * 1e3)
}

/// Numbers of one measurement.
pub(crate) fn numbers(round: &Round) -> Value {
    json!({
        "tokens_per_s": round.generated as f64 / round.seconds,
        "generated_tokens": round.generated,
        "prompt_tokens": round.prompt,
        "cached_tokens": round.cached,
        "seconds": round.seconds,
        "ttft_ms": quantiles(&round.first_token),
        "inter_token_ms": quantiles(&round.gaps),
    })
}

/// Numbers of a measurement of overhead.
pub(crate) fn overhead_numbers(found: &Overhead) -> Value {
    json!({ "health_ms": quantiles(&found.health), "one_token_ms": quantiles(&found.one_token) })
}

pub(crate) fn quantiles(sorted: &[Duration]) -> Value {
    json!({
        "count": sorted.len(),
        "p50": percentile(sorted, 0.5),
        "p99": percentile(sorted, 0.99),
        "max": percentile(sorted, 1.0),
    })
}

/// Median with extremes of a number over rounds.
pub(crate) fn spread(rounds: &[Value], pointer: &str) -> String {
    let mut values: Vec<f64> =
        rounds.iter().filter_map(|round| round.pointer(pointer).and_then(Value::as_f64)).collect();
    values.sort_unstable_by(f64::total_cmp);
    match values.as_slice() {
        [] => "-".to_owned(),
        [only] => figure(*only),
        [least, .., most] => {
            let half = values.len() / 2;
            let median = (values[half] + values[(values.len() - 1) / 2]) / 2.0;
            format!("{} ({} to {})", figure(median), figure(*least), figure(*most))
        }
    }
}

/// Three digits, or whole numbers above.
fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values() {
        let sorted: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(percentile(&sorted, 0.5), Some(51.0));
        assert_eq!(percentile(&sorted, 0.99), Some(99.0));
        assert_eq!(percentile(&sorted, 1.0), Some(100.0));
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    fn spreads_have_median_and_extremes() {
        let rounds = [json!({"a": 3.0}), json!({"a": 100.4}), json!({"a": 20.0})];
        assert_eq!(spread(&rounds, "/a"), "20.0 (3.00 to 100)");
        assert_eq!(spread(&rounds[..2], "/a"), "51.7 (3.00 to 100)");
        assert_eq!(spread(&rounds, "/b"), "-");
    }
}
