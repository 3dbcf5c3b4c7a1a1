//! `cargo xtask sanitize`: the tests of the packages with the workspace's `unsafe` code under the address and the thread
//! sanitizer, and what their threads agree on under the model checker loom.
//!
//! The sanitizers come with the stable toolchain; their flags are unstable, hence `RUSTC_BOOTSTRAP`. Each run ends with a
//! planted fault that the sanitizer must report.

use clap::ValueEnum;

use crate::process::CommandLine;
use crate::{Error, Result, Workspace};

/// The packages with `unsafe` code or shared state.
const PACKAGES: [&str; 3] = ["ruvllm-kernels", "ruvllm-memory", "ruvllm-kv-cache"];

/// Packages with models for loom, and where these are.
const MODELS: [(&str, &str); 2] = [("ruvllm-kernels", "pool::model"), ("ruvllm-memory", "model")];

/// What to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sanitizer {
    /// Accesses outside of allocations, and to freed ones
    Address,
    /// Data races
    Thread,
    /// Orders of steps in which the thread pool loses a job or meets it twice, or the page pool loses a page
    Loom,
}

/// A fault that `crates/kernels/tests/planted.rs` commits when asked to, and the words that report it.
struct Fault {
    name: &'static str,
    report: &'static str,
}

/// Runs one of them.
pub(crate) fn sanitize(workspace: &Workspace, sanitizer: Sanitizer) -> Result<()> {
    let (cargo, fault) = match sanitizer {
        Sanitizer::Loom => return loom(workspace),
        Sanitizer::Address => {
            let cargo = instrumented(workspace, "-Zsanitizer=address");
            (cargo, Fault { name: "overflow", report: "AddressSanitizer: heap-buffer-overflow" })
        }
        Sanitizer::Thread => {
            // The standard library is not instrumented; without the waiver its ABI counts as another one.
            let flags = "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer";
            let suppressions = workspace.path("xtask/tsan.supp");
            let options = format!("suppressions={}", suppressions.display());
            let cargo = instrumented(workspace, flags).env("TSAN_OPTIONS", &options);
            (cargo, Fault { name: "race", report: "ThreadSanitizer: data race" })
        }
    };
    let target = host(workspace)?;
    let folder = workspace.path("target/sanitize").join(sanitizer.name());
    let packages = PACKAGES.iter().flat_map(|package| ["--package", package]);
    let test = cargo
        .args(["test"])
        .args(packages)
        .args(["--locked", "--lib", "--tests", "--target", target.as_str()])
        .args([std::ffi::OsStr::new("--target-dir"), folder.as_os_str()]);
    test.run()?;
    demand_report(&test, &fault)?;
    println!("{}: no reports, and the planted {} is one", sanitizer.name(), fault.name);
    Ok(())
}

/// The planted fault must end the test with the sanitizer's report.
fn demand_report(test: &CommandLine, fault: &Fault) -> Result<()> {
    let command = test.clone().args(["--", "--exact", fault.name]).env("RUVLLM_PLANT", fault.name);
    match command.output() {
        Err(Error::CommandFailed { stderr, .. }) if stderr.contains(fault.report) => Ok(()),
        Err(error @ Error::Start { .. }) => Err(error),
        _ => Err(Error::BlindSanitizer { fault: fault.name, command: command.display() }),
    }
}

/// The models carry their own planted faults: tests that must panic.
fn loom(workspace: &Workspace) -> Result<()> {
    for (package, models) in MODELS {
        CommandLine::cargo(workspace)
            .env("RUSTFLAGS", "--cfg loom")
            .args(["test", "--package", package, "--locked", "--lib", "--release"])
            .args([std::ffi::OsStr::new("--target-dir"), workspace.path("target/sanitize/loom").as_os_str()])
            .args(["--", models])
            .run()?;
    }
    Ok(())
}

fn instrumented(workspace: &Workspace, flags: &str) -> CommandLine {
    CommandLine::cargo(workspace).env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", flags)
}

/// The target that this machine is. Naming it keeps build scripts free of instrumentation.
fn host(workspace: &Workspace) -> Result<String> {
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
