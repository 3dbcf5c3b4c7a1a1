//! `cargo xtask sanitize`: tests of the packages with `unsafe` code under the address and the
//! thread sanitizer, and models of their synchronization under the model checker loom.
//!
//! The sanitizers come with the stable toolchain; their flags are unstable, hence
//! `RUSTC_BOOTSTRAP`. Each run ends with a planted fault that the sanitizer must report.

use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::process::CommandLine;
use crate::tally::Tally;
use crate::{Error, Result, Workspace};

/// Packages with `unsafe` code or shared state, and the engine's tests of the prefix writer thread.
const PACKAGES: [(&str, &str); 4] =
    [("ruvllm-kernels", ""), ("ruvllm-memory", ""), ("ruvllm-kv-cache", ""), ("ruvllm", "prefix::")];

/// Tests incompatible with the thread sanitizer: its shadow memory leaves no 64 TiB of addresses,
/// and its runtime allocates where a test counts every byte.
const DISTURBED: [&str; 2] = [
    "a_large_budget_takes_no_memory_before_its_pages_do",
    "the_tree_reports_the_bytes_that_it_allocates_and_they_are_few_beside_what_it_indexes",
];

/// Tests of the folder `loom`, and the filter of their models; other tests of the files need other
/// primitives.
const MODELS: [&str; 4] = ["thread_pool", "page_pool", "adapter_versions", "kernel_packs"];
const MODEL: &str = "model::";

/// Tests of the kernels for the stress run, and generated cases per run.
const STRESS: (&str, &str) = ("pool::stress", "65536");

/// Kind of fault to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sanitizer {
    /// Accesses outside of allocations, and to freed ones
    Address,
    /// Data races
    Thread,
    /// Orders of steps in which the thread pool loses a job or meets it twice, or the page pool
    /// loses a page
    Loom,
}

/// A planted fault of `crates/kernels/tests/planted.rs`, and the sanitizer's report of it.
struct Fault {
    name: &'static str,
    report: &'static str,
}

/// Time limit of loom for each model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// No limit.
    None,
    /// Limit in seconds.
    Seconds(u32),
}

/// Runs a sanitizer, then repeats the tests of panicking thread-pool jobs for `stress`. Loom
/// explores all interleavings and repeats nothing.
pub(crate) fn sanitize(workspace: &Workspace, sanitizer: Sanitizer, stress: Duration) -> Result<()> {
    let (cargo, fault) = match sanitizer {
        Sanitizer::Loom => return loom(workspace, Bound::None),
        Sanitizer::Address => {
            let cargo = instrumented(workspace, "-Zsanitizer=address");
            (cargo, Fault { name: "overflow", report: "AddressSanitizer: heap-buffer-overflow" })
        }
        Sanitizer::Thread => {
            // The standard library is not instrumented; without the flag its ABI is reported as a
            // mismatch.
            let flags = "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer";
            let suppressions = workspace.path("xtask/tsan.supp");
            let options = format!("suppressions={}", suppressions.display());
            let cargo = instrumented(workspace, flags).env("TSAN_OPTIONS", &options);
            (cargo, Fault { name: "race", report: "ThreadSanitizer: data race" })
        }
    };
    let target = host(workspace)?;
    let folder = workspace.path("target/sanitize").join(sanitizer.name());
    let test = |package: &str| {
        cargo
            .clone()
            .args(["test", "--package", package, "--locked", "--target", target.as_str()])
            .args([std::ffi::OsStr::new("--target-dir"), folder.as_os_str()])
    };
    let skipped = if sanitizer == Sanitizer::Thread { &DISTURBED[..] } else { &[] };
    for (package, filter) in PACKAGES {
        let mut tests = test(package).args(["--lib", "--tests", "--", filter]);
        for name in skipped {
            tests = tests.args(["--skip", name]);
        }
        ran(&tests)?;
    }
    let (filter, cases) = STRESS;
    let command = test("ruvllm-kernels").args(["--lib", "--", filter]).env("PROPTEST_CASES", cases);
    let rounds = repeat(stress, || ran(&command))?;
    if rounds > 0 {
        println!("{filter}: {rounds} runs of {cases} cases in {} s or more", stress.as_secs());
    }
    demand_report(&test("ruvllm-kernels").args(["--test", "planted"]), &fault)?;
    println!("{}: no reports, and the planted {} is one", sanitizer.name(), fault.name);
    Ok(())
}

