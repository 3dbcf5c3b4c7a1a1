//! `cargo xtask ci` and `cargo xtask test`: the steps of each tier and their order.

mod full;
mod gpu;
mod quick;
mod steps;

use crate::example::EXAMPLES;
use crate::extent::Extent;
use crate::metadata::Graph;
use crate::process::CommandLine;
use crate::sanitize::Bound;
use crate::tally::Tally;
use crate::{
    Error, Result, Workspace, adr, cross_test, dependencies, fixtures, rust_version, sanitize, test_binaries,
    tidy,
};

pub(crate) use full::{Full, full};
pub(crate) use gpu::gpu;
pub(crate) use quick::quick;
use steps::Steps;

/// Test executables that run again with scalar kernels: their results depend on the instruction
/// set.
const SCALAR: [(&str, Option<&str>); 2] = [("ruvllm-kernels", None), ("ruvllm-models", Some("decoder"))];

/// Tests skipped in the scalar pass: they compare all instruction sets anyway, or measure a
/// format's quality, which is the same on all.
const NOT_SCALAR: [&str; 4] = [
    "determinism::isa_threads_and_chunks_do_not_change_a_bit",
    "determinism::unaligned_files_do_not_change_a_bit",
    "mutated::",
    "squat_keeps_more_of_attention_than_kivi_at_equal_bytes",
];

/// All checks that a change must pass, cheapest first; stops at the first failure.
pub(crate) fn ci(workspace: &Workspace) -> Result<()> {
    let mut steps = Steps::default();
    form_steps(workspace, &mut steps)?;
    steps.command("clippy", &clippy(workspace).args(["--workspace"]).args(CLIPPY_REST))?;
    test_steps(workspace, &mut steps, Extent::Normal)?;
    steps.run("loom", "cargo xtask sanitize loom", || {
        sanitize::loom(workspace, Bound::Seconds(20)).map(|()| "ok".to_owned())
    })?;
    cross_test_step(workspace, &mut steps, Extent::Normal)?;
    steps.command("docs", &docs(workspace))?;
    adr_step(workspace, &mut steps, adr::Depth::Fast)?;
    steps.summary()
}

/// Tests only: unit, integration and doc tests, the scalar pass, then the examples outside of the
/// workspace.
pub(crate) fn test(workspace: &Workspace) -> Result<()> {
    let mut steps = Steps::default();
    test_steps(workspace, &mut steps, Extent::Normal)?;
    steps.summary()
}

/// Checks that compile nothing.
fn form_steps(workspace: &Workspace, steps: &mut Steps) -> Result<()> {
    steps.command("format", &CommandLine::cargo(workspace).args(["fmt", "--all", "--check"]))?;
    let ok = |()| "ok".to_owned();
    steps.run("fixtures", "cargo xtask fixtures", || fixtures::check(workspace).map(ok))?;
    steps.run("tidy", "cargo xtask tidy", || tidy::check(workspace).map(ok))?;
    steps.run("rust version", "cargo xtask ci --quick", || rust_version::check(workspace).map(ok))?;
    steps.run("dependencies", "cargo xtask dependencies --check", || dependencies::check(workspace))
}

fn clippy(workspace: &Workspace) -> CommandLine {
    CommandLine::cargo(workspace).args(["clippy"])
}

const CLIPPY_REST: [&str; 6] = ["--all-targets", "--locked", "--quiet", "--", "-D", "warnings"];

/// Docs of the libraries. The program is left out: it has the library's name, and no public items.
fn docs(workspace: &Workspace) -> CommandLine {
    CommandLine::cargo(workspace)
        .args(["doc", "--workspace", "--exclude", "ruvllm-cli", "--no-deps", "--locked", "--quiet"])
        .env("RUSTDOCFLAGS", "-D warnings")
}

fn adr_step(workspace: &Workspace, steps: &mut Steps, depth: adr::Depth) -> Result<()> {
    steps.run("adr", "cargo xtask adr check", || adr::check(workspace, depth).map(|()| "ok".to_owned()))
}

fn test_steps(workspace: &Workspace, steps: &mut Steps, extent: Extent) -> Result<()> {
    let tests = CommandLine::cargo(workspace).args(["test", "--workspace", "--locked", "--no-fail-fast"]);
    let tests = extent.apply(tests);
    steps.run("tests", &tests.display(), || counted(&tests))?;
    let rerun = "RUVLLM_ISA=scalar cargo test -p ruvllm-kernels -p ruvllm-models";
    steps.run("tests with scalar kernels", rerun, || scalar_pass(workspace, extent))?;
    for example in &EXAMPLES {
        steps.run(example.step, &example.command(workspace).display(), || example.check(workspace))?;
    }
    Ok(())
}

/// Runs a test command, prints its output, and counts the tests.
fn counted(command: &CommandLine) -> Result<String> {
    counted_all(std::slice::from_ref(command))
}

/// Runs test commands as [`counted`] does, with one sum; stops at the first failure.
fn counted_all(commands: &[CommandLine]) -> Result<String> {
    let mut tally = Tally::default();
    for command in commands {
        command.run_lines(|line| {
            println!("{line}");
            tally.add(line);
        })?;
    }
    Ok(tally.summary())
}

/// Tests for another architecture, if the tools are installed.
fn cross_test_step(workspace: &Workspace, steps: &mut Steps, extent: Extent) -> Result<()> {
    match cross_test::Tools::find(workspace) {
        Ok(tools) => steps.run("cross-test", "cargo xtask cross-test", || {
            let mut tally = Tally::default();
            cross_test::run(workspace, &tools, &mut tally, extent)?;
            Ok(tally.summary())
        }),
        Err(missing) => {
            steps.skip("cross-test", format!("{missing}: cargo xtask setup --cross"));
            Ok(())
        }
    }
}

/// Runs built tests again with `RUVLLM_ISA=scalar`; in a full run all of the numeric crates.
fn scalar_pass(workspace: &Workspace, extent: Extent) -> Result<String> {
    let graph = Graph::load(workspace)?;
    let mut binaries = test_binaries::build(workspace, &graph)?;
    binaries.retain(|binary| {
        SCALAR.iter().any(|(package, target)| {
            let is_whole = extent == Extent::Full || target.is_none_or(|target| target == binary.target);
            binary.package == *package && is_whole
        })
    });
    let skipped = NOT_SCALAR.iter().flat_map(|test| ["--skip", test]);
    let skipped: Vec<&str> = if extent == Extent::Full { Vec::new() } else { skipped.collect() };
    let (mut tally, mut failed) = (Tally::default(), Vec::new());
    for binary in &binaries {
        let name = format!("{}/{}", binary.package, binary.target);
        println!("     Running {name} (RUVLLM_ISA=scalar)");
        let command = binary.command().args(["--quiet"]).args(&skipped).env("RUVLLM_ISA", "scalar");
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
        Ok(tally.summary())
    } else {
        Err(Error::TestsFailed { failed: failed.len(), total: binaries.len(), names: failed.join(", ") })
    }
}
