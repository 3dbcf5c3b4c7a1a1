//! Typed, range-checked access to the hyperparameters of one architecture. Knows no key by itself.

use std::ops::RangeInclusive;

use gguf_rs_lite::{Array, Metadata, Value};

use crate::error::{Error, Result};

/// The metadata keys that start with the architecture's name.
pub(crate) struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

/// What a real-valued hyperparameter may be. NaN and infinities never are.
#[derive(Clone, Copy)]
pub(crate) enum Real {
    /// Any.
    Finite,
    /// Greater than zero.
    Positive,
    /// Greater than one.
    AboveOne,
    /// Zero or greater.
    NotNegative,
    /// Greater than zero and at most the number.
    PositiveUpTo(f32),
}

impl Real {
    fn allows(self, value: f32) -> bool {
        value.is_finite()
            && match self {
                Self::Finite => true,
                Self::Positive => value > 0.0,
                Self::AboveOne => value > 1.0,
                Self::NotNegative => value >= 0.0,
                Self::PositiveUpTo(max) => value > 0.0 && value <= max,
            }
    }

    fn describe(self) -> String {
        match self {
            Self::Finite => "a finite number".into(),
            Self::Positive => "a finite number above 0".into(),
            Self::AboveOne => "a finite number above 1".into(),
            Self::NotNegative => "a finite number, 0 or above".into(),
            Self::PositiveUpTo(max) => format!("a number above 0 and at most {max}"),
        }
    }
}

impl<'a> Keys<'a> {
    pub(crate) fn new(metadata: &'a Metadata, architecture: &'a str) -> Self {
        Self { metadata, architecture }
    }

    /// The full name of a key, `llama.` + `suffix` for instance.
    pub(crate) fn full(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    /// A whole number within `range`, if the key is present.
    pub(crate) fn count(&self, suffix: &str, range: RangeInclusive<usize>) -> Result<Option<usize>> {
        let key = self.full(suffix);
        let Some(found) = self.metadata.get_u64(&key)? else { return Ok(None) };
        match usize::try_from(found) {
            Ok(value) if range.contains(&value) => Ok(Some(value)),
            _ => Err(Error::InvalidKey { key, found: found.to_string(), expected: describe_range(&range) }),
        }
    }

    /// A whole number within `range`; absent is an error.
    pub(crate) fn require_count(&self, suffix: &str, range: RangeInclusive<usize>) -> Result<usize> {
        let expected = describe_range(&range);
        self.count(suffix, range)?.ok_or_else(|| Error::MissingKey { key: self.full(suffix), expected })
    }

    /// A real number that `check` allows, if the key is present.
    pub(crate) fn real(&self, suffix: &str, check: Real) -> Result<Option<f32>> {
        let key = self.full(suffix);
        let Some(found) = self.metadata.get_f32(&key)? else { return Ok(None) };
        if check.allows(found) {
            return Ok(Some(found));
        }
        Err(Error::InvalidKey { key, found: found.to_string(), expected: check.describe() })
    }

    /// A real number that `check` allows; absent is an error.
    pub(crate) fn require_real(&self, suffix: &str, check: Real) -> Result<f32> {
        self.real(suffix, check)?
            .ok_or_else(|| Error::MissingKey { key: self.full(suffix), expected: check.describe() })
    }

    /// A text, if the key is present.
    pub(crate) fn text(&self, suffix: &str) -> Result<Option<&'a str>> {
        Ok(self.metadata.get_str(&self.full(suffix))?)
    }

    /// A truth value, if the key is present.
    pub(crate) fn flag(&self, suffix: &str) -> Result<Option<bool>> {
        Ok(self.metadata.get_bool(&self.full(suffix))?)
    }

    /// `len` truth values, if the key is present and an array; numbers other than 0 are true.
    pub(crate) fn flags(&self, suffix: &str, len: usize) -> Result<Option<Vec<bool>>> {
        let key = self.full(suffix);
        let flags: Vec<bool> = match self.metadata.get(&key) {
            Some(Value::Array(Array::Bool(flags))) => flags.clone(),
            Some(Value::Array(_)) => {
                let numbers = self.metadata.get_u64s(&key)?.unwrap_or_default();
                numbers.into_iter().map(|number| number != 0).collect()
            }
            _ => return Ok(None),
        };
        if flags.len() != len {
            let found = format!("an array of {}", flags.len());
            return Err(Error::InvalidKey { key, found, expected: format!("an array of {len}") });
        }
        Ok(Some(flags))
    }

    /// The error for a value that is well-formed but wrong for this model.
    pub(crate) fn invalid(&self, suffix: &str, found: impl ToString, expected: impl Into<String>) -> Error {
        Error::InvalidKey { key: self.full(suffix), found: found.to_string(), expected: expected.into() }
    }
}

fn describe_range(range: &RangeInclusive<usize>) -> String {
    format!("a whole number from {} to {}", range.start(), range.end())
}
