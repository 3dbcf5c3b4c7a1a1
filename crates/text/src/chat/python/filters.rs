//! Filters whose versions in the engine differ from Jinja2's, or fail where Jinja2's do not.

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Kwargs, Rest, ValueKind, ValueOrKwargs},
};

use super::{
    arguments::Arguments,
    strings::{self, strip},
    values::{Group, at_path, to_str},
};
use crate::chat::{
    bounds::{charge, charge_elements, charge_value},
    origin::{Places, map_chars, plain_text},
};

/// Filters `length` and `count`: an undefined value has length 0, as in Jinja2.
pub(super) fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { minijinja::filters::length(value) }
}

/// Filter `first`.
pub(super) fn first(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Value::UNDEFINED) } else { minijinja::filters::first(value) }
}

/// Filter `last`.
pub(super) fn last(value: Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(value) } else { minijinja::filters::last(value) }
}

/// Filter `items`.
pub(super) fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    minijinja::filters::items(value)
}

/// Filter `list`.
pub(super) fn list(state: &State, value: Value) -> Result<Value, Error> {
    minijinja::filters::list(state, value)
}

/// Filter `upper`.
pub(super) fn upper(value: &Value) -> Result<String, Error> {
    Ok(strings::upper(&to_str(value)?))
}

/// Filter `lower`.
pub(super) fn lower(value: &Value) -> Result<String, Error> {
    Ok(strings::lower(&to_str(value)?))
}

/// Filter `capitalize`.
pub(super) fn capitalize(value: &Value) -> Result<String, Error> {
    Ok(strings::capitalize(&to_str(value)?))
}

/// Filter `title`: words end at white space and before some brackets.
pub(super) fn title(value: &Value) -> Result<String, Error> {
    let mut in_word = false;
    let mapped = map_chars(&to_str(value)?, |c| {
        let (lower, upper) = (c.to_lowercase(), c.to_uppercase());
        let (is_lower, is_word) = (in_word, !(c.is_whitespace() || matches!(c, '-' | '(' | '{' | '[' | '<')));
        in_word = is_word;
        lower.take(if is_lower { usize::MAX } else { 0 }).chain(upper.take(if is_lower {
            0
        } else {
            usize::MAX
        }))
    });
    Ok(mapped)
}

/// Filters `default` and `d`.
pub(super) fn default(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let mut args = Arguments::of(args)?;
    let other = args.value("default_value")?.unwrap_or_else(|| Value::from(""));
    let replaces_false = args.flag("boolean", false)?;
    args.finish()?;
    let is_replaced = value.is_undefined() || (replaces_false && !value.is_true());
    Ok(if is_replaced { other } else { value.clone() })
}

/// Filter `int`: 0 for anything but a number. White space around a string and underscores between
/// its digits are ignored.
pub(super) fn int(state: &State, value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let mut args = Arguments::of(args)?;
    let default = args.value("default")?.unwrap_or_else(|| Value::from(0));
    let base = args.get("base")?;
    args.finish()?;
    let value = without_space(value);
    let has_lone_underscore = |text: &str| text.split('_').any(str::is_empty);
    let value = match value.as_str().filter(|text| text.contains('_') && !has_lone_underscore(text)) {
        Some(text) => Value::from(text.replace('_', "")),
        None => value,
    };
    minijinja::filters::int(state, &value, Some(default), base, no_names())
}

/// Filter `float`: 0 for anything but a number.
pub(super) fn float(state: &State, value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let mut args = Arguments::of(args)?;
    let default = args.value("default")?.unwrap_or_else(|| Value::from(0.0));
    args.finish()?;
    minijinja::filters::float(state, &without_space(value), Some(default), no_names())
}

/// Strips white space from a string; other values stay.
fn without_space(value: &Value) -> Value {
    value
        .as_str()
        .map_or_else(|| value.clone(), |text| Value::from(strip(&plain_text(text), None, true, true)))
}

fn no_names() -> Kwargs {
    Kwargs::from_iter([] as [(&str, Value); 0])
}

/// Filter `trim`.
pub(super) fn trim(value: &Value, chars: Option<&str>) -> Result<String, Error> {
    Ok(strip(&to_str(value)?, chars, true, true).to_owned())
}

/// Iterable of a `for` loop: a string becomes the list of its characters, other values stay.
/// `text_bytes` is the number of bytes of template text that one pass of the loop may write.
pub(in crate::chat) fn characters(value: Value, text_bytes: usize) -> Result<Value, Error> {
    let items = match value.as_str() {
        Some(text) => {
            charge_elements(text.len())?;
            text.chars().map(Value::from).collect()
        }
        // The engine treats none as an empty list; in Python it is an error, which templates rely
        // on.
        None if value.is_none() => {
            return Err(Error::new(ErrorKind::InvalidOperation, "'NoneType' object is not iterable"));
        }
        None if value.len().is_none() && !value.is_undefined() => value.try_iter()?.collect(),
        None => value,
    };
    let passes = items.len().unwrap_or(0);
    charge(passes.saturating_mul(text_bytes + size_of::<Value>()))?;
    Ok(items)
}

