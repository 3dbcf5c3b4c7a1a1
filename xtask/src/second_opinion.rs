//! `cargo xtask second-opinion`: tests that compare the engine with candle on the same models.
//!
//! Nothing else builds candle (ADR-0022), so `ci` skips them, and they have a target folder of
//! their own: features of shared dependencies differ. The tests are counted, so that an empty run
//! does not pass.

use std::ffi::OsStr;

use crate::process::CommandLine;
use crate::tally::Tally;
use crate::{Error, Result, Workspace};

/// The comparison itself.
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
    println!("second opinion: {}", run(&tests)?);
    Ok(())
}

/// Runs the tests; the comparison must be among those that pass.
fn run(tests: &CommandLine) -> Result<String> {
    let mut tally = Tally::default();
    let mut agreed = false;
    tests.run_lines(|line| {
        println!("{line}");
        tally.add(line);
        agreed |= line.strip_prefix("test ").is_some_and(|rest| rest == format!("{AGREEMENT} ... ok"));
    })?;
    if agreed {
        Ok(tally.summary())
    } else {
        Err(Error::NoAgreement { test: AGREEMENT, command: tests.display() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(lines: &str) -> Result<String> {
        run(&CommandLine::new("printf", std::path::Path::new(".")).args([lines]))
    }

    #[test]
    fn a_run_without_the_comparison_is_found() {
        let closing = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\\n";
        output(&format!("test {AGREEMENT} ... ok\\n{closing}")).expect("the comparison ran");
        for other in ["agreement::another ... ok", &format!("{AGREEMENT} ... ignored")] {
            let error = output(&format!("test {other}\\n{closing}")).expect_err("no comparison");
            assert!(matches!(error, Error::NoAgreement { .. }), "{error}");
        }
    }

    #[test]
    fn the_comparison_is_there() {
        let (module, name) = AGREEMENT.split_once("::").expect("a module and a name");
        assert_eq!(module, "agreement");
        let source = include_str!("../../crates/runtime/tests/candle/agreement.rs");
        assert!(source.contains(&format!("\n#[test]\nfn {name}() {{")), "{name}");
        assert!(include_str!("../../crates/runtime/tests/candle/main.rs").contains("\nmod agreement;\n"));
    }
}