/// Fails unless the planted fault ends the test with the sanitizer's report.
fn demand_report(test: &CommandLine, fault: &Fault) -> Result<()> {
    let command = test.clone().env("RUVLLM_PLANT", fault.name);
    match command.output() {
        Err(Error::CommandFailed { stderr, .. }) if stderr.contains(fault.report) => Ok(()),
        Err(error @ Error::Start { .. }) => Err(error),
        _ => Err(Error::BlindSanitizer { fault: fault.name, command: command.display() }),
    }
}

/// Checks the models of thread pool, page pool, adapter versions and kernel packs. Planted faults
/// are tests that must panic.
pub(crate) fn loom(workspace: &Workspace, bound: Bound) -> Result<()> {
    for test in MODELS {
        let mut command = CommandLine::cargo(workspace)
            .env("RUSTFLAGS", "--cfg loom")
            .args(["test", "--manifest-path", "loom/Cargo.toml", "--locked", "--test", test])
            .args([std::ffi::OsStr::new("--target-dir"), workspace.path("target/sanitize/loom").as_os_str()])
            .args(["--", MODEL]);
        if let Bound::Seconds(seconds) = bound {
            command = command.env("LOOM_MAX_DURATION", &seconds.to_string());
        }
        ran(&command)?;
    }
    Ok(())
}

/// Repeats `run` until `time` is over; returns the number of runs.
fn repeat(time: Duration, mut run: impl FnMut() -> Result<()>) -> Result<usize> {
    let start = Instant::now();
    let mut runs = 0;
    while start.elapsed() < time {
        run()?;
        runs += 1;
    }
    Ok(runs)
}

/// Runs a test command; it is an error if no test ran.
fn ran(command: &CommandLine) -> Result<()> {
    let mut tally = Tally::default();
    command.run_lines(|line| {
        println!("{line}");
        tally.add(line);
    })?;
    if tally.passed > 0 { Ok(()) } else { Err(Error::NothingRan { command: command.display() }) }
}

fn instrumented(workspace: &Workspace, flags: &str) -> CommandLine {
    // Suppressions name inlined functions, which reports show only with line tables.
    CommandLine::cargo(workspace)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", flags)
        .env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
}

/// Target triple of this machine. An explicit target keeps build scripts uninstrumented.
pub(crate) fn host(workspace: &Workspace) -> Result<String> {
    let command = CommandLine::new("rustc", workspace.root()).args(["-vV"]);
    let output = command.output()?;
    let host = output.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .ok_or_else(|| Error::MissingField { command: command.display(), field: "host".to_owned() })
}

impl Sanitizer {
    fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Thread => "thread",
            Self::Loom => "loom",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_repeated_until_the_time_is_over() {
        assert_eq!(repeat(Duration::ZERO, || panic!("no time")).expect("nothing ran"), 0);
        let time = Duration::from_millis(5);
        let wait = || {
            std::thread::sleep(time);
            Ok(())
        };
        assert_eq!(repeat(time, wait).expect("it ran"), 1);
        let fail = || Err(Error::NothingRan { command: String::new() });
        assert!(repeat(time, fail).is_err());
    }

    #[test]
    fn a_run_of_no_test_is_found() {
        let output = |passed: u32| {
            let line =
                format!("test result: ok. {passed} passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
            CommandLine::new("echo", std::path::Path::new(".")).args([line])
        };
        ran(&output(1)).expect("a test ran");
        assert!(matches!(ran(&output(0)), Err(Error::NothingRan { .. })));
    }
}
