//! `cargo xtask cross-test`: tests of the kernels for `AArch64`, on emulated CPUs with different
//! instruction sets.
//!
//! The tests are built once and run on each emulated CPU. `RUVLLM_ISA` names the kernels that must
//! be chosen, so that an instruction set hidden by the emulator is a failure, not a silent gap.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::extent::Extent;
use crate::metadata::Graph;
use crate::process::CommandLine;
use crate::tally::Tally;
use crate::test_binaries::{self, TestBinary};
use crate::{Error, Result, Workspace};

/// Compilation target; and the emulator of its executables.
pub(crate) const TARGET: &str = "aarch64-unknown-linux-gnu";
pub(crate) const EMULATOR: &str = "qemu-aarch64-static";
/// Linker, which also finds the target's C library.
pub(crate) const LINKER: &str = "aarch64-linux-gnu-gcc";
/// Compilers in the order of attempts: the default one, and Debian's, which is packaged with
/// libraries for other targets.
const COMPILERS: [&str; 2] = ["rustc", "/usr/bin/rustc"];

/// Package with code per instruction set.
const KERNELS: &str = "ruvllm-kernels";

/// Tested packages: the kernels on every CPU, the others on the first only.
const PACKAGES: [&str; 2] = [KERNELS, "gguf-rs-lite"];

/// Generated cases of a property test in `ci`; proptest's default is 256.
const FEWER_CASES: &str = "64";

/// Names of the tests whose code differs in the levels above plain NEON, which have instructions of
/// their own (`crates/kernels/src/matmul/neon/dot.rs`): in `ci` the CPUs after the first run only
/// these.
const LEVELS_DIFFER_IN: &str = "matmul";

/// Slow tests that do not depend on the instruction set; run on the first CPU only.
const ONCE: [&str; 1] = ["any_chunking_and_any_threads_give_the_same_bits"];

/// Profile overrides: more optimization is not faster under emulation, and doubles the compile
/// time.
const PROFILE: [&str; 3] = [
    "profile.dev.package.ruvllm-kernels.opt-level=1",
    "profile.dev.package.ruvllm-kernels.codegen-units=16",
    "profile.dev.debug=false",
];

/// An emulated CPU and the kernels that it must run.
struct Cpu {
    /// Name of the model in the emulator.
    model: &'static str,
    isa: &'static str,
}

/// One CPU per level. The last has every feature of the emulator, with a cheaper algorithm for
/// pointer authentication, which would otherwise take most of the time.
const CPUS: [Cpu; 3] = [
    Cpu { model: "cortex-a72", isa: "neon" },
    Cpu { model: "neoverse-n1", isa: "neon-dotprod" },
    Cpu { model: "max,pauth-impdef=on", isa: "neon-i8mm" },
];

/// Tools of a run.
pub(crate) struct Tools {
    compiler: &'static str,
}

impl Tools {
    /// Finds the tools; the error names the missing ones.
    pub(crate) fn find(workspace: &Workspace) -> Result<Self, String> {
        let compiler = compiler(workspace);
        let starts = |program| CommandLine::new(program, workspace.root()).args(["--version"]).succeeds();
        let missing: Vec<&str> = [
            (compiler.is_some(), "a compiler with the standard library of aarch64-unknown-linux-gnu"),
            (starts(LINKER), LINKER),
            (starts(EMULATOR), EMULATOR),
        ]
        .into_iter()
        .filter_map(|(found, what)| (!found).then_some(what))
        .collect();
        match compiler {
            Some(compiler) if missing.is_empty() => Ok(Self { compiler }),
            _ => Err(format!("missing: {}", missing.join(", "))),
        }
    }
}

/// First compiler with the target's standard library.
pub(crate) fn compiler(workspace: &Workspace) -> Option<&'static str> {
    COMPILERS.into_iter().find(|compiler| {
        CommandLine::new(compiler, workspace.root())
            .args(["--print", "target-libdir", "--target", TARGET])
            .output()
            .is_ok_and(|dir| Path::new(dir.trim()).is_dir())
    })
}

/// Builds the tests and runs them on every emulated CPU.
pub(crate) fn cross_test(workspace: &Workspace) -> Result<()> {
    let tools = Tools::find(workspace).map_err(|missing| Error::CrossTools { missing })?;
    run(workspace, &tools, &mut Tally::default(), Extent::Full)
}

