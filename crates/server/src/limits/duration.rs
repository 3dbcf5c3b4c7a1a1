//! Durations as text, in OpenAI's form.

use std::time::Duration;

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
}
