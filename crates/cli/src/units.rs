//! Number formats for the user: sizes, counts, measured values.

/// Formats a number of bytes as `30.0 MiB`, in the units of flags and progress bars.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Formats a count with its noun: `1 tensor`, `2 tensors`.
pub(crate) fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// Formats an age in its largest unit.
pub(crate) fn ago(seconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(365 * 86_400, "year"), (86_400, "day"), (3600, "hour"), (60, "minute")];
    match UNITS.into_iter().find(|&(unit, _)| seconds >= unit) {
        None => "now".to_owned(),
        Some((unit, name)) => {
            let n = seconds / unit;
            format!("{n} {name}{} ago", if n == 1 { "" } else { "s" })
        }
    }
}

/// Rounds a measured number to three decimals: more are noise.
pub(crate) fn rounded(x: f64) -> f64 {
    (x * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_keep_three_or_four_digits() {
        for (n, expected) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1000 B"),
            (1024, "1.0 KiB"),
            (31_502_048, "30.0 MiB"),
            (2 << 20, "2.0 MiB"),
            ((1 << 30) - 1, "1.0 GiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(bytes(n), expected);
        }
    }

    #[test]
    fn measured_numbers_have_three_decimals() {
        assert_eq!([9.520805000000001, 0.0004, 12.0].map(rounded), [9.521, 0.0, 12.0]);
    }

    #[test]
    fn nouns_have_their_number() {
        assert_eq!([0, 1, 2].map(|n| counted(n, "tensor")), ["0 tensors", "1 tensor", "2 tensors"]);
    }

    #[test]
    fn times_have_one_unit() {
        for (seconds, text) in [
            (0, "now"),
            (59, "now"),
            (60, "1 minute ago"),
            (7199, "1 hour ago"),
            (86_400 * 364, "364 days ago"),
            (86_400 * 800, "2 years ago"),
        ] {
            assert_eq!(ago(seconds), text);
        }
    }
}
