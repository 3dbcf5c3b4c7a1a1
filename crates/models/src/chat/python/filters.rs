//! Filters where the engine's own differ from Jinja2's, or fail where those do not.

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Kwargs, Rest, StringInput, Tuple, ValueKind, ValueOrKwargs, from_args},
};

use super::{
    methods::{MAX_WIDTH, lines},
    to_str,
};
use crate::chat::bounds::{charge, checked};

/// The filters `length` and `count`: an undefined value has none, as everywhere in Jinja2.
pub(in crate::chat) fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { minijinja::filters::length(value) }
}

/// The filter `first`.
pub(in crate::chat) fn first(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Value::UNDEFINED) } else { minijinja::filters::first(value) }
}

/// The filter `last`.
pub(in crate::chat) fn last(value: Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(value) } else { minijinja::filters::last(value) }
}

/// The filter `items`.
pub(in crate::chat) fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    minijinja::filters::items(value)
}

/// The filters `default` and `d`: both arguments may be named.
pub(in crate::chat) fn default(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let (positional, kwargs): (&[Value], Kwargs) = from_args(&args)?;
    let other = match positional.first() {
        Some(other) => other.clone(),
        None if kwargs.has("default_value") => kwargs.get("default_value")?,
        None => Value::from(""),
    };
    let replaces_false = match positional.get(1) {
        Some(boolean) => boolean.is_true(),
        None => kwargs.get::<Option<bool>>("boolean")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    if positional.len() > 2 {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let is_replaced = value.is_undefined() || (replaces_false && !value.is_true());
    Ok(if is_replaced { other } else { value.clone() })
}

/// The filter `int`: what is no number is 0.
pub(in crate::chat) fn int(
    state: &State,
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let default = default.or_else(|| (!kwargs.has("default")).then(|| Value::from(0)));
    minijinja::filters::int(state, value, default, base, kwargs)
}

/// The filter `float`: what is no number is 0.
pub(in crate::chat) fn float(
    state: &State,
    value: &Value,
    default: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let default = default.or_else(|| (!kwargs.has("default")).then(|| Value::from(0.0)));
    minijinja::filters::float(state, value, default, kwargs)
}

/// The filter `indent`: a line break at the end stays, and the width may be a text.
pub(in crate::chat) fn indent(
    value: StringInput<'_>,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let width = width.map_or_else(|| kwargs.get::<Option<Value>>("width"), |width| Ok(Some(width)))?;
    let first = first.map_or_else(|| kwargs.get::<Option<bool>>("first"), |first| Ok(Some(first)))?;
    let blank = blank.map_or_else(|| kwargs.get::<Option<bool>>("blank"), |blank| Ok(Some(blank)))?;
    kwargs.assert_all_used()?;
    let too_far = || Error::new(ErrorKind::InvalidOperation, "the text is indented too far");
    let indentation = match width.as_ref().map(|width| (width, width.as_str())) {
        None => " ".repeat(4),
        Some((_, Some(text))) => text.to_owned(),
        Some((width, None)) => match i64::try_from(width.clone())? {
            width if width > MAX_WIDTH as i64 => return Err(too_far()),
            width => " ".repeat(usize::try_from(width).unwrap_or(0)),
        },
    };
    let text = format!("{}\n", value.as_str());
    let lines = lines(&text, false);
    charge(text.len() + lines.len().saturating_mul(indentation.len()))?;
    let mut out = String::new();
    for (i, line) in lines.into_iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        let is_indented =
            if i == 0 { first.unwrap_or(false) } else { blank.unwrap_or(false) || !line.is_empty() };
        out.extend(is_indented.then_some(indentation.as_str()).into_iter().chain([line]));
    }
    Ok(out)
}

/// `a + b` of a list with both: what is added to a text that is marked as safe is escaped.
pub(in crate::chat) fn sum(state: &State, operands: &Value) -> Result<Value, Error> {
    let operands: Vec<Value> = operands.try_iter()?.collect();
    let [left, right] = operands.as_slice() else { return Err(Error::from(ErrorKind::MissingArgument)) };
    let sum = match (left.as_str(), right.as_str()) {
        (Some(a), Some(b)) if left.is_safe() || right.is_safe() => {
            let operand = |value: &Value, text: &str| {
                if value.is_safe() { text.to_owned() } else { escaped(text) }
            };
            Value::from_safe_string(operand(left, a) + &operand(right, b))
        }
        _ => state.env().compile_expression("a + b")?.eval(minijinja::context! { a => left, b => right })?,
    };
    checked(sum)
}

/// The filters `e` and `escape`.
pub(in crate::chat) fn escape(value: &Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    Ok(Value::from_safe_string(escaped(&to_str(value)?)))
}

/// `markupsafe.escape`.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// `value[start:stop:step]`. The engine's own is wrong for steps backwards.
pub(in crate::chat) fn slice_by(
    value: &Value,
    start: Value,
    stop: Value,
    step: Value,
) -> Result<Value, Error> {
    let items: Vec<Value> = match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.collect(),
        ValueKind::String => value.as_str().unwrap_or_default().chars().map(Value::from).collect(),
        // Jinja2 takes the failure for an attribute that is not there.
        ValueKind::None | ValueKind::Map | ValueKind::Number | ValueKind::Bool => {
            return Ok(Value::UNDEFINED);
        }
        kind => {
            let message = format!("a value of type {kind} has no slices");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    };
    charge(items.len().saturating_mul(size_of::<Value>()))?;
    let bound = |bound: Value| if bound.is_none() { Ok(None) } else { i64::try_from(bound).map(Some) };
    let chosen = indices(items.len(), bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1))?;
    let chosen = chosen.into_iter().map(|i| items[i].clone());
    Ok(match value.downcast_object_ref::<Tuple>() {
        _ if value.kind() == ValueKind::String => {
            Value::from(chosen.map(|c| c.as_str().unwrap_or_default().to_owned()).collect::<String>())
        }
        Some(_) => Value::from(Tuple::from(chosen.collect::<Vec<_>>())),
        None => chosen.collect(),
    })
}

/// The places that a slice of a sequence with `len` items has.
fn indices(len: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Result<Vec<usize>, Error> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    // Where places end at either side, and where a bound that is not given lies.
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
