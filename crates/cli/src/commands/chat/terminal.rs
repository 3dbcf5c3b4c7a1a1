//! Interactive chat: line editor, history, Ctrl-C.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustyline::completion::Completer;
use rustyline::config::{CompletionType, Config};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Cmd, ConditionalEventHandler, Context, Editor, Event, EventContext, EventHandler, Helper, KeyEvent,
    RepeatCount,
};

use super::completion;
use super::dialogue::Question;
use super::entry::{self, Command, Entry};
use super::step::{Chat, Step, remark};
use crate::error::{Error, Result};
use crate::output::{self, Reader, TextSink};
use crate::{signal, user_folders};

/// Maximum number of lines in the history.
const MOST_LINES: usize = 1000;

/// Longest line kept in the history, in bytes; longer ones are usually pasted.
const MOST_LINE_BYTES: usize = 4096;

/// Maximum size of the history file in bytes: each byte of a line may be escaped.
const MOST_FILE_BYTES: u64 = 4 * (MOST_LINES * MOST_LINE_BYTES) as u64;

/// Runs the conversation until the user leaves.
///
/// # Errors
/// A terminal that cannot be read or written. Other errors are reported, and the conversation goes
/// on.
pub(super) fn run(chat: &mut Chat<'_>, remembers: bool) -> Result<ExitCode> {
    let mut lines = Lines::open(remembers)?;
    loop {
        if chat.interrupts.is_ending() {
            return Ok(signal::exit_code());
        }
        lines.know_adapters(chat.dialogue.adapters.names());
        let text = match lines.next()? {
            Line::Text(text) => text,
            Line::End => return Ok(ExitCode::SUCCESS),
            Line::Interrupted => return Ok(ExitCode::from(signal::INTERRUPTED)),
        };
        match take(chat, &text, lines.width()) {
            Ok(Step::GoOn) => {}
            Ok(Step::Leave) => return Ok(ExitCode::SUCCESS),
            Err(error @ Error::WriteStdout(_)) => return Err(error),
            Err(error) => output::note(&format!("error: {}", error.line())),
        }
    }
}

/// Answers a message, wrapped at `width` columns, or executes a command.
fn take(chat: &mut Chat<'_>, text: &str, width: Option<usize>) -> Result<Step> {
    let question = match entry::parse(text)? {
        Entry::Nothing => return Ok(Step::GoOn),
        Entry::Message(text) => Question::New(text),
        Entry::Command(Command::Regenerate) => Question::Again,
        Entry::Command(command) => return chat.obey(command),
    };
    let (outcome, reader) = chat.answer(question, TextSink::terminal(width))?;
    if let Some(remark) = remark(&outcome) {
        output::note(remark);
    }
    Ok(if reader == Reader::Gone { Step::Leave } else { Step::GoOn })
}

/// Result of the line editor.
enum Line {
    Text(String),
    /// Ctrl-D.
    End,
    /// Ctrl-C twice at an empty prompt.
    Interrupted,
}

/// Line editor with its history file.
struct Lines {
    editor: Editor<Assistance, FileHistory>,
    history: Option<PathBuf>,
    /// True if the line was empty at the last Ctrl-C.
    was_empty: Arc<AtomicBool>,
}

impl Lines {
    fn open(remembers: bool) -> Result<Self> {
        let config = Config::builder().max_history_size(MOST_LINES).map_err(terminal)?;
        // As in shells: completes the common prefix, then lists the candidates.
        let config = config.completion_type(CompletionType::List).build();
        let mut editor = Editor::with_config(config).map_err(terminal)?;
        editor.set_helper(Some(Assistance::default()));
        let was_empty = Arc::new(AtomicBool::new(false));
        let watch = InterruptWatch { was_empty: Arc::clone(&was_empty) };
        editor.bind_sequence(KeyEvent::ctrl('c'), EventHandler::Conditional(Box::new(watch)));
        let mut lines = Self { editor, history: None, was_empty };
        if remembers {
            lines.open_history();
        }
        Ok(lines)
    }

    /// Loads the history; a history that cannot be used is a warning, not an error.
    fn open_history(&mut self) {
        let Some(folder) = user_folders::state() else { return };
        let path = folder.join("chat-history");
        let opened =
            user_folders::make_private(&folder).map_err(ReadlineError::from).and_then(|()| {
                match path.metadata() {
                    Ok(file) if !file.is_file() || file.len() > MOST_FILE_BYTES => {
                        Err(io::Error::other("it is no file of a history's size").into())
                    }
                    Ok(_) => self.editor.load_history(&path),
                    Err(_) => Ok(()),
                }
            });
        match opened {
            Ok(()) => self.history = Some(path),
            Err(error) => output::warn(&format!("the history in {} is not used: {error}", path.display())),
        }
    }

    /// Width of the terminal in columns; `None` if unknown.
    fn width(&mut self) -> Option<usize> {
        let (columns, _) = self.editor.dimensions()?;
        Some(usize::from(columns)).filter(|&columns| columns > 0)
    }

    /// Sets the adapter names for completion.
    fn know_adapters(&mut self, names: Vec<String>) {
        if let Some(assistance) = self.editor.helper_mut() {
            assistance.adapters = names;
        }
    }

    fn next(&mut self) -> Result<Line> {
        let mut leaves = false;
        loop {
            match self.editor.readline("> ") {
                Ok(text) => {
                    self.remember(&text);
                    return Ok(Line::Text(text));
                }
                Err(ReadlineError::Eof) => return Ok(Line::End),
                Err(ReadlineError::Interrupted) => {
                    let was_empty = self.was_empty.load(Ordering::Relaxed);
                    if leaves && was_empty {
                        return Ok(Line::Interrupted);
                    }
                    if was_empty {
                        output::note("[Ctrl-C again or Ctrl-D leaves]");
                    }
                    leaves = was_empty;
                }
                Err(ReadlineError::Signal(_)) => {}
                Err(error) => return Err(terminal(error)),
            }
        }
    }

    /// Adds a line to the history and at once to its file: the program may be killed.
    fn remember(&mut self, text: &str) {
        if text.trim().is_empty() || text.len() > MOST_LINE_BYTES {
            return;
        }
        let added = self.editor.add_history_entry(text);
        if let Some(path) = &self.history
            && added.is_ok_and(|added| added)
            && let Err(error) = self.editor.append_history(path)
        {
            output::warn(&format!("the history in {} is not written: {error}", path.display()));
            self.history = None;
        }
    }
}

fn terminal(error: ReadlineError) -> Error {
    Error::Terminal { reason: error.to_string() }
}

/// Records if the line is empty at Ctrl-C, without changing the effect of the key.
struct InterruptWatch {
    was_empty: Arc<AtomicBool>,
}

impl ConditionalEventHandler for InterruptWatch {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext<'_>) -> Option<Cmd> {
        self.was_empty.store(context.line().is_empty(), Ordering::Relaxed);
        None
    }
}

/// Continuation lines and completion.
#[derive(Default)]
struct Assistance {
    /// Names of the adapters.
    adapters: Vec<String>,
}

impl Validator for Assistance {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let complete = entry::is_complete(context.input());
        Ok(if complete { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

impl Completer for Assistance {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(completion::complete(&line[..at], &self.adapters))
    }
}

impl Hinter for Assistance {
    type Hint = String;
}

impl Highlighter for Assistance {}

impl Helper for Assistance {}
