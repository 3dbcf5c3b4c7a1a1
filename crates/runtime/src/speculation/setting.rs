//! The setting of engines and requests.

use std::fmt;
use std::str::FromStr;

use super::policy::MOST_DRAFT;
use crate::error::{Error, Result};

/// Speculative decoding: drafts of the next tokens, verified in one pass. Output is the same with
/// any setting, token for token.
///
/// As text: `auto`, `off`, or a number from 1 to 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Speculation {
    /// As many tokens as measured acceptance and measured step times make worth it; none where it
    /// does not pay.
    #[default]
    Auto,
    /// No drafts.
    Off,
    /// So many tokens in each step, 1 to 8, whether or not it pays: for measurements.
    Fixed(usize),
}

impl Speculation {
    /// Refuses a number out of range.
    pub(crate) fn check(self) -> Result<()> {
        match self {
            Self::Fixed(value) if !(1..=MOST_DRAFT).contains(&value) => {
                Err(Error::InvalidOption { name: "speculation", value, expected: "1 to 8" })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Speculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Fixed(tokens) => write!(f, "{tokens}"),
        }
    }
}

impl FromStr for Speculation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let setting = match text {
            "auto" => Self::Auto,
            "off" => Self::Off,
            number => Self::Fixed(number.parse().unwrap_or(0)),
        };
        setting.check().map_err(|_| format!("{text:?} is not auto, off or a number from 1 to 8"))?;
        Ok(setting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_written() {
        for text in ["auto", "off", "1", "8"] {
            assert_eq!(text.parse::<Speculation>().unwrap().to_string(), text);
        }
        for text in ["", "0", "9", "-1", "on"] {
            assert!(text.parse::<Speculation>().is_err(), "{text}");
        }
    }
}
