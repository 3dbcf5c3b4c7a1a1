//! HTML escapes.

use minijinja::{Error, Value};

use super::values::to_str;
use crate::chat::origin::plain;

/// Filters `e` and `escape`.
pub(super) fn escape(value: &Value) -> Result<Value, Error> {
    Ok(if value.is_safe() { value.clone() } else { Value::from_safe_string(escaped(&to_str(value)?)) })
}

/// As `markupsafe.escape`.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for written in text.chars() {
        match plain(written) {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            _ => out.push(written),
        }
    }
    out
}
