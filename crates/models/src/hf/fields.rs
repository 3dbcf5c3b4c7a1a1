//! The JSON files of a folder: read up to a limit, and their fields by type. `null` counts as
//! absent, as it does for the programs that write these files.

use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::{Map, Value};

use crate::config::keys::Limits;
use crate::error::{Error, Result};

/// Largest configuration or chat template that is read, in bytes. Those of published models have
/// less than 1 MB, most of it names of labels.
pub(super) const CONFIG_BYTES: u64 = 4 << 20;

/// Largest index of weight files that is read, in bytes. One of 90,000 tensors has 9 MB.
pub(super) const INDEX_BYTES: u64 = 32 << 20;

/// Largest file of a tokenizer that is read, in bytes. Vocabularies of a quarter of a million
/// tokens take 35 MB.
pub(super) const TOKENIZER_BYTES: u64 = 64 << 20;

/// Most values of a JSON file. One of a list takes two bytes of the file and 72 of memory, so that
/// a bound of bytes alone would not bound memory. The vocabulary and merges of Gemma 3 are 1.9
/// million.
const MAX_JSON_VALUES: usize = 4 << 20;

/// Characters of a wrong value that an error shows.
const SHOWN_CHARS: usize = 60;

/// Reads a whole file of at most `limit` bytes; `None` if there is none.
pub(super) fn read_file(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    match gguf_rs_lite::read_bounded(path, limit) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            Err(Error::FileTooLarge { path: path.to_owned(), limit })
        }
        Err(source) => Err(Error::ReadFile { path: path.to_owned(), source }),
    }
}

/// Reads the text of a JSON file of at most `limit` bytes; `None` if there is none.
pub(super) fn read_json(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    let Some(text) = read_file(path, limit)? else { return Ok(None) };
    // Every value but the first stands behind one of these.
    if text.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count() > MAX_JSON_VALUES {
        return Err(Error::TooManyValues { path: path.to_owned(), limit: MAX_JSON_VALUES });
    }
    Ok(Some(text))
}

/// Reads a file of at most `limit` bytes that holds a JSON object; `None` if there is no file.
pub(super) fn read_object(path: &Path, limit: u64) -> Result<Option<Map<String, Value>>> {
    let Some(text) = read_json(path, limit)? else { return Ok(None) };
    serde_json::from_slice(&text)
        .or_else(|error| serde_json::from_slice(&with_infinities(&text).ok_or(error)?))
        .map(Some)
        .map_err(|source| Error::InvalidJson { path: path.to_owned(), source })
}

/// The text with a string in the place of each infinity, which transformers 4 wrote and is no JSON;
/// `None` without any.
fn with_infinities(text: &[u8]) -> Option<Vec<u8>> {
    const BARE: &[u8] = b"Infinity";
    let mut out = Vec::with_capacity(text.len() + 64);
    let (mut is_text, mut rest) = (false, text);
    while let Some((&byte, behind)) = rest.split_first() {
        match byte {
            b'"' => is_text = !is_text,
            b'\\' if is_text && !behind.is_empty() => {
                out.extend_from_slice(&rest[..2]);
                rest = &rest[2..];
                continue;
            }
            _ if !is_text && rest.starts_with(BARE) && out.last() != Some(&b'-') => {
                out.extend_from_slice(br#""Infinity""#);
                rest = &rest[BARE.len()..];
                continue;
            }
            _ => {}
        }
        out.push(byte);
        rest = behind;
    }
    (out != text).then_some(out)
}

/// An object of a JSON file, for reading.
#[derive(Clone)]
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// Name of the file.
    file: &'a str,
    /// Path to the object: empty, or `rope_scaling.`.
    prefix: String,
}

impl<'a> Fields<'a> {
    pub(super) fn new(file: &'a str, map: &'a Map<String, Value>) -> Self {
        Self { map, file, prefix: String::new() }
    }

    /// The value of a field, if it has one.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// True if the field is absent, for fields in which absence differs from `null`.
    pub(super) fn is_absent(&self, key: &str) -> bool {
        !self.map.contains_key(key)
    }

    /// A whole number within `range`, if the field is there. Some files write it as `4096.0`.
    pub(super) fn count(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let whole = |real: f64| (real.fract() == 0.0 && (0.0..1e15).contains(&real)).then_some(real as u64);
        let count = value.as_u64().or_else(|| value.as_f64().and_then(whole));
        match count.and_then(|count| usize::try_from(count).ok()).filter(|count| range.contains(count)) {
            Some(count) => Ok(Some(count)),
            None => Err(self.invalid(key, whole_number(&range))),
        }
    }

    /// As [`Self::count`]; absent is an error.
    pub(super) fn require_count(&self, key: &str, range: RangeInclusive<usize>) -> Result<usize> {
        let expected = whole_number(&range);
        self.count(key, range)?.ok_or_else(|| self.missing(key, expected))
    }

    /// A finite number, if the field is there.
    pub(super) fn real(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64().filter(|real| real.is_finite()) {
            Some(real) => Ok(Some(real)),
            None => Err(self.invalid(key, "a number")),
        }
    }

    /// A finite number above zero, if the field is there.
    pub(super) fn positive(&self, key: &str) -> Result<Option<f64>> {
        match self.real(key)? {
            Some(real) if real <= 0.0 => Err(self.invalid(key, "a number above 0")),
            real => Ok(real),
        }
    }

