//! Progress bars on standard error, if it is a terminal.
//!
//! A bar appears only when the work has taken a moment, so that quick commands stay quiet.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::console;

/// Delay before a bar appears.
const PATIENCE: Duration = Duration::from_millis(250);

/// A bar over work of known length. Dropping it clears the line.
pub(crate) struct Progress {
    label: String,
    template: &'static str,
    started: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Work counted in bytes.
    pub(crate) fn bytes(label: impl Into<String>) -> Self {
        Self::new(label, "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}")
    }

    /// Work counted in tokens.
    pub(crate) fn tokens(label: impl Into<String>) -> Self {
        Self::new(label, "{msg} {bar:30} {pos}/{len} tokens, {eta} left")
    }

    /// Work counted in steps.
    pub(crate) fn steps(label: impl Into<String>) -> Self {
        Self::new(label, "{msg} {bar:30} {pos}/{len}")
    }

    fn new(label: impl Into<String>, template: &'static str) -> Self {
        Self { label: label.into(), template, started: Instant::now(), bar: None }
    }

    /// Reports that `done` of `total` units are finished.
    pub(crate) fn update(&mut self, done: u64, total: u64) {
        if self.bar.is_none() && !console::is_quiet() && self.started.elapsed() >= PATIENCE && done < total {
            self.bar = Some(self.start(done, total));
        }
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    /// The bar itself. The draw target hides it when standard error is not a terminal.
    fn start(&self, done: u64, total: u64) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        // The templates above are constants; one that does not parse falls back to the library's
        // own style.
        if let Ok(style) = ProgressStyle::with_template(self.template) {
            bar.set_style(style);
        }
        bar.set_message(self.label.clone());
        bar.set_position(done);
        // Work done before the bar began must not count in its speed.
        bar.reset_eta();
        bar.set_draw_target(ProgressDrawTarget::stderr());
        bar
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_template_parses() {
        for progress in [Progress::bytes("a"), Progress::tokens("b"), Progress::steps("c")] {
            assert!(ProgressStyle::with_template(progress.template).is_ok());
        }
    }

    #[test]
    fn quick_work_shows_nothing() {
        let mut progress = Progress::bytes("quick");
        progress.update(1, 2);
        progress.update(2, 2);
        assert!(progress.bar.is_none());
    }
}
