//! What Python takes for words, digits and names.

use std::sync::LazyLock;

use minijinja::{Error, Value};
use regex::Regex;

use super::to_str;

/// The filter `wordcount`.
pub(super) fn wordcount(value: &Value) -> Result<usize, Error> {
    static WORD: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"[\p{L}\p{N}_]+").ok());
    let text = to_str(value)?;
    Ok(WORD.as_ref().map_or(0, |word| word.find_iter(&text).count()))
}

/// `str.isdecimal`.
pub(super) fn is_decimal(text: &str) -> bool {
    static DECIMAL: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\A\p{Nd}+\z").ok());
    DECIMAL.as_ref().is_some_and(|decimal| decimal.is_match(text))
}

/// `str.isidentifier`.
pub(super) fn is_identifier(text: &str) -> bool {
    static NAME: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"\A[_\p{XID_Start}]\p{XID_Continue}*\z").ok());
    NAME.as_ref().is_some_and(|name| name.is_match(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_told_apart_as_in_python() {
        assert_eq!(wordcount(&Value::from("it's ünder_score 3x, --")).ok(), Some(4));
        assert_eq!(["12", "٣", "½", "1.0", ""].map(is_decimal), [true, true, false, false, false]);
        assert_eq!(["_a1", "é", "1a", "a b", ""].map(is_identifier), [true, true, false, false, false]);
    }
}
