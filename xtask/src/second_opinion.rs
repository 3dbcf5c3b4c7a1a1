//! `cargo xtask second-opinion`: the tests that compare the engine with candle's code for the same models.
//!
//! Candle is built for nothing else (ADR-0022), so `ci` leaves them out, and they have a target folder of their own: features
//! of shared dependencies differ. Nothing may pass because nothing was run, so the tests are counted.

use std::ffi::OsStr;

use crate::process::CommandLine;
use crate::tally::Tally;
use crate::{Error, Result, Workspace};

/// The test that says what the others are for.
const AGREEMENT: &str = "agreement::native_and_candle_backends_agree";

/// Lints the backend and runs its tests.
pub(crate) fn second_opinion(workspace: &Workspace) -> Result<()> {
    let folder = workspace.path("target/candle");
    let cargo = |command: &str| {
        CommandLine::cargo(workspace)
            .args([command, "--package", "ruvllm", "--features", "candle", "--locked"])
            .args([OsStr::new("--target-dir"), folder.as_os_str()])
    };
    cargo("clippy").args(["--all-targets", "--quiet", "--", "-D", "warnings"]).run()?;
    let tests = cargo("test").args(["--test", "candle"]);
    let mut tally = Tally::default();
    let mut agreed = false;
    tests.run_lines(|line| {
        println!("{line}");
        tally.add(line);
        agreed |= line.strip_prefix("test ").is_some_and(|rest| rest == format!("{AGREEMENT} ... ok"));
    })?;
    if !agreed {
        return Err(Error::NoAgreement { test: AGREEMENT, command: tests.display() });
    }
    println!("second opinion: {}", tally.summary());
    Ok(())
}
