//! Filters that a rewritten template puts around values: they count them, and take their origin
//! away where they are compared.

use minijinja::{
    Error, Value,
    value::{Tuple, ValueKind},
};

use super::values::{is_tuple, pairs};
use crate::chat::{
    bounds::{self, VALUE_WORK, charge, charge_value, descend, work},
    origin::{has_marks, plain_text},
};

/// A value as comparisons see it. Counts all of it.
pub(super) fn plain(value: Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        work(text.len())?;
        return Ok(if has_marks(text) { Value::from(plain_text(text)) } else { value });
    }
    if walk(&value, 0)? { rebuilt(&value) } else { Ok(value) }
}

/// Counts all of a value: a measure of what comparing it takes.
pub(super) fn weigh(value: &Value) -> Result<(), Error> {
    walk(value, 0).map(|_| ())
}

/// Counts all of a value, and says whether it has characters of the template.
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

/// A value that was walked over, with plain texts.
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

/// A value whose items are taken by their place: in a text they are looked for from the start.
pub(super) fn item(value: Value) -> Result<Value, Error> {
    work(value.as_str().map_or(0, str::len))?;
    Ok(value)
}

/// A value that was made. Values that the engine makes on demand become lists: going through them
/// again and again would take time that nobody counts.
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

/// A list, a tuple or a mapping that was written out.
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

/// A value that a namespace keeps.
pub(super) fn stored(value: Value) -> Result<Value, Error> {
    bounds::stored(&value)?;
    Ok(value)
}
