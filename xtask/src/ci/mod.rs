//! `cargo xtask ci` and `cargo xtask test`: the steps, their order, their times.

use std::time::{Duration, Instant};

use crate::metadata::Graph;
use crate::process::CommandLine;
use crate::tally::Tally;
use crate::{Error, Result, Workspace, adr, cross_test, example, fixtures, test_binaries};

/// Packages whose tests run a second time with the scalar kernels forced.
const SCALAR_PACKAGES: [&str; 2] = ["ruvllm-kernels", "ruvllm-models"];

/// The test that is left out then: it measures over a text what a format keeps, which no instruction set changes, and would
/// take minutes.
const NOT_SCALAR: &str = "decoder::tests::squat_keeps_more_of_attention_than_kivi_at_equal_bytes";

/// Everything that must hold before a change is taken, cheapest first; stops at the first failure.
pub(crate) fn ci(workspace: &Workspace) -> Result<()> {
    let cargo = |args: &[&str]| CommandLine::cargo(workspace).args(args);
    let format = cargo(&["fmt", "--all", "--check"]);
    let clippy =
        cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"]);
    // The program's pages would land on those of the library of the same name; it has no public items.
    let docs = cargo(&["doc", "--workspace", "--exclude", "ruvllm-cli", "--no-deps", "--locked", "--quiet"])
        .env("RUSTDOCFLAGS", "-D warnings");

    let mut steps = Steps::default();
    steps.command("format", &format)?;
    steps.run("fixtures", "cargo xtask fixtures", || fixtures::check(workspace))?;
    steps.command("clippy", &clippy)?;
    test_steps(workspace, &mut steps)?;
    cross_test_step(workspace, &mut steps)?;
    steps.command("docs", &docs)?;
    steps.run("adr", "cargo xtask adr check", || adr::check(workspace, adr::Depth::Fast))?;
    steps.summary();
    Ok(())
}

/// The tests alone: unit, integration and doc tests, the scalar pass, then the example outside the workspace.
pub(crate) fn test(workspace: &Workspace) -> Result<()> {
    let mut steps = Steps::default();
    test_steps(workspace, &mut steps)?;
    steps.summary();
    Ok(())
}

fn test_steps(workspace: &Workspace, steps: &mut Steps) -> Result<()> {
    let tests = CommandLine::cargo(workspace).args(["test", "--workspace", "--locked", "--no-fail-fast"]);
    let mut tally = Tally::default();
    steps.run("tests", &tests.display(), || {
        tests.run_lines(|line| {
            println!("{line}");
            tally.add(line);
        })
    })?;
    steps.note(tally.summary());

    let mut tally = Tally::default();
    let rerun = "RUVLLM_ISA=scalar cargo test -p ruvllm-kernels -p ruvllm-models";
    steps.run("tests with scalar kernels", rerun, || scalar_pass(workspace, &mut tally))?;
    steps.note(tally.summary());

    let mut packages = String::new();
    steps.run("example of the kernels alone", &example::command(workspace).display(), || {
        packages = example::check(workspace)?;
        Ok(())
    })?;
    steps.note(packages);
    Ok(())
}

/// The tests for another architecture, where the tools for them are present.
fn cross_test_step(workspace: &Workspace, steps: &mut Steps) -> Result<()> {
    match cross_test::Tools::find(workspace) {
        Ok(tools) => {
            let mut tally = Tally::default();
            steps.run("cross-test", "cargo xtask cross-test", || {
                cross_test::run(workspace, &tools, &mut tally)
            })?;
            steps.note(tally.summary());
        }
        Err(missing) => println!("==> cross-test: skipped, {missing}"),
    }
    Ok(())
}

/// Runs the built tests of the numeric crates once more with `RUVLLM_ISA=scalar`.
fn scalar_pass(workspace: &Workspace, tally: &mut Tally) -> Result<()> {
    let graph = Graph::load(workspace)?;
    let mut binaries = test_binaries::build(workspace, &graph)?;
    binaries.retain(|binary| SCALAR_PACKAGES.contains(&binary.package.as_str()));
    let mut failed = Vec::new();
    for binary in &binaries {
        let name = format!("{}/{}", binary.package, binary.target);
        println!("     Running {name} (RUVLLM_ISA=scalar)");
        let command = binary.command().args(["--quiet", "--skip", NOT_SCALAR]).env("RUVLLM_ISA", "scalar");
        let result = command.run_lines(|line| {
            println!("{line}");
            tally.add(line);
        });
        match result {
            Ok(()) => {}
            Err(Error::CommandFailed { .. }) => failed.push(name),
            Err(error) => return Err(error),
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(Error::TestsFailed { failed: failed.len(), total: binaries.len(), names: failed.join(", ") })
    }
}

/// Steps that have run, with their times.
#[derive(Default)]
struct Steps {
    done: Vec<(&'static str, Duration, Option<String>)>,
}

impl Steps {
    fn command(&mut self, name: &'static str, command: &CommandLine) -> Result<()> {
        self.run(name, &command.display(), || command.run())
    }

    fn run(&mut self, name: &'static str, rerun: &str, step: impl FnOnce() -> Result<()>) -> Result<()> {
        println!("==> {name}: {rerun}");
        let start = Instant::now();
        step().map_err(|source| Error::Step {
            step: name,
            rerun: rerun.to_owned(),
            source: Box::new(source),
        })?;
        let time = start.elapsed();
        println!("==> {name}: ok in {:.1} s", time.as_secs_f64());
        self.done.push((name, time, None));
        Ok(())
    }

    /// Adds words to the last step's line in the summary.
    fn note(&mut self, note: String) {
        if let Some(step) = self.done.last_mut() {
            step.2 = Some(note);
        }
    }

    fn summary(&self) {
        println!();
        for (name, time, note) in &self.done {
            println!("{name:28} {:8.1} s  {}", time.as_secs_f64(), note.as_deref().unwrap_or("ok"));
        }
        let total: Duration = self.done.iter().map(|step| step.1).sum();
        println!("{:28} {:8.1} s  ok", "total", total.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_step_says_how_to_rerun_it() {
        let mut steps = Steps::default();
        let command = CommandLine::new("sh", std::path::Path::new(".")).args(["-c", "exit 1"]);
        let message = steps.command("docs", &command).expect_err("exit status 1").to_string();
        assert_eq!(message, "step `docs` failed; rerun it with: sh -c 'exit 1'");
        assert!(steps.done.is_empty());
    }
}
