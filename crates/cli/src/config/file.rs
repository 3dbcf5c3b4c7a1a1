//! The configuration file as text: keys, values and their lines.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::keys::{self, Key};
use crate::error::{Error, Result, printable};

/// Maximum size of a file in bytes; settings take a few hundred.
const MOST_BYTES: u64 = 1 << 20;

/// A value and its line.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// Value in the syntax of the flag.
    pub(super) value: String,
    /// Line of the file, counted from 1.
    pub(super) line: usize,
}

/// Reads the entries of a file; `None` if it does not exist.
///
/// # Errors
/// [`Error::ReadFile`]; [`Error::Config`] as for [`entries`].
pub(super) fn read(path: &Path) -> Result<Option<Vec<(&'static Key, Entry)>>> {
    let failed = |source| Error::ReadFile { path: path.to_owned(), source };
    let file = match File::open(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        file => file.map_err(failed)?,
    };
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(failed(ErrorKind::FileTooLarge.into()));
    }
    entries(path, &text).map(Some)
}

/// Parses the entries of a text.
///
/// # Errors
/// [`Error::Config`] for invalid TOML, an unknown key, and a value that is not a string, a number
/// or a boolean.
pub(super) fn entries(path: &Path, text: &str) -> Result<Vec<(&'static Key, Entry)>> {
    let line = |span: Range<usize>| {
        1 + text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count()
    };
    let refused = |line, reason| Error::Config { path: path.to_owned(), line, reason };
    let table = DeTable::parse(text).map_err(|error| {
        refused(line(error.span().unwrap_or_default()), printable(error.message().trim()))
    })?;
    let mut entries: Vec<(&'static Key, Entry)> = Vec::new();
    for (name, value) in table.get_ref() {
        let line = line(name.span());
        let key = keys::find(name.get_ref()).ok_or_else(|| refused(line, unknown(name.get_ref())))?;
        let value = match value.get_ref() {
            DeValue::String(text) => text.clone().into_owned(),
            // TOML allows underscores between digits, which are removed here, and other bases,
            // which flags do not.
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Boolean(value) => value.to_string(),
            _ => {
                let reason = format!("{} takes one value: a text, a number, true or false", key.name);
                return Err(refused(line, reason));
            }
        };
        entries.push((key, Entry { value, line }));
    }
    entries.sort_by_key(|(_, entry)| entry.line);
    Ok(entries)
}

fn unknown(name: &str) -> String {
    let shown: String = name.chars().take(48).collect();
    let shown = printable(&shown);
    match keys::nearest(name) {
        Some(near) => format!("`{shown}` is no setting; perhaps `{near}` is meant"),
        None => format!(
            "`{shown}` is no setting; settings are long flags of `ruvllm generate`, without dashes before them"
        ),
    }
}