/// As [`cross_test`], with given tools; `tally` counts the tests of all CPUs.
pub(crate) fn run(workspace: &Workspace, tools: &Tools, tally: &mut Tally, extent: Extent) -> Result<()> {
    let start = Instant::now();
    let binaries = build(workspace, tools)?;
    println!("built {} test executables in {:.1} s", binaries.len(), start.elapsed().as_secs_f64());

    let (mut lines, mut failed) = (Vec::new(), Vec::new());
    for (i, cpu) in CPUS.iter().enumerate() {
        let start = Instant::now();
        let is_first = i == 0;
        let skipped: &[&str] = if is_first { &[] } else { &ONCE };
        check_level(&binaries, cpu)?;
        let mut here = Tally::default();
        for binary in binaries.iter().filter(|binary| is_first || binary.package == KERNELS) {
            let name = format!("{}/{} on {}", binary.package, binary.target, cpu.model);
            println!("     Running {name} ({})", cpu.isa);
            let mut command = emulated(binary, cpu).args(["--quiet"]);
            if extent == Extent::Normal {
                command = command.env("PROPTEST_CASES", FEWER_CASES);
                command = if is_first { command } else { command.args([LEVELS_DIFFER_IN]) };
            }
            for test in skipped {
                command = command.args(["--skip", test]);
            }
            let result = command.run_lines(|line| {
                println!("{line}");
                here.add(line);
                tally.add(line);
            });
            match result {
                Ok(()) => {}
                Err(Error::CommandFailed { .. }) => failed.push(name),
                Err(error) => return Err(error),
            }
        }
        lines.push(summary(cpu, &here, start.elapsed()));
    }
    println!();
    lines.iter().for_each(|line| println!("{line}"));
    if failed.is_empty() {
        Ok(())
    } else {
        let total = CPUS.len() * binaries.len();
        Err(Error::TestsFailed { failed: failed.len(), total, names: failed.join(", ") })
    }
}

/// Builds the tests for the target, in a target folder of their own.
fn build(workspace: &Workspace, tools: &Tools) -> Result<Vec<TestBinary>> {
    let mut command = CommandLine::cargo(workspace)
        .args(["test", "--lib", "--tests", "--no-run", "--locked", "--quiet"])
        .args(["--target", TARGET, "--target-dir", "target/cross"])
        .args(test_binaries::MESSAGES)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
        .env("RUSTC", tools.compiler);
    for package in PACKAGES {
        command = command.args(["--package", package]);
    }
    for change in PROFILE {
        command = command.args(["--config", change]);
    }
    println!("{}", command.display());
    test_binaries::executables(&command, &Graph::load(workspace)?)
}

/// A command that runs an executable's tests on an emulated CPU.
fn emulated(binary: &TestBinary, cpu: &Cpu) -> CommandLine {
    binary.command_under(EMULATOR, &["-cpu", cpu.model]).env("RUVLLM_ISA", cpu.isa)
}

/// Test that compares the chosen instruction set with `RUVLLM_ISA`.
const DETECTION: &str = "kernels::detection_obeys_the_environment";

/// Fails unless the kernels choose the instruction set of this CPU.
fn check_level(binaries: &[TestBinary], cpu: &Cpu) -> Result<()> {
    let mut output = String::new();
    for binary in binaries.iter().filter(|binary| binary.package == KERNELS) {
        let result = emulated(binary, cpu).args([DETECTION, "--exact"]).run_lines(|line| {
            output.push_str(line);
            output.push('\n');
        });
        match result {
            Ok(()) | Err(Error::CommandFailed { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    detection(&output).map_err(|found| Error::CrossLevel { cpu: cpu.model, expected: cpu.isa, found })
}

/// Finds the pass of [`DETECTION`] in the output of test executables; the error is its failure
/// message, or `none` if it did not run.
fn detection(output: &str) -> Result<(), String> {
    /// Prefix of the message.
    const MESSAGE: &str = "instruction set: ";
    let passed = format!("test {DETECTION} ... ok");
    if output.lines().any(|line| line == passed) {
        return Ok(());
    }
    let message = output.split_once(MESSAGE).and_then(|(_, rest)| rest.lines().next());
    Err(message.unwrap_or("none").to_owned())
}

fn summary(cpu: &Cpu, tally: &Tally, time: Duration) -> String {
    format!("{:20} {:8.1} s  {}; kernels: {}", cpu.model, time.as_secs_f64(), tally.summary(), cpu.isa)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tools_are_named() {
        // The installed tools depend on the machine.
        if let Err(missing) = Tools::find(&Workspace::at(".")) {
            assert!(missing.starts_with("missing: ") && missing.contains("aarch64"), "{missing}");
        }
    }

    #[test]
    fn only_a_pass_of_the_detection_test_counts() {
        let passed = format!("running 1 test\ntest {DETECTION} ... ok\n");
        assert_eq!(detection(&passed), Ok(()));
        let failed = format!(
            "test {DETECTION} ... FAILED\nassertion `left == right` failed: instruction set: neon (available: scalar)\n"
        );
        assert_eq!(detection(&failed), Err("neon (available: scalar)".to_owned()));
        assert_eq!(detection("running 0 tests\n"), Err("none".to_owned()));
    }

    /// Instruction sets in the table of `isa.rs` without an emulated CPU.
    fn levels_without_cpu(source: &str) -> Vec<&str> {
        let names = source.split('"').filter(|word| *word == "neon" || word.starts_with("neon-"));
        names.filter(|name| CPUS.iter().all(|cpu| cpu.isa != *name)).collect()
    }

    #[test]
    fn every_level_of_neon_has_an_emulated_cpu() {
        let source = include_str!("../../crates/kernels/src/isa.rs");
        assert!(source.contains("Neon = \"neon\" {"), "the table is elsewhere");
        assert!(levels_without_cpu(source).is_empty(), "{:?}", levels_without_cpu(source));
        assert_eq!(levels_without_cpu("NeonSve2 = \"neon-sve2\" {"), ["neon-sve2"]);
    }
}