/// Filter and method `replace`.
pub(super) fn replace(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    replaced(value, Arguments::of(args)?)
}

/// Replaces the argument `old` by `new`, at most `count` times.
pub(super) fn replaced(value: &Value, mut args: Arguments) -> Result<String, Error> {
    let (from, to) = (to_str(&args.required("old")?)?, to_str(&args.required("new")?)?);
    // A negative count means no limit.
    let count = args.get::<i64>("count")?.and_then(|count| usize::try_from(count).ok());
    args.finish()?;
    let text = to_str(value)?;
    let (plain, mut places) = Places::new(&text);
    let from = plain_text(&from);
    let mut out = String::new();
    let mut after = 0;
    for (at, found) in plain.match_indices(&*from).take(count.unwrap_or(usize::MAX)) {
        let start = places.of(at);
        charge(start - after + to.len())?;
        out.push_str(&text[after..start]);
        out.push_str(&to);
        after = places.of(at + found.len());
    }
    charge(text.len() - after)?;
    out.push_str(&text[after..]);
    Ok(out)
}

/// Filter `join`.
pub(super) fn join(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let mut args = Arguments::of(args)?;
    let between = args.text("d")?.unwrap_or_default();
    let attribute = args.text("attribute")?;
    args.finish()?;
    if value.is_undefined() {
        return Ok(String::new());
    }
    let Some(path) = attribute else { return joined(characters(value.clone(), 0)?, &between) };
    let items = value.try_iter()?.map(|item| at_path(&item, &path).unwrap_or_default());
    joined(items.collect(), &between)
}

/// Joins the items of a list as strings, with `between` as separator.
pub(super) fn joined(items: Value, between: &str) -> Result<String, Error> {
    let mut out = String::new();
    for (i, item) in items.try_iter()?.enumerate() {
        let item = to_str(&item)?;
        charge(between.len() + item.len())?;
        out.extend((i > 0).then_some(between).into_iter().chain([item.as_str()]));
    }
    Ok(out)
}

/// Filter `batch`.
pub(super) fn batch(state: &State, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    charge_elements(count)?;
    minijinja::filters::batch(state, value, count, fill)
}

/// Filter `slice`.
pub(super) fn slice(state: &State, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    charge_elements(count)?;
    minijinja::filters::slice(state, value, count, fill)
}

/// Filter `dictsort`.
pub(super) fn dictsort(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let mut args = Arguments::of(args)?;
    let is_case_sensitive = args.flag("case_sensitive", false)?;
    let by = args.text("by")?.unwrap_or_else(|| "key".to_owned());
    let is_reversed = args.flag("reverse", false)?;
    args.finish()?;
    if !matches!(by.as_str(), "key" | "value") {
        return Err(Error::new(ErrorKind::InvalidOperation, "dictsort sorts by \"key\" or \"value\""));
    }
    let named = [
        ("case_sensitive", Value::from(is_case_sensitive)),
        ("by", Value::from(by)),
        ("reverse", Value::from(is_reversed)),
    ];
    minijinja::filters::dictsort(value, Kwargs::from_iter(named))
}

/// Filter `groupby`.
pub(super) fn groupby(value: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let mut args = Arguments::of(args)?;
    let attribute = to_str(&args.required("attribute")?)?;
    let default = args.value("default")?.unwrap_or_default();
    let is_case_sensitive = args.flag("case_sensitive", false)?;
    args.finish()?;
    let named = [("default", default.clone()), ("case_sensitive", Value::from(is_case_sensitive))];
    let groups = minijinja::filters::groupby(value, Some(&attribute), Kwargs::from_iter(named))?;
    let mut out = Vec::new();
    for group in groups.try_iter()? {
        let items: Vec<Value> = group.get_item_by_index(1)?.try_iter()?.collect();
        let items = Value::from(items);
        charge_value(&items)?;
        // Keys that differ only in case form one group, named as its first item writes it.
        let key = items.get_item_by_index(0).ok().and_then(|item| at_path(&item, &attribute));
        let key = key.filter(|key| !key.is_undefined()).unwrap_or_else(|| default.clone());
        out.push(Value::from_object(Group { key, items }));
    }
    Ok(Value::from(out))
}

/// Test `iterable`.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Test `sequence`: anything with a length and items, thus mappings and strings too.
pub(super) fn is_sequence(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Undefined | ValueKind::Seq | ValueKind::Map | ValueKind::String => true,
        // Slices and sums of lists, but not generators.
        ValueKind::Iterable => value.len().is_some(),
        _ => false,
    }
}
