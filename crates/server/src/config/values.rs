//! Values of the configuration with units: sizes in bytes, times in seconds.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Size in bytes: a number, or a text with `KiB`, `MiB` or `GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl Bytes {
    /// The size as a length in memory; larger ones are the largest length.
    pub fn len(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// True for a size of 0.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn parse(text: &str) -> Option<Self> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let shift = match unit {
            "" => 0,
            "KiB" => 10,
            "MiB" => 20,
            "GiB" => 30,
            _ => return None,
        };
        number.parse::<u64>().ok()?.checked_mul(1 << shift).map(Self)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfBytes;
        impl Visitor<'_> for OfBytes {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes like 1048576, \"512MiB\" or \"2GiB\"")
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Bytes, E> {
                Ok(Bytes(value))
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Bytes, E> {
                let refused = |_| E::invalid_value(de::Unexpected::Signed(value), &self);
                u64::try_from(value).map(Bytes).map_err(refused)
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Bytes, E> {
                Bytes::parse(value).ok_or_else(|| E::invalid_value(de::Unexpected::Str(value), &self))
            }
        }
        deserializer.deserialize_any(OfBytes)
    }
}

/// Time in seconds, whole or with a fraction; at most a year.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds(Duration);

impl Seconds {
    /// Most seconds of a setting: a year, far below what clocks can add.
    const MOST: f64 = 366.0 * 86_400.0;

    /// A whole number of seconds.
    pub const fn new(seconds: u32) -> Self {
        Self(Duration::from_secs(seconds as u64))
    }

    /// The time as a duration.
    pub fn duration(self) -> Duration {
        self.0
    }
}

impl From<Duration> for Seconds {
    fn from(duration: Duration) -> Self {
        Self(duration.min(Duration::from_secs_f64(Self::MOST)))
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.subsec_nanos() {
            0 => serializer.serialize_u64(self.0.as_secs()),
            _ => serializer.serialize_f64(self.0.as_secs_f64()),
        }
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfSeconds;
        impl Visitor<'_> for OfSeconds {
            type Value = Seconds;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("seconds, a number from 0 to 31622400 such as 30 or 0.5")
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Seconds, E> {
                if (0.0..=Seconds::MOST).contains(&value) {
                    return Ok(Seconds(Duration::from_secs_f64(value)));
                }
                Err(E::invalid_value(de::Unexpected::Float(value), &self))
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Seconds, E> {
                self.visit_f64(value as f64)
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Seconds, E> {
                self.visit_f64(value as f64)
            }
        }
        deserializer.deserialize_any(OfSeconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Both {
        size: Bytes,
        time: Seconds,
    }

    #[test]
    fn sizes_and_times_have_units() {
        for (size, bytes) in [("7", 7), ("\"7\"", 7), ("\"3KiB\"", 3 << 10), ("\"2GiB\"", 2 << 30)] {
            let both: Both = toml::from_str(&format!("size = {size}\ntime = 0.5")).unwrap();
            assert_eq!(both.size, Bytes(bytes));
            assert_eq!(both.time.duration(), Duration::from_millis(500));
        }
        for (size, time) in [
            ("-1", "1"),
            ("\"1MB\"", "1"),
            ("\"\"", "1"),
            ("1", "-1"),
            ("1", "nan"),
            ("1", "1e300"),
            ("1", "\"1\""),
            ("\"99999999999GiB\"", "1"),
        ] {
            let both = toml::from_str::<Both>(&format!("size = {size}\ntime = {time}"));
            assert!(both.is_err(), "{size} {time}");
        }
    }

    #[test]
    fn sizes_print_as_they_are_written() {
        for text in ["0", "1000", "1KiB", "32MiB", "2GiB", "1025KiB"] {
            assert_eq!(Bytes::parse(text).unwrap().to_string(), text);
        }
    }
}
