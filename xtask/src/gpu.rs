//! Tests of the GPU kernels, the GPU backend and the program's `--device`, on any adapter of this
//! machine; software Vulkan is enough.
//!
//! They have a target folder of their own: the kernels are a separate workspace, and features of
//! shared dependencies differ from the engine's.

use std::path::Path;

use crate::extent::Extent;
use crate::process::CommandLine;
use crate::{Result, Workspace};

/// Folders of Vulkan driver manifests (ICD files).
const DRIVERS: [&str; 3] = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"];

/// Has Mesa's software Vulkan compile kernels without optimization passes. Most of the time of the
/// tests is compilation, and kernels run for a few milliseconds each. Other drivers ignore it.
const UNOPTIMIZED: (&str, &str) = ("GALLIVM_PERF", "nopt");

/// Tests of the backend that [`quick`] runs: logits and greedy tokens of a tiny model, end to end.
const END_TO_END: [&str; 1] = ["families::llama"];

/// Type checker of the kernels' MSL.
pub(crate) const CLANG: &str = "clang";

/// Environment variables that name driver manifests instead.
const NAMED: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];

/// Description of missing parts; `None` if the tests can run.
pub(crate) fn missing(workspace: &Workspace) -> Option<String> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let list = ["/sbin/ldconfig", "ldconfig"]
        .iter()
        .find_map(|program| CommandLine::new(program, workspace.root()).args(["-p"]).output().ok());
    let has_driver = NAMED.iter().any(|name| std::env::var_os(name).is_some())
        || DRIVERS.iter().any(|folder| has_files(Path::new(folder)));
    lacking(&list.unwrap_or_default(), has_driver)
}

fn has_files(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}

/// Description of missing parts; `libraries`: those known to the dynamic linker.
fn lacking(libraries: &str, has_driver: bool) -> Option<String> {
    let missing = match (libraries.contains("libvulkan.so.1"), has_driver) {
        (true, true) => return None,
        (false, _) => "no Vulkan loader (libvulkan.so.1)",
        (true, false) => "no Vulkan driver",
    };
    Some(format!("{missing}: apt-get install libvulkan1 mesa-vulkan-drivers"))
}

/// Tests of the kernels. They fail without an adapter.
pub(crate) fn kernels(workspace: &Workspace, extent: Extent) -> CommandLine {
    extent.apply(adapted(kernel_tests(workspace)))
}

fn kernel_tests(workspace: &Workspace) -> CommandLine {
    CommandLine::cargo(workspace).args(["test", "--locked", "--manifest-path", "crates/gpu/Cargo.toml"])
}

/// Type check of the kernels' MSL by clang. Needs no adapter.
pub(crate) fn msl(workspace: &Workspace) -> CommandLine {
    kernel_tests(workspace).args(["--test", "it", "--", "--ignored", "metal::"])
}

/// Description of the missing type checker of [`msl`]; `None` if there is one.
pub(crate) fn lacks_clang(workspace: &Workspace) -> Option<String> {
    let starts = CommandLine::new(CLANG, workspace.root()).args(["--version"]).succeeds();
    (!starts).then(|| format!("no {CLANG}: cargo xtask setup --gpu"))
}

/// Each kernel, and a tiny model end to end: the tests whose time on software Vulkan has a goal.
pub(crate) fn quick(workspace: &Workspace) -> [CommandLine; 2] {
    let kernels = kernel_tests(workspace).args(["--test", "it"]);
    let model = tests(workspace, "ruvllm").args(["--", "--exact"]).args(END_TO_END);
    [kernels, model].map(adapted)
}

/// Builds of the tests of [`quick`].
pub(crate) fn builds(workspace: &Workspace) -> [CommandLine; 2] {
    let kernels = kernel_tests(workspace).args(["--test", "it"]);
    [kernels, tests(workspace, "ruvllm")].map(|tests| tests.args(["--no-run"]))
}

/// Records the launches of the self-test with kernels for browsers.
pub(crate) fn trace(workspace: &Workspace, folder: &str) -> CommandLine {
    let run = ["run", "--locked", "--quiet", "--manifest-path", "crates/gpu/Cargo.toml"];
    adapted(CommandLine::cargo(workspace).args(run).args(["--example", "trace", "--", folder]))
}

/// Lints the kernels, and backend and program with the feature, the program in the form without a
/// model.
pub(crate) fn lint(workspace: &Workspace) -> Result<()> {
    let rest = ["--all-targets", "--locked", "--quiet", "--", "-D", "warnings"];
    let kernels = ["clippy", "--manifest-path", "crates/gpu/Cargo.toml"];
    CommandLine::cargo(workspace).args(kernels).args(rest).run()?;
    with_feature(workspace, "clippy", "ruvllm").args(rest).run()?;
    with_feature(workspace, "clippy", "ruvllm-cli").args(["--no-default-features"]).args(rest).run()
}

/// Tests of the backend. They fail without an adapter.
pub(crate) fn backend(workspace: &Workspace) -> CommandLine {
    adapted(tests(workspace, "ruvllm"))
}

/// Tests of `--device` and `doctor --gpu`. They fail without an adapter.
pub(crate) fn program(workspace: &Workspace) -> CommandLine {
    adapted(tests(workspace, "ruvllm-cli"))
}

fn tests(workspace: &Workspace, package: &str) -> CommandLine {
    with_feature(workspace, "test", package).args(["--locked", "--test", "gpu"])
}

/// Environment of tests: an adapter is required, software Vulkan compiles fast.
fn adapted(tests: CommandLine) -> CommandLine {
    let (name, value) = UNOPTIMIZED;
    tests.env("RUVLLM_GPU_REQUIRED", "1").env(name, value)
}

fn with_feature(workspace: &Workspace, command: &str, package: &str) -> CommandLine {
    CommandLine::cargo(workspace).args([
        command,
        "--package",
        package,
        "--features",
        "gpu",
        "--target-dir",
        "target/gpu",
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let loader = "libvulkan.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libvulkan.so.1";
        assert_eq!(lacking(loader, true), None);
        assert!(lacking(loader, false).is_some_and(|reason| reason.contains("driver")));
        assert!(lacking("libc.so.6", true).is_some_and(|reason| reason.contains("loader")));
    }
}
