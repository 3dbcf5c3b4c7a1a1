//! Typed, range-checked access to the hyperparameters of one architecture. Knows no key by itself.

use std::ops::RangeInclusive;

use gguf_rs_lite::{Array, Metadata, Value};

use crate::error::{Error, Result};

/// Largest rotation base of a file; published models have up to 1e9.
pub(crate) const MAX_BASE: f32 = 1e15;

/// The metadata keys that start with the architecture's name.
pub(crate) struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
    /// Layers behind the last one that predict further tokens; arrays may have entries of theirs.
    prediction_layers: usize,
}

/// Range of a real-valued hyperparameter. NaN and infinities are never allowed.
#[derive(Clone, Copy)]
pub(crate) enum Real {
    /// Any.
    Finite,
    /// Zero or greater.
    NotNegative,
    /// Greater than the first number and at most the second.
    AboveUpTo(f32, f32),
    /// Within the limits, which are allowed.
    Within(Limits),
}

/// Least and largest value of a parameter beyond which computations with it have no meaning.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) least: f32,
    pub(crate) most: f32,
}

impl Limits {
    pub(crate) fn allows(self, value: f32) -> bool {
        (self.least..=self.most).contains(&value)
    }

    pub(crate) fn describe(self) -> String {
        format!("a number from {} to {}", short(self.least), short(self.most))
    }
}

/// The number in few characters: large powers of ten are counted zeros.
pub(crate) fn short(value: f32) -> String {
    if value.abs() >= 1e7 { format!("{value:e}") } else { value.to_string() }
}

impl Real {
    pub(crate) fn allows(self, value: f32) -> bool {
        value.is_finite()
            && match self {
                Self::Finite => true,
                Self::NotNegative => value >= 0.0,
                Self::AboveUpTo(least, most) => value > least && value <= most,
                Self::Within(limits) => limits.allows(value),
            }
    }

    fn describe(self) -> String {
        match self {
            Self::Finite => "a finite number".into(),
            Self::NotNegative => "a finite number, 0 or above".into(),
            Self::AboveUpTo(least, most) => {
                format!("a number above {} and at most {}", short(least), short(most))
            }
            Self::Within(limits) => limits.describe(),
        }
    }
}

impl<'a> Keys<'a> {
    pub(crate) fn new(metadata: &'a Metadata, architecture: &'a str) -> Self {
        Self { metadata, architecture, prediction_layers: 0 }
    }

    /// The same keys, of whose arrays the last entries may be those of so many layers that are left
    /// out.
    pub(crate) fn with_prediction_layers(self, prediction_layers: usize) -> Self {
        Self { prediction_layers, ..self }
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
        let shown = match self.metadata.get(&key) {
            // In single precision it is zero or infinite: another number.
            Some(&Value::F64(exact)) if (found == 0.0) != (exact == 0.0) || found.is_infinite() => {
                format!("{exact:e}")
            }
            _ if check.allows(found) => return Ok(Some(found)),
            _ => found.to_string(),
        };
        Err(Error::InvalidKey { key, found: shown, expected: check.describe() })
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

    /// `len` whole numbers, if the key is present and an array.
    pub(crate) fn counts(&self, suffix: &str, len: usize) -> Result<Option<Vec<u64>>> {
        let key = self.full(suffix);
        let Some(Value::Array(_)) = self.metadata.get(&key) else { return Ok(None) };
        let counts = self.metadata.get_u64s(&key)?.unwrap_or_default();
        self.of_layers(key, counts, len).map(Some)
    }

    /// `len` real numbers of any value, if the key is present.
    pub(crate) fn reals(&self, suffix: &str, len: usize) -> Result<Option<Vec<f32>>> {
        let key = self.full(suffix);
        match self.metadata.get_f32s(&key)? {
            Some(reals) => self.of_layers(key, reals.to_vec(), len).map(Some),
            None => Ok(None),
        }
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
        self.of_layers(key, flags, len).map(Some)
    }

    /// The first `len` entries of an array, which has no others but those of prediction layers.
    fn of_layers<T>(&self, key: String, mut entries: Vec<T>, len: usize) -> Result<Vec<T>> {
        if entries.len() != len && entries.len() != len + self.prediction_layers {
            let found = format!("an array of {}", entries.len());
            return Err(Error::InvalidKey { key, found, expected: format!("an array of {len}") });
        }
        entries.truncate(len);
        Ok(entries)
    }

    /// The error for a value that is well-formed but wrong for this model.
    pub(crate) fn invalid(&self, suffix: &str, found: impl ToString, expected: impl Into<String>) -> Error {
        Error::InvalidKey { key: self.full(suffix), found: found.to_string(), expected: expected.into() }
    }
}

fn describe_range(range: &RangeInclusive<usize>) -> String {
    format!("a whole number from {} to {}", range.start(), range.end())
}
