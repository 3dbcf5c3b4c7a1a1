//! Shared parts of commands that write a model to a file: threads, progress, Ctrl-C, output check.

use std::fs;
use std::num::NonZero;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread;

use ruvllm_kernels::ThreadPool;
use ruvllm_models::quantize::{QuantizeProgress, QuantizeReport};

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::result_file::Destination;
use crate::signal;

/// Job that writes a model to another file.
pub(crate) struct Rewrite<'a> {
    /// Verb of the operation, for messages.
    pub(crate) action: &'static str,
    pub(crate) input: &'a Path,
    pub(crate) output: &'a Path,
    /// True to replace an existing output.
    pub(crate) force: bool,
    /// Number of threads; `None` = the number of cores.
    pub(crate) threads: Option<usize>,
}

/// Progress callback; `Break` cancels the work.
pub(crate) type Step<'a> = dyn FnMut(QuantizeProgress<'_>) -> ControlFlow<()> + 'a;

impl Rewrite<'_> {
    /// Runs the job; returns its report and the file's size in bytes, or `None` after Ctrl-C.
    ///
    /// # Errors
    /// An output that is the input, a folder, or exists without `force`; errors of `work`.
    pub(crate) fn run(
        &self,
        work: impl FnOnce(&Path, &ThreadPool, &mut Step<'_>) -> ruvllm_models::Result<QuantizeReport>,
    ) -> Result<Option<(QuantizeReport, u64)>> {
        let output = self.check_output()?;
        let threads = self.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZero::get));
        let pool = ThreadPool::new(threads)?;
        let cancel = signal::cancel_on_interrupt();
        let mut progress = Progress::bytes(format!("writing {}", self.output.display()));
        let written = work(&output, &pool, &mut |step| {
            progress.update(step.bytes_done, step.bytes_total);
            if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        drop(progress);
        let report = match written {
            Err(ruvllm_models::Error::Cancelled) => return Ok(None),
            Err(source) => {
                return Err(Error::Rewrite {
                    action: self.action,
                    input: self.input.to_owned(),
                    output: self.output.to_owned(),
                    source: Box::new(source),
                });
            }
            Ok(report) => report,
        };
        let failed = |source| Error::ReadFile { path: self.output.to_owned(), source };
        Ok(Some((report, fs::metadata(&output).map_err(failed)?.len())))
    }

    /// Path of the output, checked not to be the input.
    fn check_output(&self) -> Result<PathBuf> {
        let is_input = |output: PathBuf| self.input.canonicalize().is_ok_and(|input| input == output);
        if self.output.canonicalize().is_ok_and(is_input) && self.output.is_file() {
            return Err(Error::SameFile);
        }
        match Destination::find(self.output, self.force)? {
            Destination::File(path) => Ok(path),
            Destination::Stream(_) | Destination::Stdout => {
                Err(Error::NotAFile { path: self.output.to_owned() })
            }
        }
    }
}
