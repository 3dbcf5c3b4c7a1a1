//! Text and token ids that come from an argument, a file or standard input.

use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

use crate::error::{Error, Result};
use crate::output;

/// Name of standard input in messages.
const STDIN: &str = "standard input";

/// The text of an argument, or of standard input when the argument is absent or `-`.
///
/// # Errors
/// Standard input that cannot be read or is not UTF-8.
pub(crate) fn text_or_stdin(argument: Option<&str>) -> Result<String> {
    match argument {
        Some(text) if text != "-" => Ok(text.to_owned()),
        _ => utf8(STDIN, read_stdin()?),
    }
}

/// The text of a file, or of standard input when `path` is `-`.
///
/// # Errors
/// A file that cannot be read or is not UTF-8.
pub(crate) fn file_text(path: &Path) -> Result<String> {
    let (origin, bytes) = file_bytes(path)?;
    utf8(&origin, bytes)
}

/// Token ids from a file or, for `-`, from standard input: see [`parse_tokens`].
///
/// # Errors
/// A file that cannot be read, is not UTF-8 or holds anything but ids.
pub(crate) fn file_tokens(path: &Path) -> Result<Vec<u32>> {
    let (origin, bytes) = file_bytes(path)?;
    parse_tokens(&origin, &utf8(&origin, bytes)?)
}

/// Token ids from arguments; from standard input if there are none or a single `-`. See
/// [`parse_tokens`].
///
/// # Errors
/// Text that is not a list of ids.
pub(crate) fn argument_tokens(arguments: &[String]) -> Result<Vec<u32>> {
    if arguments.is_empty() || arguments == ["-"] {
        return parse_tokens(STDIN, &utf8(STDIN, read_stdin()?)?);
    }
    parse_tokens("the arguments", &arguments.join(" "))
}

/// Parses ids in any form that the program itself writes. That is a JSON array, a JSON object with
/// the array under `tokens` or `ids`, or ids separated by white space or commas.
///
/// # Errors
/// Anything else, with the offending piece.
pub(crate) fn parse_tokens(origin: &str, text: &str) -> Result<Vec<u32>> {
    let failed = |reason: String| Error::TokenList { origin: origin.to_owned(), reason };
    let trimmed = text.trim();
    if trimmed.starts_with('{') || trimmed.starts_with('[') {
        let value: serde_json::Value =
            serde_json::from_str(trimmed).map_err(|error| failed(format!("invalid JSON ({error})")))?;
        let array = match &value {
            serde_json::Value::Object(object) => object
                .get("tokens")
                .or_else(|| object.get("ids"))
                .ok_or_else(|| failed("the JSON object has neither `tokens` nor `ids`".to_owned()))?,
            other => other,
        };
        let array = array.as_array().ok_or_else(|| failed("the ids are not a JSON array".to_owned()))?;
        return array
            .iter()
            .map(|id| {
                id.as_u64()
                    .and_then(|id| u32::try_from(id).ok())
                    .ok_or_else(|| failed(not_an_id(&id.to_string())))
            })
            .collect();
    }
    trimmed
        .split(|c: char| c.is_whitespace() || c == ',')
        .filter(|piece| !piece.is_empty())
        .map(|piece| piece.parse().map_err(|_| failed(not_an_id(piece))))
        .collect()
}

/// Message for a wrong token id, shortened so that a wrong file cannot flood the terminal.
fn not_an_id(piece: &str) -> String {
    let mut shown: String = piece.chars().take(24).collect();
    if shown.len() < piece.len() {
        shown.push_str("...");
    }
    format!("`{shown}` is not a token id")
}

/// Bytes of a file or of standard input (`-`), with its name in messages.
fn file_bytes(path: &Path) -> Result<(String, Vec<u8>)> {
    if path == Path::new("-") {
        return Ok((STDIN.to_owned(), read_stdin()?));
    }
    let bytes = fs::read(path).map_err(|source| Error::ReadFile { path: path.to_owned(), source })?;
    Ok((path.display().to_string(), bytes))
}

/// Reads all of standard input; at a terminal a hint says that the program waits for text.
fn read_stdin() -> Result<Vec<u8>> {
    let mut stdin = io::stdin().lock();
    if stdin.is_terminal() && io::stderr().is_terminal() {
        output::hint("reading from the terminal; end the text with Ctrl-D on a line of its own");
    }
    let mut bytes = Vec::new();
    stdin.read_to_end(&mut bytes).map_err(Error::ReadStdin)?;
    Ok(bytes)
}

/// Decodes UTF-8; the error has the offset of the first invalid byte.
fn utf8(origin: &str, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| Error::NotUtf8 {
        origin: origin.to_owned(),
        offset: error.utf8_error().valid_up_to(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_an_id_list_is_read() {
        for text in
            ["1 2 3", "1,2,3", " 1, 2\n3\n", "[1, 2, 3]", r#"{"tokens":[1,2,3]}"#, r#"{"ids":[1,2,3]}"#]
        {
            assert_eq!(parse_tokens("test", text).unwrap(), [1, 2, 3], "{text:?}");
        }
        assert_eq!(parse_tokens("test", " \n").unwrap(), [0u32; 0]);
    }

    #[test]
    fn anything_else_is_refused_with_the_piece() {
        for (text, piece) in [
            ("1 two 3", "`two`"),
            ("-1", "`-1`"),
            ("4294967296", "`4294967296`"),
            ("[1.5]", "`1.5`"),
            ("[1, \"2\"]", "`\"2\"`"),
            ("[1, 2", "invalid JSON"),
            ("{}", "neither"),
            (r#"{"tokens": 3}"#, "not a JSON array"),
        ] {
            let error = parse_tokens("test", text).unwrap_err().to_string();
            assert!(error.contains(piece), "{text:?} gave {error:?}");
        }
    }

    #[test]
    fn the_first_invalid_byte_is_named() {
        let error = utf8("x", b"ab\xc3\xa9\xff".to_vec()).unwrap_err();
        assert!(error.to_string().contains("offset 4"), "{error}");
    }
}
