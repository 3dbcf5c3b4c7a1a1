//! Filters that a rewritten template applies to values: they charge, and unmark for comparisons.

use minijinja::{
    Error, Value,
    value::{Tuple, ValueKind},
};

use super::values::{is_tuple, pairs};
use crate::chat::{
    bounds::{self, VALUE_WORK, charge, charge_value, descend, work},
    origin::{has_marks, plain_text},
};

/// Converts a value to its plain form for comparisons. Charges all of it.
pub(super) fn plain(value: Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        work(text.len())?;
        return Ok(if has_marks(text) { Value::from(plain_text(text)) } else { value });
    }
    if walk(&value, 0)? { rebuilt(&value) } else { Ok(value) }
}

/// Charges all of a value, as a comparison would read it.
pub(super) fn weigh(value: &Value) -> Result<(), Error> {
    walk(value, 0).map(|_| ())
}

/// Charges all of a value; returns true if it contains marked characters.
fn walk(value: &Value, depth: usize) -> Result<bool, Error> {
    descend(depth)?;
    if let Some(text) = value.as_str() {
        work(text.len())?;
        return Ok(has_marks(text));
    }
    let mut found = false;
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            work(VALUE_WORK)?;
            for item in value.try_iter()? {
                found |= walk(&item, depth + 1)?;
            }
        }
        ValueKind::Map => {
            work(value.len().unwrap_or(0).saturating_mul(VALUE_WORK))?;
            for (key, value) in pairs(value).unwrap_or_default() {
                found |= walk(&key, depth + 1)? | walk(&value, depth + 1)?;
            }
        }
        _ => work(0)?,
    }
    Ok(found)
}

/// Rebuilds a walked value with plain strings.
fn rebuilt(value: &Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        return Ok(if has_marks(text) { Value::from(plain_text(text)) } else { value.clone() });
    }
    charge_value(value)?;
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.map(|item| rebuilt(&item)).collect::<Result<_, _>>()?;
            Ok(if is_tuple(value) { Value::from(Tuple::from(items)) } else { Value::from(items) })
        }
        ValueKind::Map => {
            let Some(pairs) = pairs(value) else { return Ok(value.clone()) };
            let pairs = pairs.iter().map(|(key, value)| Ok((rebuilt(key)?, rebuilt(value)?)));
            Ok(Value::from_pairs(pairs.collect::<Result<Vec<_>, Error>>()?))
        }
        _ => Ok(value.clone()),
    }
}

/// Charges an indexed value: a position in a string is searched from its start.
pub(super) fn item(value: Value) -> Result<Value, Error> {
    work(value.as_str().map_or(0, str::len))?;
    Ok(value)
}

/// Charges a new value. Lazy values become lists: each pass over a lazy one would take work that
/// nobody charges.
pub(super) fn checked(value: Value) -> Result<Value, Error> {
    let is_lazy = match value.kind() {
        ValueKind::Seq => value.downcast_object_ref::<Vec<Value>>().is_none() && !is_tuple(&value),
        ValueKind::Iterable => true,
        _ => false,
    };
    if is_lazy && value.as_object().is_some() {
        charge(value.len().unwrap_or(0).saturating_mul(bounds::ELEMENT_BYTES))?;
        let list = Value::from(value.try_iter()?.collect::<Vec<_>>());
        charge_value(&list)?;
        return Ok(list);
    }
    charge_value(&value)?;
    Ok(value)
}

/// Charges a literal list, tuple or mapping.
pub(super) fn literal(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map => {
            for (_, value) in pairs(&value).unwrap_or_default() {
                bounds::stored(&value)?;
            }
        }
        _ => value.try_iter()?.try_for_each(|item| bounds::stored(&item))?,
    }
    charge_value(&value)?;
    Ok(value)
}

/// Checks a value that a namespace stores.
pub(super) fn stored(value: Value) -> Result<Value, Error> {
    bounds::stored(&value)?;
    Ok(value)
}
