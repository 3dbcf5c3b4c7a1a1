//! Text of a measurement, and its windows.

use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;

use crate::args::positive;
use crate::error::Result;
use crate::progress::Progress;
use crate::{input, signal};

/// The text that is scored.
#[derive(Debug, Args)]
pub(super) struct TextArgs {
    /// The text, UTF-8; `-` reads standard input
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,

    /// Window length in tokens
    #[arg(long, short, value_name = "N", default_value = "512", value_parser = positive)]
    pub(super) context: usize,

    /// Use only the first TOKENS tokens of the file
    #[arg(long, value_name = "TOKENS", value_parser = positive)]
    pub(super) limit: Option<usize>,
}

impl TextArgs {
    /// Reads the text.
    ///
    /// # Errors
    /// A file that cannot be read or is not UTF-8.
    pub(super) fn read(&self) -> Result<String> {
        input::file_text(&self.file)
    }
}

/// Runs a measurement of tokens with a progress bar. Ctrl-C ends it with the result so far; `None`
/// if there is none yet.
///
/// # Errors
/// Errors of `measure`.
pub(super) fn measured<R>(
    label: &str,
    measure: impl FnOnce(&mut dyn FnMut(usize, usize) -> ControlFlow<()>) -> ruvllm::Result<R>,
) -> Result<Option<R>> {
    let cancel = signal::cancel_on_interrupt();
    let mut progress = Progress::tokens(label);
    let result = measure(&mut |done, total| {
        progress.update(done as u64, total as u64);
        if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    match result {
        Err(ruvllm::Error::Cancelled) => Ok(None),
        result => Ok(Some(result?)),
    }
}
