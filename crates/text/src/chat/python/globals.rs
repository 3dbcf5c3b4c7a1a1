//! Global functions of Jinja2.

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, ValueKind},
};

use super::plain::plain;
use crate::chat::bounds::{charge_elements, stored};

/// Function `dict`: from a mapping or from pairs, and from named values.
pub(super) fn dict(value: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let is_pairs = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    let Some(items) = value.as_ref().filter(|value| is_pairs(value)) else {
        return minijinja::functions::dict(value, named);
    };
    let mut pairs = Vec::new();
    for item in items.try_iter()? {
        let pair: Vec<Value> = item.try_iter()?.collect();
        let [key, value] = pair.as_slice() else {
            return Err(Error::new(ErrorKind::InvalidOperation, "dict takes a mapping or pairs"));
        };
        charge_elements(2)?;
        stored(value)?;
        pairs.push((plain(key.clone())?, value.clone()));
    }
    minijinja::functions::dict(Some(Value::from_pairs(pairs)), named)
}

/// Function `namespace`.
pub(super) fn namespace(value: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    minijinja::functions::namespace(Some(dict(value, named)?.into()))
}
