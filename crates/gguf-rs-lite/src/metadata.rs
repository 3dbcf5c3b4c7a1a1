//! Key-value metadata of a file: ordered, with constant-time lookup and typed getters.

use std::{collections::HashMap, fmt, sync::Arc};

use crate::{
    error::{Error, Result},
    value::{Array, Value},
};

/// Metadata in file order.
///
/// Typed getters return `Ok(None)` for an absent key and [`Error::MetadataType`] for a value of
/// another type, so that callers can tell a default from a broken file.
///
/// ```
/// use gguf_rs_lite::Metadata;
///
/// let mut metadata = Metadata::new();
/// metadata.insert("llama.block_count", 22u32);
/// assert_eq!(metadata.get_u64("llama.block_count")?, Some(22));
/// assert_eq!(metadata.get_u64("llama.expert_count")?, None);
/// assert!(metadata.get_str("llama.block_count").is_err());
/// # Ok::<(), gguf_rs_lite::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Metadata {
    entries: Vec<(Arc<str>, Value)>,
    /// Key to index in `entries`; shares the key's text.
    index: HashMap<Arc<str>, usize>,
}

impl Metadata {
    /// Creates empty metadata.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a value; returns the replaced one. A new key is appended, a known key keeps its
    /// position.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Option<Value> {
        let key: Arc<str> = key.into().into();
        let value = value.into();
        if let Some(&i) = self.index.get(&key) {
            return Some(std::mem::replace(&mut self.entries[i].1, value));
        }
        self.index.insert(Arc::clone(&key), self.entries.len());
        self.entries.push((key, value));
        None
    }

    /// Removes a key; returns its value and preserves the order of the others. Linear in the number
    /// of entries.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = self.index.remove(key)?;
        for i in self.index.values_mut().filter(|i| **i > at) {
            *i -= 1;
        }
        Some(self.entries.remove(at).1)
    }

    /// Value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// True if the key is present.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// Keys and values in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// String value of a key.
    ///
    /// # Errors
    /// [`Error::MetadataType`] if the value is no string.
    pub fn get_str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "string", |value| match value {
            Value::String(s) => Some(s.as_str()),
            _ => None,
        })
    }

    /// Boolean value of a key.
    ///
    /// # Errors
    /// [`Error::MetadataType`] if the value is no boolean.
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "bool", |value| match value {
            Value::Bool(b) => Some(*b),
            _ => None,
        })
    }

    /// Unsigned integer value of a key, stored in any integer type.
    ///
    /// # Errors
    /// [`Error::MetadataType`] if the value is no integer, [`Error::MetadataRange`] if it is
    /// negative.
    pub fn get_u64(&self, key: &str) -> Result<Option<u64>> {
        self.integer(key, "an unsigned 64-bit integer")
    }

    /// Unsigned integer value of a key with at most 32 bits, stored in any integer type.
    ///
    /// # Errors
    /// [`Error::MetadataType`] if the value is no integer, [`Error::MetadataRange`] if it does not
    /// fit.
    pub fn get_u32(&self, key: &str) -> Result<Option<u32>> {
        self.integer(key, "an unsigned 32-bit integer")
    }

    /// Signed integer value of a key, stored in any integer type.
    ///
    /// # Errors
    /// [`Error::MetadataType`] if the value is no integer, [`Error::MetadataRange`] if it does not
    /// fit.
    pub fn get_i64(&self, key: &str) -> Result<Option<i64>> {
        self.integer(key, "a signed 64-bit integer")
    }

    /// Float value of a key, stored as `f32` or `f64` (rounded). May be NaN or infinite.
    ///
    /// # Errors
    /// [`Error::MetadataType`] if the value is no float.
    pub fn get_f32(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "f32", |value| match *value {
            Value::F32(v) => Some(v),
            #[allow(clippy::cast_possible_truncation, reason = "rounding is what the documentation says")]
            Value::F64(v) => Some(v as f32),
            _ => None,
        })
    }

    /// Array value of a key, of any element type.
    ///
    /// # Errors
    /// [`Error::MetadataType`] if the value is no array.
    pub fn get_array(&self, key: &str) -> Result<Option<&Array>> {
        self.typed(key, "array", |value| match value {
            Value::Array(array) => Some(array),
            _ => None,
        })
    }

    /// Array of strings of a key.
    ///
    /// # Errors
    /// [`Error::MetadataType`] if the value is of another type.
    pub fn get_strings(&self, key: &str) -> Result<Option<&[String]>> {
        self.typed(key, "array of string", |value| match value {
            Value::Array(Array::String(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// Array of `f32` of a key.
    ///
    /// # Errors
    /// [`Error::MetadataType`] if the value is of another type.
    pub fn get_f32s(&self, key: &str) -> Result<Option<&[f32]>> {
        self.typed(key, "array of f32", |value| match value {
            Value::Array(Array::F32(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// Array of `i32` of a key.
    ///
    /// # Errors
    /// [`Error::MetadataType`] if the value is of another type.
    pub fn get_i32s(&self, key: &str) -> Result<Option<&[i32]>> {
        self.typed(key, "array of i32", |value| match value {
            Value::Array(Array::I32(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// Array of unsigned integers of a key, stored in any integer type.
    ///
    /// # Errors
    /// [`Error::MetadataType`] if the value is no array of integers, [`Error::MetadataRange`] if an
    /// element is negative.
    pub fn get_u64s(&self, key: &str) -> Result<Option<Vec<u64>>> {
        const EXPECTED: &str = "array of unsigned integers";
        fn widen<T: Copy + TryInto<u64>>(values: &[T]) -> Option<Vec<u64>> {
            values.iter().map(|&v| v.try_into().ok()).collect()
        }
        let Some(value) = self.get(key) else { return Ok(None) };
        let widened = match value {
            Value::Array(Array::U8(v)) => widen(v),
            Value::Array(Array::I8(v)) => widen(v),
            Value::Array(Array::U16(v)) => widen(v),
            Value::Array(Array::I16(v)) => widen(v),
            Value::Array(Array::U32(v)) => widen(v),
            Value::Array(Array::I32(v)) => widen(v),
            Value::Array(Array::U64(v)) => Some(v.clone()),
            Value::Array(Array::I64(v)) => widen(v),
            other => return Err(wrong_type(key, EXPECTED, other)),
        };
        let negative = || Error::MetadataRange {
            key: key.to_owned(),
            expected: EXPECTED,
            value: "an array with a negative element".to_owned(),
        };
        widened.map(Some).ok_or_else(negative)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        pick: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => pick(value).map(Some).ok_or_else(|| wrong_type(key, expected, value)),
        }
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str, expected: &'static str) -> Result<Option<T>> {
        match self.typed(key, expected, Value::as_integer)? {
            None => Ok(None),
            Some(wide) => T::try_from(wide).map(Some).map_err(|_| Error::MetadataRange {
                key: key.to_owned(),
                expected,
                value: wide.to_string(),
            }),
        }
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Equality of keys, values and order.
impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl<K: Into<String>, V: Into<Value>> FromIterator<(K, V)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut metadata = Self::new();
        for (key, value) in entries {
            metadata.insert(key, value);
        }
        metadata
    }
}

fn wrong_type(key: &str, expected: &'static str, value: &Value) -> Error {
    Error::MetadataType { key: key.to_owned(), expected, found: value.describe() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        let mut metadata = Metadata::new();
        metadata.insert("u8", 200u8);
        metadata.insert("i16", -5i16);
        metadata.insert("u64", u64::MAX);
        metadata.insert("f32", 0.1f32);
        metadata.insert("f64", 1e300);
        metadata.insert("bool", true);
        metadata.insert("string", "text");
        metadata.insert("strings", vec!["a".to_owned()]);
        metadata.insert("i32s", vec![1i32, -1]);
        metadata.insert("u16s", vec![1u16, 2]);
        metadata.insert("f32s", vec![0.5f32]);
        metadata
    }

    #[test]
    fn integers_widen_and_are_range_checked() {
        let m = sample();
        assert_eq!(m.get_u64("u8").unwrap(), Some(200));
        assert_eq!(m.get_i64("i16").unwrap(), Some(-5));
        assert_eq!(m.get_u64("u64").unwrap(), Some(u64::MAX));
        assert_eq!(m.get_u32("u8").unwrap(), Some(200));
        assert!(matches!(m.get_u64("i16"), Err(Error::MetadataRange { value, .. }) if value == "-5"));
        assert!(matches!(m.get_u32("u64"), Err(Error::MetadataRange { .. })));
        assert!(matches!(m.get_i64("u64"), Err(Error::MetadataRange { .. })));
        assert!(matches!(m.get_u64("f32"), Err(Error::MetadataType { found, .. }) if found == "f32"));
        assert!(matches!(m.get_u64("bool"), Err(Error::MetadataType { .. })));
    }

    #[test]
    fn other_getters_answer_their_type_only() {
        let m = sample();
        assert_eq!(m.get_f32("f32").unwrap(), Some(0.1));
        assert_eq!(m.get_f32("f64").unwrap(), Some(f32::INFINITY));
        assert_eq!(m.get_bool("bool").unwrap(), Some(true));
        assert_eq!(m.get_str("string").unwrap(), Some("text"));
        assert_eq!(m.get_strings("strings").unwrap(), Some(&["a".to_owned()][..]));
        assert_eq!(m.get_i32s("i32s").unwrap(), Some(&[1, -1][..]));
        assert_eq!(m.get_f32s("f32s").unwrap(), Some(&[0.5][..]));
        assert_eq!(m.get_u64s("u16s").unwrap(), Some(vec![1, 2]));
        assert_eq!(m.get_array("u16s").unwrap().map(Array::len), Some(2));
        assert!(matches!(m.get_u64s("i32s"), Err(Error::MetadataRange { .. })));
        assert!(
            matches!(m.get_f32s("i32s"), Err(Error::MetadataType { found, .. }) if found == "array of i32")
        );
        assert!(m.get_str("u8").is_err() && m.get_bool("u8").is_err() && m.get_f32("u8").is_err());
        assert!(m.get_strings("string").is_err() && m.get_array("string").is_err());
        assert!(m.get_i32s("f32s").is_err() && m.get_f32s("i32s").is_err() && m.get_u64s("f32s").is_err());
    }

    #[test]
    fn absent_is_not_an_error() {
        let m = sample();
        assert_eq!(m.get_str("none").unwrap(), None);
        assert_eq!(m.get_u64("none").unwrap(), None);
        assert_eq!(m.get_u64s("none").unwrap(), None);
        assert!(!m.contains("none") && m.get("none").is_none());
    }

    #[test]
    fn insertion_order_survives_replacing_and_removing() {
        let mut m: Metadata = [("a", 1u8), ("b", 2), ("c", 3), ("d", 4)].into_iter().collect();
        assert_eq!(m.insert("b", "new"), Some(Value::U8(2)));
        assert_eq!(m.remove("a"), Some(Value::U8(1)));
        assert_eq!(m.remove("a"), None);
        assert_eq!(m.insert("a", 5u8), None);
        assert_eq!(m.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["b", "c", "d", "a"]);
        for (key, value) in m.iter() {
            assert_eq!(m.get(key), Some(value));
        }
        assert_eq!((m.len(), m.is_empty()), (4, false));
        assert_eq!(format!("{m:?}"), r#"{"b": String("new"), "c": U8(3), "d": U8(4), "a": U8(5)}"#);
    }
}
