//! The filter `pprint`: Python's `pprint.pformat`.

use minijinja::{Error, ErrorKind, Value, value::ValueKind};

use super::{is_tuple, methods::lines, pairs, to_repr};
use crate::chat::bounds::charge;

/// Columns of a line.
const WIDTH: usize = 80;

/// Deepest nesting that is written: each level prints again what is below it.
const MAX_DEPTH: usize = 50;

/// The filter `pprint`.
pub(super) fn pprint(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write(&sorted(value, 0)?, 0, 0, 1, &mut out)?;
    Ok(out)
}

/// A value with all mappings in it sorted by their keys.
fn sorted(value: &Value, depth: usize) -> Result<Value, Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "the value is nested too deeply to be printed"));
    }
    charge(size_of::<Value>())?;
    let is_list = value.kind() == ValueKind::Seq && !is_tuple(value);
    match pairs(value).filter(|_| value.kind() == ValueKind::Map) {
        Some(mut pairs) => {
            pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
            let pairs = pairs.into_iter().map(|(key, value)| Ok((key, sorted(&value, depth + 1)?)));
            Ok(Value::from_pairs(pairs.collect::<Result<Vec<_>, Error>>()?))
        }
        None if is_list => value.try_iter()?.map(|item| sorted(&item, depth + 1)).collect(),
        None => Ok(value.clone()),
    }
}

/// Writes a value that starts in column `indent` and has `behind` characters after it in its last line.
fn write(value: &Value, indent: usize, behind: usize, level: usize, out: &mut String) -> Result<(), Error> {
    let repr = to_repr(value)?;
    charge(repr.len())?;
    let is_long = repr.chars().count() + indent + behind > WIDTH;
    match (value.kind(), pairs(value)) {
        (ValueKind::Map, Some(pairs)) if is_long => {
            out.push('{');
            for (i, (key, item)) in pairs.iter().enumerate() {
                let key = to_repr(key)?;
                new_line(i, indent + 1, out)?;
                out.push_str(&key);
                out.push_str(": ");
                let behind = if i + 1 == pairs.len() { behind + 1 } else { 1 };
                write(item, indent + key.chars().count() + 3, behind, level + 1, out)?;
            }
            out.push('}');
        }
        (ValueKind::Seq, _) if is_long => {
            let items: Vec<Value> = value.try_iter()?.collect();
            let (open, close) = match (is_tuple(value), items.len()) {
                (false, _) => ("[", "]"),
                (true, 1) => ("(", ",)"),
                (true, _) => ("(", ")"),
            };
            out.push_str(open);
            for (i, item) in items.iter().enumerate() {
                new_line(i, indent + 1, out)?;
                let behind = if i + 1 == items.len() { behind + close.len() } else { 1 };
                write(item, indent + 1, behind, level + 1, out)?;
            }
            out.push_str(close);
        }
        (ValueKind::String, _) if is_long => {
            write_text(value.as_str().unwrap_or_default(), indent, behind, level == 1, out)?;
        }
        _ => out.push_str(&repr),
    }
    Ok(())
}

/// Ends the line of the item before, if there is one.
fn new_line(item: usize, indent: usize, out: &mut String) -> Result<(), Error> {
    if item > 0 {
        charge(indent)?;
        out.push_str(",\n");
        out.extend(std::iter::repeat_n(' ', indent));
    }
    Ok(())
}

/// Writes a long text as literals below each other.
fn write_text(
    text: &str,
    indent: usize,
    behind: usize,
    is_whole: bool,
    out: &mut String,
) -> Result<(), Error> {
    let (indent, behind) = if is_whole { (indent + 1, behind + 1) } else { (indent, behind) };
    let room = WIDTH.saturating_sub(indent);
    let repr = |text: &str| to_repr(&Value::from(text));
    let mut literals = Vec::new();
    let lines = lines(text, true);
    for (i, line) in lines.iter().enumerate() {
        let is_last = i + 1 == lines.len();
        let room_before = |is_end: bool| if is_end { room.saturating_sub(behind) } else { room };
        let whole = repr(line)?;
        if whole.chars().count() <= room_before(is_last) {
            literals.push(whole);
            continue;
        }
        let mut current = String::new();
        let mut words = line.split_inclusive(char::is_whitespace).peekable();
        while let Some(word) = words.next() {
            let mut part = word.to_owned();
            while let Some(space) = words.next_if(|word| word.trim().is_empty()) {
                part.push_str(space);
            }
            let both = current.clone() + &part;
            if repr(&both)?.chars().count() > room_before(is_last && words.peek().is_none()) {
                if !current.is_empty() {
                    literals.push(repr(&current)?);
                }
                current = part;
            } else {
                current = both;
            }
        }
        if !current.is_empty() {
            literals.push(repr(&current)?);
        }
    }
    let (open, close) = if is_whole && literals.len() > 1 { ("(", ")") } else { ("", "") };
    charge(literals.iter().map(|literal| literal.len() + indent).sum())?;
    out.push_str(open);
    for (i, literal) in literals.iter().enumerate() {
        if i > 0 {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
        }
        out.push_str(literal);
    }
    out.push_str(close);
    Ok(())
}