    /// A number that is within the limits in single precision, if the field is there.
    pub(super) fn within(&self, key: &str, limits: Limits) -> Result<Option<f64>> {
        match self.real(key)? {
            Some(real) if !limits.allows(real as f32) => Err(self.invalid(key, limits.describe())),
            real => Ok(real),
        }
    }

    /// A text, if the field is there.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.invalid(key, "a text"))
    }

    /// A boolean, if the field is there.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.invalid(key, "true or false"))
    }

    /// A list, if the field is there.
    pub(super) fn list(&self, key: &str) -> Result<Option<&'a [Value]>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_array().map(|list| Some(list.as_slice())).ok_or_else(|| self.invalid(key, "a list"))
    }

    /// An object, if the field is there.
    pub(super) fn object(&self, key: &str) -> Result<Option<Self>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.invalid(key, "an object"))?;
        Ok(Some(Self { map, file: self.file, prefix: format!("{}{key}.", self.prefix) }))
    }

    /// Keys and values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.map.iter()
    }

    /// The error for a value that no such model has.
    pub(super) fn invalid(&self, key: &str, expected: impl Into<String>) -> Error {
        let found = self.map.get(key).map(Value::to_string).unwrap_or_default();
        let shown = match found.char_indices().nth(SHOWN_CHARS) {
            Some((end, _)) => format!("{}...", &found[..end]),
            None => found,
        };
        Error::InvalidField { field: self.place(key), found: shown, expected: expected.into() }
    }

    /// The error for a field that must be there.
    pub(super) fn missing(&self, key: &str, expected: impl Into<String>) -> Error {
        Error::MissingField { field: self.place(key), expected: expected.into() }
    }

    fn place(&self, key: &str) -> String {
        format!("{}: `{}{key}`", self.file, self.prefix)
    }
}

fn whole_number(range: &RangeInclusive<usize>) -> String {
    format!("a whole number from {} to {}", range.start(), range.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(json: &str) -> Map<String, Value> {
        serde_json::from_str(json).expect("an object")
    }

    #[test]
    fn fields_are_read_by_type_and_null_is_absent() {
        let map = map(r#"{"n": 4096.0, "x": 0.5, "s": "silu", "b": true, "none": null, "o": {"n": -1}}"#);
        let fields = Fields::new("config.json", &map);
        assert_eq!(fields.count("n", 1..=5000).ok(), Some(Some(4096)));
        assert_eq!(fields.real("x").ok(), Some(Some(0.5)));
        assert_eq!(fields.text("s").ok(), Some(Some("silu")));
        assert_eq!(fields.flag("b").ok(), Some(Some(true)));
        assert_eq!(fields.count("none", 1..=2).ok(), Some(None));
        assert!(fields.count("x", 0..=9).is_err() && fields.flag("s").is_err() && fields.text("n").is_err());
        let message = |error: Error| error.to_string();
        let inner = fields.object("o").ok().flatten().expect("an object");
        assert_eq!(
            inner.count("n", 1..=9).map_err(message).err().as_deref(),
            Some("config.json: `o.n` is -1, expected a whole number from 1 to 9")
        );
        assert_eq!(
            fields.require_count("m", 1..=9).map_err(message).err().as_deref(),
            Some("config.json: `m` is missing, expected a whole number from 1 to 9")
        );
    }

    #[test]
    fn files_are_read_up_to_a_number_of_bytes_and_values() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.json");
        assert!(read_object(&path, 10).is_ok_and(|map| map.is_none()));
        std::fs::write(&path, r#"{"a": 1}"#).expect("written");
        assert!(read_object(&path, 8).is_ok_and(|map| map.is_some_and(|map| map.len() == 1)));
        assert!(matches!(read_object(&path, 7), Err(Error::FileTooLarge { limit: 7, .. })));
        let list = |values: usize| format!(r#"{{"a": [0{}]}}"#, ",0".repeat(values - 1));
        std::fs::write(&path, list(MAX_JSON_VALUES)).expect("written");
        assert!(matches!(read_object(&path, u64::MAX), Err(Error::TooManyValues { .. })));
        std::fs::write(&path, list(MAX_JSON_VALUES / 8)).expect("written");
        assert!(read_object(&path, u64::MAX).is_ok());
    }

    #[test]
    fn infinity_becomes_a_string() {
        let read =
            |text: &str| with_infinities(text.as_bytes()).and_then(|text| String::from_utf8(text).ok());
        assert_eq!(
            read(r#"{"a": [0.0, Infinity], "b\"Infinity": "Infinity\\"}"#).as_deref(),
            Some(r#"{"a": [0.0, "Infinity"], "b\"Infinity": "Infinity\\"}"#)
        );
        for none in [r#"{"a": NaN}"#, r#"{"a": -Infinity}"#, r#""Infinity\"#] {
            assert_eq!(read(none), None);
        }
    }

    #[test]
    fn long_values_are_cut_in_messages() {
        let map = map(&format!(r#"{{"key": "{}"}}"#, "ä".repeat(1000)));
        let error = Fields::new("config.json", &map).real("key").err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.len() < 250 && error.contains("...")));
    }
}
