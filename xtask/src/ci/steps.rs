//! Finished steps with their times, and skipped ones with the reason.

use std::time::{Duration, Instant};

use crate::process::CommandLine;
use crate::{Error, Result};

/// Runs steps and records their results.
#[derive(Default)]
pub(super) struct Steps {
    done: Vec<Step>,
    skipped: Vec<(&'static str, String)>,
    failed: Vec<String>,
    /// Continues after failures.
    goes_on: bool,
}

struct Step {
    name: &'static str,
    time: Duration,
    note: String,
}

impl Steps {
    /// Steps that continue after failures, which are reported at the end.
    pub(super) fn that_go_on() -> Self {
        Self { goes_on: true, ..Self::default() }
    }

    pub(super) fn command(&mut self, name: &'static str, command: &CommandLine) -> Result<()> {
        self.run(name, &command.display(), || command.run().map(|()| "ok".to_owned()))
    }

    /// Runs a step that returns a note for the summary; `rerun` is a command line that runs it
    /// alone.
    pub(super) fn run(
        &mut self,
        name: &'static str,
        rerun: &str,
        step: impl FnOnce() -> Result<String>,
    ) -> Result<()> {
        println!("==> {name}: {rerun}");
        let start = Instant::now();
        let result = step();
        let time = start.elapsed();
        match result {
            Ok(note) => {
                println!("==> {name}: ok in {:.1} s", time.as_secs_f64());
                self.done.push(Step { name, time, note });
                Ok(())
            }
            Err(source) => {
                let error = Error::Step { step: name, rerun: rerun.to_owned(), source: Box::new(source) };
                if !self.goes_on {
                    return Err(error);
                }
                println!("==> {name}: FAILED in {:.1} s: {error}", time.as_secs_f64());
                self.done.push(Step { name, time, note: "FAILED".to_owned() });
                self.failed.push(error.to_string());
                Ok(())
            }
        }
    }

    /// Skips a step.
    pub(super) fn skip(&mut self, name: &'static str, reason: impl Into<String>) {
        let reason = reason.into();
        println!("==> {name}: skipped, {reason}");
        self.skipped.push((name, reason));
    }

    /// Skipped steps with the reasons.
    pub(super) fn skipped(&self) -> &[(&'static str, String)] {
        &self.skipped
    }

    /// Prints every step.
    ///
    /// # Errors
    /// [`Error::Steps`] if some failed.
    pub(super) fn summary(&self) -> Result<()> {
        println!();
        for Step { name, time, note } in &self.done {
            println!("{name:28} {:8.1} s  {note}", time.as_secs_f64());
        }
        let total: Duration = self.done.iter().map(|step| step.time).sum();
        println!("{:28} {:8.1} s", "total", total.as_secs_f64());
        for (name, reason) in &self.skipped {
            println!("{name:28}  skipped   {reason}");
        }
        if self.failed.is_empty() { Ok(()) } else { Err(Error::Steps { failed: self.failed.join("; ") }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> CommandLine {
        CommandLine::new("sh", std::path::Path::new(".")).args(["-c", script])
    }

    #[test]
    fn a_failing_step_says_how_to_rerun_it() {
        let mut steps = Steps::default();
        let message = steps.command("docs", &shell("exit 1")).expect_err("exit status 1").to_string();
        assert_eq!(message, "step `docs` failed; rerun it with: sh -c 'exit 1'");
        assert!(steps.done.is_empty());
    }

    #[test]
    fn a_full_run_goes_on_and_fails_at_its_end() {
        let mut steps = Steps::that_go_on();
        steps.command("docs", &shell("exit 1")).expect("the run goes on");
        steps.command("next", &shell("exit 0")).expect("success");
        steps.skip("fuzz", "no C++ compiler");
        assert_eq!(steps.done.len(), 2);
        let message = steps.summary().expect_err("a step failed").to_string();
        assert!(message.contains("step `docs` failed"), "{message}");
        assert_eq!(steps.skipped(), [("fuzz", "no C++ compiler".to_owned())]);
    }
}
