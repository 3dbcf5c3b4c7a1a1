//! Scripted chat: one message per line of standard input, answers on standard output.

use std::io::{self, BufRead, IsTerminal, Read};
use std::process::ExitCode;

use ruvllm::FinishReason;

use super::dialogue::Question;
use super::entry::{self, Command, Entry};
use super::step::{Chat, Step};
use crate::error::{Error, Result};
use crate::output::{self, Reader, TextSink};
use crate::signal;

/// Maximum size of a message in bytes: more than any context holds.
const MOST_BYTES: usize = 16 << 20;

/// Answers all messages of standard input.
///
/// # Errors
/// The first error, with its line; earlier answers have been written.
///
/// An answer cut off by a full context is no error: later messages are answered, and the exit code
/// is 1.
pub(super) fn run(chat: &mut Chat<'_>, json: bool) -> Result<ExitCode> {
    let stdin = io::stdin().lock();
    if stdin.is_terminal() && io::stderr().is_terminal() {
        output::hint("reading messages from the terminal, one per line; end them with Ctrl-D");
    }
    let mut entries = Entries::new(stdin, "standard input");
    let mut code = ExitCode::SUCCESS;
    while let Some((line, text)) = entries.next()? {
        let in_line = |error| Error::ScriptLine { line, source: Box::new(error) };
        let question = match entry::parse(&text).map_err(in_line)? {
            Entry::Nothing => continue,
            Entry::Message(text) => Question::New(text),
            Entry::Command(Command::Regenerate) => Question::Again,
            Entry::Command(command) => match chat.obey(command).map_err(in_line)? {
                Step::GoOn => continue,
                Step::Leave => break,
            },
        };
        let sink = if json { TextSink::nowhere() } else { TextSink::stdout() };
        let (outcome, reader) = chat.answer(question, sink).map_err(in_line)?;
        if reader == Reader::Gone {
            return Ok(code);
        }
        if outcome.finish == FinishReason::Cancelled {
            code = signal::exit_code();
            break;
        }
        if outcome.context_full {
            output::warn(&format!(
                "line {line}: the answer is cut off, the context is full; raise --context or lower --max-tokens"
            ));
            code = ExitCode::FAILURE;
        }
    }
    if json {
        chat.dialogue.write_json()?;
    }
    Ok(code)
}

/// Reader of entries, each of one or several lines.
struct Entries<R> {
    input: R,
    /// Name of the input in messages.
    origin: &'static str,
    lines: usize,
    bytes: usize,
}

impl<R: BufRead> Entries<R> {
    fn new(input: R, origin: &'static str) -> Self {
        Self { input, origin, lines: 0, bytes: 0 }
    }

    /// Reads the next entry, with its first line counted from 1; `None` at the end.
    fn next(&mut self) -> Result<Option<(usize, String)>> {
        let first = self.lines + 1;
        let mut text = String::new();
        loop {
            let Some(line) = self.line(first, MOST_BYTES.saturating_sub(text.len()))? else {
                let unfinished = Err(Error::UnfinishedMessage { line: first });
                return if text.is_empty() { Ok(None) } else { unfinished };
            };
            text.push_str(&line);
            if entry::is_complete(&text) {
                return Ok(Some((first, text)));
            }
            text.push('\n');
        }
    }

    /// Reads the next line without its line break; `None` at the end.
    fn line(&mut self, first: usize, limit: usize) -> Result<Option<String>> {
        let mut bytes = Vec::new();
        self.input.by_ref().take(limit as u64 + 1).read_until(b'\n', &mut bytes).map_err(Error::ReadStdin)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.len() > limit {
            return Err(Error::LongMessage { line: first, limit: MOST_BYTES });
        }
        let start = self.bytes;
        self.bytes += bytes.len();
        self.lines += 1;
        let mut line = String::from_utf8(bytes).map_err(|error| Error::NotUtf8 {
            origin: self.origin.to_owned(),
            offset: start + error.utf8_error().valid_up_to(),
        })?;
        let end = line.trim_end_matches('\n').len();
        line.truncate(end - usize::from(line[..end].ends_with('\r')));
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &[u8]) -> Result<Vec<(usize, String)>> {
        let mut entries = Entries::new(text, "a text");
        let mut found = Vec::new();
        while let Some(entry) = entries.next()? {
            found.push(entry);
        }
        Ok(found)
    }

    #[test]
    fn entries_know_where_they_begin() {
        let text = b"one\r\n\ntwo\\\nlines\n\"\"\"\nthree\n\nlines\n\"\"\"\nlast";
        let expected =
            [(1, "one"), (2, ""), (3, "two\\\nlines"), (5, "\"\"\"\nthree\n\nlines\n\"\"\""), (10, "last")];
        assert_eq!(entries(text).unwrap(), expected.map(|(line, text)| (line, text.to_owned())));
        assert_eq!(entries(b"").unwrap(), []);
    }

    #[test]
    fn what_does_not_end_is_an_error_with_its_line() {
        for text in [&b"one\n\"\"\"\ntwo\n"[..], b"one\ntwo\\\n", b"one\ntwo\\"] {
            assert!(matches!(entries(text), Err(Error::UnfinishedMessage { line: 2 })));
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_found() {
        assert!(matches!(entries(b"one\ntw\xff\n"), Err(Error::NotUtf8 { offset: 6, .. })));
    }

    #[test]
    fn a_message_without_end_does_not_fill_the_memory() {
        let endless = std::io::BufReader::new(io::repeat(b'x'));
        let error = Entries::new(endless, "a text").next().unwrap_err();
        assert!(matches!(error, Error::LongMessage { line: 1, .. }), "{error}");
        let lines = std::io::BufReader::new(io::repeat(b'"'));
        assert!(matches!(Entries::new(lines, "a text").next(), Err(Error::LongMessage { .. })));
    }
}
