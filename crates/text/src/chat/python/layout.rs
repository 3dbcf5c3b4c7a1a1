//! Filters that indent and truncate texts.

use super::{
    arguments::Arguments,
    strings::{MAX_WIDTH, lines},
};
use crate::chat::bounds::charge;
use minijinja::{
    Error, ErrorKind, Value,
    value::{Rest, StringInput, ValueOrKwargs},
};

/// Filter `indent`: a final line break stays, and the width may be a string.
pub(super) fn indent(value: StringInput<'_>, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let mut args = Arguments::of(args)?;
    let (width, first) = (args.value("width")?, args.flag("first", false)?);
    let blank = args.flag("blank", false)?;
    args.finish()?;
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
        let is_indented = if i == 0 { first } else { blank || !line.is_empty() };
        out.extend(is_indented.then_some(indentation.as_str()).into_iter().chain([line]));
    }
    Ok(out)
}

/// Filter `truncate`.
pub(super) fn truncate(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let mut args = Arguments::of(args)?;
    let length: usize = args.get("length")?.unwrap_or(255);
    let cuts_words = args.flag("killwords", false)?;
    let end = args.text("end")?.unwrap_or_else(|| "...".to_owned());
    let leeway: usize = args.get("leeway")?.unwrap_or(5);
    args.finish()?;
    let kept = length.checked_sub(end.chars().count());
    let too_short =
        || Error::new(ErrorKind::InvalidOperation, "truncate leaves no room for what ends the text");
    let kept = kept.ok_or_else(too_short)?;
    // A list that is short enough is returned as it is.
    let len = if value.is_undefined() { Some(0) } else { value.len() };
    if len.is_some_and(|len| len <= length.saturating_add(leeway)) {
        return Ok(value.clone());
    }
    let not_a_text = || Error::new(ErrorKind::InvalidOperation, "truncate takes a text");
    let text = value.as_str().ok_or_else(not_a_text)?;
    let kept = &text[..text.char_indices().nth(kept).map_or(text.len(), |(at, _)| at)];
    let words = kept.rsplit_once(' ').filter(|_| !cuts_words);
    Ok(Value::from(words.map_or(kept, |(words, _)| words).to_owned() + &end))
}
