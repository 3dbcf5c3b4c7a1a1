//! Standard output: documents, streamed text, and formats shared by the text forms.
//!
//! A closed pipe (`ruvllm ... | head`) is no error: the reader has what it wanted, so nothing more
//! is written and the program ends with success.
//!
//! Text of models, files and hubs may hold escape sequences. A terminal gets it without control
//! characters; pipes and files get it byte for byte.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::ops::ControlFlow;

use clap::builder::styling::Style;
use serde::Serialize;

use crate::answer_filter::Voice;
use crate::console;
use crate::error::{Error, Result};
pub(crate) use crate::units::{ago, bytes, counted, rounded};
use crate::wrap::Wrap;

/// State of the reader of standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// The text was written.
    Listening,
    /// The pipe is closed; further output is pointless.
    Gone,
}

/// Writes `text` to standard output and flushes it, so that a reader sees it now. A terminal gets
/// it without control characters.
pub(crate) fn write_text(text: &str) -> Result<Reader> {
    if io::stdout().is_terminal() { write_exactly(&harmless(text)) } else { write_exactly(text) }
}

/// Writes `text` to standard output as it is, and flushes it.
pub(crate) fn write_exactly(text: &str) -> Result<Reader> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Reader::Listening),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Error::WriteStdout(error)),
    }
}

/// Sink of generated text: streams to standard output, or discards (for JSON output).
pub(crate) struct TextSink {
    streams: bool,
    failure: Option<Error>,
    reader: Reader,
    /// True if the terminal's cursor is at the start of a line.
    ends_line: bool,
    /// Wrapping at the edge of a terminal.
    wrap: Option<Wrap>,
    voice: Voice,
}

impl TextSink {
    /// Creates a sink to standard output.
    pub(crate) fn stdout() -> Self {
        Self {
            streams: true,
            failure: None,
            reader: Reader::Listening,
            ends_line: true,
            wrap: None,
            voice: Voice::Answer,
        }
    }

    /// Creates a sink to a terminal of `width` columns, wrapped between words. Without a width, as
    /// [`stdout`](Self::stdout).
    pub(crate) fn terminal(width: Option<usize>) -> Self {
        Self { wrap: width.map(Wrap::new), ..Self::stdout() }
    }

    /// Creates a sink that discards the text.
    pub(crate) fn nowhere() -> Self {
        Self { streams: false, ..Self::stdout() }
    }

    /// Writes a piece of text; `Break` if the pipe is closed or the write failed.
    pub(crate) fn push(&mut self, text: &str) -> ControlFlow<()> {
        if !self.streams {
            return ControlFlow::Continue(());
        }
        match &mut self.wrap {
            Some(wrap) => {
                let text = wrap.push(text);
                self.write(&text)
            }
            None => self.write(text),
        }
    }

    /// Writes a piece of an answer or of its thinking, which is dimmed at a terminal; a blank line
    /// is between them.
    pub(crate) fn speak(&mut self, voice: Voice, text: &str) -> ControlFlow<()> {
        if voice != self.voice && self.streams {
            self.start_line();
            if self.voice == Voice::Thinking {
                self.push("\n")?;
            }
            self.voice = voice;
        }
        self.push(text)
    }

    /// Begins a line, unless one has just begun.
    pub(crate) fn start_line(&mut self) {
        if !self.ends_line {
            // A reader that is gone, or a failure, is noted for the next piece of text.
            let _ = self.push("\n");
        }
    }

    fn write(&mut self, text: &str) -> ControlFlow<()> {
        if text.is_empty() {
            return ControlFlow::Continue(());
        }
        self.ends_line = text.ends_with('\n');
        let written = match self.voice {
            Voice::Thinking if console::colors_stdout() => {
                let style = Style::new().dimmed();
                write_exactly(&format!("{style}{}{style:#}", harmless(text)))
            }
            _ => write_text(text),
        };
        match written {
            Ok(Reader::Listening) => return ControlFlow::Continue(()),
            Ok(Reader::Gone) => self.reader = Reader::Gone,
            Err(error) => self.failure = Some(error),
        }
        ControlFlow::Break(())
    }

    /// Ends the last line; returns the state of the reader.
    ///
    /// # Errors
    /// The first write that failed.
    pub(crate) fn finish(mut self) -> Result<Reader> {
        let rest = self.wrap.as_mut().map(Wrap::finish).unwrap_or_default();
        if self.failure.is_none() && self.reader == Reader::Listening {
            // The result is in `failure` and `reader`.
            let _ = self.write(&rest);
        }
        match self.failure {
            Some(error) => Err(error),
            None if self.ends_line || self.reader == Reader::Gone => Ok(self.reader),
            None => write_text("\n"),
        }
    }
}

/// Writes one JSON document and a line break to standard output. On a terminal, control characters
/// that JSON allows in strings (U+007F to U+009F) become escapes of the same value.
pub(crate) fn write_json<T: Serialize>(document: &T) -> Result<()> {
    write_exactly(&json_line(document)?).map(|_| ())
}

