//! JSON documents, stricter than serde's derived readers.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::error::{Error, Result, field};

/// Reads a document; `what` names it in messages. Its lists and objects are those of its form:
/// derived readers also take lists for structs, and objects for names of variants.
///
/// # Errors
/// [`Error::Json`], [`Error::Field`].
pub(crate) fn read<T: DeserializeOwned + Serialize>(text: &[u8], what: &str) -> Result<T> {
    let json = |source| Error::Json { what: what.to_owned(), source };
    let document: T = serde_json::from_slice(text).map_err(json)?;
    let given: Value = serde_json::from_slice(text).map_err(json)?;
    match misplaced(&given, &serde_json::to_value(&document).map_err(json)?, String::new()) {
        Some(place) => {
            Err(field(format!("{what}{place}"), "it has a value of another kind (list, object, text)"))
        }
        None => Ok(document),
    }
}

/// Place of the first list or object where the document has something else.
fn misplaced(given: &Value, document: &Value, place: String) -> Option<String> {
    match (given, document) {
        (Value::Array(given), Value::Array(document)) => {
            given.iter().zip(document).enumerate().find_map(|(index, (given, document))| {
                misplaced(given, document, format!("{place}[{index}]"))
            })
        }
        (Value::Object(given), Value::Object(document)) => given
            .iter()
            .find_map(|(name, given)| misplaced(given, document.get(name)?, format!("{place}.{name}"))),
        (Value::Array(_) | Value::Object(_), _) => Some(place),
        _ => None,
    }
}

/// Reads an optional field that is there; `null` is no value.
pub(crate) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}
