//! Sums and concatenations.

use minijinja::{
    Error, State, Value,
    value::{Rest, ValueKind, ValueOrKwargs},
};

use super::{
    arguments::Arguments,
    html::escaped,
    plain::checked,
    values::{at_path, to_str},
};
use crate::chat::bounds::{ELEMENT_BYTES, charge, work};

/// Evaluates `a + b + c`, passed as a list. With `escapes`, strings added to one that is marked as
/// safe are escaped.
pub(in crate::chat) fn add(state: &State, list: &Value, escapes: bool) -> Result<Value, Error> {
    let mut items = list.try_iter()?.peekable();
    let mut sum = items.next().unwrap_or_default();
    // Strings are joined in one buffer, in linear time.
    if !sum.is_safe()
        && let Some(first) = sum.as_str()
    {
        let mut text = first.to_owned();
        charge(text.len())?;
        while let Some(next) = items.next_if(|next| next.as_str().is_some() && !next.is_safe()) {
            let next = next.as_str().unwrap_or_default();
            charge(next.len())?;
            text.push_str(next);
        }
        sum = Value::from(text);
    }
    for next in items {
        sum = add_two(state, &sum, &next, escapes)?;
    }
    Ok(sum)
}

fn add_two(state: &State, left: &Value, right: &Value, escapes: bool) -> Result<Value, Error> {
    work(size_of_copy(left) + size_of_copy(right))?;
    match (left.as_str(), right.as_str()) {
        (Some(a), Some(b)) if escapes && (left.is_safe() || right.is_safe()) => {
            let operand = |value: &Value, text: &str| {
                if value.is_safe() { text.to_owned() } else { escaped(text) }
            };
            checked(Value::from_safe_string(operand(left, a) + &operand(right, b)))
        }
        (Some(a), Some(b)) => checked(Value::from([a, b].concat())),
        _ => match (i64::try_from(left.clone()), i64::try_from(right.clone())) {
            (Ok(a), Ok(b))
                if left.is_integer()
                    && right.is_integer()
                    && let Some(sum) = a.checked_add(b) =>
            {
                Ok(Value::from(sum))
            }
            _ => {
                let operands = minijinja::context! { a => left, b => right };
                checked(state.env().compile_expression("a + b")?.eval(operands)?)
            }
        },
    }
}

/// Bytes charged for a copy of a value.
fn size_of_copy(value: &Value) -> usize {
    match value.as_str() {
        Some(text) => text.len(),
        None => match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => value.len().unwrap_or(0).saturating_mul(ELEMENT_BYTES),
            _ => 0,
        },
    }
}

/// Evaluates `a ~ b ~ c`, passed as a list.
pub(super) fn concat(list: &Value) -> Result<String, Error> {
    let mut out = String::new();
    for item in list.try_iter()? {
        let text = to_str(&item)?;
        charge(text.len())?;
        out.push_str(&text);
    }
    Ok(out)
}

/// Filter `sum`.
pub(super) fn sum(state: &State, value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let mut args = Arguments::of(args)?;
    let attribute = args.text("attribute")?;
    let mut sum = args.value("start")?.unwrap_or_else(|| Value::from(0));
    args.finish()?;
    if value.is_undefined() {
        return Ok(sum);
    }
    for item in value.try_iter()? {
        let item = match &attribute {
            Some(path) => at_path(&item, path).unwrap_or_default(),
            None => item,
        };
        if !item.is_undefined() {
            sum = add_two(state, &sum, &item, false)?;
        }
    }
    Ok(sum)
}