/// A JSON document on a line, as [`write_json`] writes it.
///
/// # Errors
/// A document that cannot be written as JSON.
pub(crate) fn json_line<T: Serialize>(document: &T) -> Result<String> {
    let failed = |error: serde_json::Error| Error::WriteStdout(error.into());
    let mut text = serde_json::to_string(document).map_err(failed)?;
    if io::stdout().is_terminal() {
        text = escaped(&text);
    }
    text.push('\n');
    Ok(text)
}

/// True if standard output is no terminal; a progress bar on standard error then cannot mix with
/// it.
pub(crate) fn goes_elsewhere() -> bool {
    !io::stdout().is_terminal()
}

/// Escapes the control characters of a JSON document, which occur only in strings.
fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_control() {
            // Writing to a string does not fail.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// Columns that the last column of a [`table`] has at least when its text wraps.
const LEAST_LAST_COLUMN: usize = 20;

/// Rows as aligned columns, two spaces apart: text to the left, columns named in `right` to the
/// right. Text of the last column wraps at the width of the terminal, below its own beginning.
pub(crate) fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    table_of_width(rows, right, console::columns())
}

/// As [`table`], with one line for each row, however long: for output that scripts read by lines.
pub(crate) fn table_of_lines(rows: &[Vec<String>], right: &[usize]) -> String {
    table_of_width(rows, right, usize::MAX)
}

fn table_of_width(rows: &[Vec<String>], right: &[usize], columns: usize) -> String {
    let n_columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..n_columns).map(width).collect();
    let last_start: usize = widths.iter().rev().skip(1).map(|width| width + 2).sum();
    let last_width = columns.saturating_sub(last_start);
    let wraps = last_width >= LEAST_LAST_COLUMN && !right.contains(&n_columns.saturating_sub(1));
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            if column > 0 {
                line.push_str("  ");
            }
            let pad = " ".repeat(widths[column] - cell.chars().count());
            if wraps && column + 1 == n_columns {
                let indent = format!("\n{}", " ".repeat(last_start));
                line.push_str(&wrapped(cell, last_width).replace('\n', &indent));
            } else if right.contains(&column) {
                line.push_str(&pad);
                line.push_str(cell);
            } else {
                line.push_str(cell);
                line.push_str(&pad);
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// `text` with line breaks between words, for lines of at most `width` columns. A word that is
/// longer stays whole on a line of its own.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    let mut out = String::with_capacity(text.len());
    let mut column = 0;
    for word in text.split_inclusive([' ', '\n']) {
        let shown = word.trim_end().chars().count();
        if column > 0 && column + shown > width {
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
            column = 0;
        }
        out.push_str(word);
        column = if word.ends_with('\n') { 0 } else { column + word.chars().count() };
    }
    out
}

/// `text` without control characters but line breaks and tabs, so that what a model or a file says
/// cannot drive a terminal.
fn harmless(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

/// Writes lines that the user asked for to standard error, also with `--quiet`.
pub(crate) fn note(text: &str) {
    // If standard error is closed, there is nowhere to report it.
    let _ = writeln!(std::io::stderr(), "{}", harmless(text.trim_end()));
}

/// Writes a line that the user did not ask for to standard error, unless `--quiet`.
pub(crate) fn hint(text: &str) {
    if !console::is_quiet() {
        note(text);
    }
}

/// Writes lines to standard error if `--verbose`.
pub(crate) fn detail(text: &str) {
    if console::is_verbose() {
        note(text);
    }
}

/// Writes a warning to standard error, unless `--quiet`.
pub(crate) fn warn(text: &str) {
    if !console::is_quiet() {
        // If standard error is closed, there is nowhere to report it.
        let _ = writeln!(std::io::stderr(), "{} {}", console::warning_label(), harmless(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_drives_a_terminal() {
        assert_eq!(harmless("a\u{1b}[2Jb\r\n\tc\u{9b}1md\u{7}"), "a[2Jb\n\tc1md");
        let text = "\u{9b}2J\u{7f}\u{1b}\n";
        let json = escaped(&serde_json::to_string(text).unwrap());
        assert!(!json.chars().any(char::is_control), "{json:?}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["test".into(), "t/s".into()], vec!["pp512".into(), "7".into()]];
        assert_eq!(table(&rows, &[1]), "test   t/s\npp512    7\n");
    }

    #[test]
    fn the_last_column_wraps_below_itself() {
        let row = |name: &str, text: &str| vec![name.to_owned(), text.to_owned()];
        let rows = [row("a", "one two three four five"), row("long", "overlong_words_stay_whole x")];
        let expected = "a     one two three four\n      five\nlong  overlong_words_stay_whole\n      x\n";
        assert_eq!(table_of_width(&rows, &[], 26), expected);
        assert_eq!(table_of_width(&rows[..1], &[], 10), "a  one two three four five\n");
    }
}
