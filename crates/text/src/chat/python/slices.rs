//! Slices: `value[start:stop:step]`.

use minijinja::{
    Error, ErrorKind, Value,
    value::{Tuple, ValueKind},
};

use super::{strings::section, values::is_tuple};
use crate::chat::bounds::{charge, charge_elements, charge_value, work};

/// Evaluates `value[start:stop:step]`. The engine's own version is wrong for negative steps and
/// treats none and undefined as an empty list.
pub(super) fn slice_by(
    value: &Value,
    start: Value,
    stop: Value,
    step: Option<Value>,
) -> Result<Value, Error> {
    let items: Vec<Value> = match value.kind() {
        ValueKind::String => Vec::new(),
        ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.collect(),
        // Jinja2 takes the failure for a missing attribute, here and for bounds that are not
        // numbers.
        ValueKind::None | ValueKind::Map | ValueKind::Number | ValueKind::Bool => {
            return Ok(Value::UNDEFINED);
        }
        kind => {
            let message = format!("a value of type {kind} has no slices");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    };
    let bound = |bound: Value| if bound.is_none() { Ok(None) } else { i64::try_from(bound).map(Some) };
    let step = step.map_or(Ok(None), bound);
    let (Ok(start), Ok(stop), Ok(step)) = (bound(start), bound(stop), step) else {
        return Ok(Value::UNDEFINED);
    };
    let step = step.unwrap_or(1);
    if let Some(text) = value.as_str() {
        work(text.len())?;
        return slice_of_text(text, start, stop, step).map(Value::from);
    }
    charge_elements(items.len())?;
    let chosen = indices(items.len(), start, stop, step)?;
    let chosen: Vec<Value> = chosen.into_iter().map(|i| items[i].clone()).collect();
    let chosen = if is_tuple(value) { Value::from(Tuple::from(chosen)) } else { Value::from(chosen) };
    charge_value(&chosen)?;
    Ok(chosen)
}

fn slice_of_text(text: &str, start: Option<i64>, stop: Option<i64>, step: i64) -> Result<String, Error> {
    if step == 1 {
        let (_, section) = section(text, start, stop);
        charge(section.len())?;
        return Ok(section.to_owned());
    }
    charge(text.len().saturating_mul(size_of::<char>() + size_of::<usize>()))?;
    let chars: Vec<char> = text.chars().collect();
    Ok(indices(chars.len(), start, stop, step)?.into_iter().map(|i| chars[i]).collect())
}

/// Indices that a slice selects of a sequence with `len` items.
fn indices(len: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Result<Vec<usize>, Error> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    // Limits for clamping indices, and the defaults of absent bounds.
    let (lowest, highest) = if step < 0 { (-1, len - 1) } else { (0, len) };
    let place = |bound: Option<i64>, missing: i64| match bound {
        Some(bound) if bound < 0 => bound.saturating_add(len).max(lowest),
        Some(bound) => bound.min(highest),
        None => missing,
    };
    let (first, end) = if step < 0 { (highest, lowest) } else { (lowest, highest) };
    let (start, stop) = (place(start, first), place(stop, end));
    let stride = usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX);
    let places = |range: std::ops::Range<i64>| range.filter_map(|i| usize::try_from(i).ok());
    match step {
        0 => Err(Error::new(ErrorKind::InvalidOperation, "the step of a slice cannot be zero")),
        1.. => Ok(places(start..stop).step_by(stride).collect()),
        _ => Ok(places(stop + 1..start + 1).rev().step_by(stride).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_have_the_places_of_pythons() {
        let of = |len, start: Option<i64>, stop: Option<i64>, step| indices(len, start, stop, step).unwrap();
        assert_eq!(of(3, None, None, -1), [2, 1, 0]);
        assert_eq!(of(3, Some(-1), Some(0), -1), [2, 1]);
        assert_eq!(of(3, Some(9), Some(-9), -2), [2, 0]);
        assert_eq!(of(3, Some(-9), None, -1), [0; 0]);
        assert_eq!(of(4, Some(1), None, 2), [1, 3]);
        assert_eq!(of(4, Some(-3), Some(9), 2), [1, 3]);
        assert_eq!(of(3, None, None, i64::MIN), [2]);
        for step in [-2, -1, 1, 2] {
            assert_eq!(of(0, None, None, step), [0; 0]);
            assert_eq!(of(0, Some(i64::MIN), Some(i64::MAX), step), [0; 0]);
        }
        assert!(indices(3, None, None, 0).is_err());
    }
}
