//! `cargo xtask fuzz`: every target of the folder `fuzz` for some seconds, under the address
//! sanitizer where it runs no compiled WebAssembly.
//!
//! Uses the flags of `cargo fuzz` with the stable compiler; the only other tool is the C++ compiler
//! for libFuzzer.

use std::fs;

use crate::process::CommandLine;
use crate::{Error, Result, Workspace, sanitize};

/// Workspace of the fuzz targets.
const FOLDER: &str = "fuzz";

/// Instrumentation: coverage for libFuzzer.
const FLAGS: &str = "--cfg fuzzing -Cdebug-assertions -Ccodegen-units=1 -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Address sanitizer. Not for targets with the sandbox of kernel packs: the engine handles the
/// signals of its own, and its code is not instrumented.
const SANITIZER: &str = "-Zsanitizer=address";

/// Feature of the targets with the sandbox, and target folder of their build.
const SANDBOX: (&str, &str) = ("sandbox", "target/fuzz-sandbox");
/// Target folder of the others.
const PLAIN: &str = "target/fuzz";

/// Memory limit of a target in MiB.
const MEMORY_MIB: u32 = 4096;

/// Builds the targets and runs `only` or all of them, each for `seconds`; stops at the first
/// finding.
pub(crate) fn fuzz(workspace: &Workspace, only: Option<&str>, seconds: u64) -> Result<String> {
    let manifest = workspace.read(&format!("{FOLDER}/Cargo.toml"))?;
    let names = targets(&manifest);
    let chosen: Vec<&str> =
        names.iter().copied().filter(|name| only.is_none_or(|only| only == *name)).collect();
    if chosen.is_empty() {
        return Err(Error::NoFuzzTarget { name: only.unwrap_or("any").to_owned(), known: names.join(", ") });
    }
    let host = sanitize::host(workspace)?;
    let sandboxed = with_sandbox(&manifest);
    let folder_of = |name: &str| if sandboxed.contains(&name) { SANDBOX.1 } else { PLAIN };
    if chosen.iter().any(|name| !sandboxed.contains(name)) {
        build(workspace, &host, PLAIN, &format!("{FLAGS} {SANITIZER}"), &[])?;
    }
    if chosen.iter().any(|name| sandboxed.contains(name)) {
        let bins = sandboxed.iter().flat_map(|name| ["--bin", *name]);
        let arguments: Vec<&str> = ["--features", SANDBOX.0].into_iter().chain(bins).collect();
        build(workspace, &host, SANDBOX.1, FLAGS, &arguments)?;
    }
    for name in &chosen {
        let folder = workspace.path(folder_of(name));
        // libFuzzer writes new inputs to the first folder; the committed seeds stay unchanged.
        let found = folder.join("found").join(name);
        fs::create_dir_all(&found).map_err(Error::io("create", &found))?;
        let artifacts = format!("-artifact_prefix={}/", folder.display());
        let seeds = workspace.path(format!("{FOLDER}/corpus/{name}"));
        let mut command = CommandLine::new(folder.join(&host).join("release").join(name), workspace.root())
            .args([format!("-max_total_time={seconds}"), format!("-rss_limit_mb={MEMORY_MIB}"), artifacts])
            .args(["-print_final_stats=1", "-verbosity=0"]);
        if *name == "gguf_open" {
            command = command.args(["-dict=fuzz/gguf.dict"]);
        }
        command.args([&found]).args(seeds.exists().then_some(&seeds)).run()?;
    }
    Ok(format!("{} targets, {seconds} s each", chosen.len()))
}

/// Builds targets with these compiler flags.
fn build(workspace: &Workspace, host: &str, folder: &str, flags: &str, arguments: &[&str]) -> Result<()> {
    CommandLine::cargo(workspace)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", flags)
        .args(["build", "--release", "--locked", "--quiet", "--manifest-path", "fuzz/Cargo.toml"])
        .args(["--target", host, "--target-dir", folder])
        .args(arguments)
        .run()
}

/// Names of the targets that need the sandbox of kernel packs.
fn with_sandbox(manifest: &str) -> Vec<&str> {
    let needs = format!("required-features = [\"{}\"]", SANDBOX.0);
    let bins = manifest.split("[[bin]]").skip(1).filter(|bin| bin.contains(&needs));
    bins.filter_map(name).collect()
}

/// Names of the targets in the manifest.
fn targets(manifest: &str) -> Vec<&str> {
    manifest.split("[[bin]]").skip(1).filter_map(name).collect()
}

/// Name of a target in its part of the manifest.
fn name(bin: &str) -> Option<&str> {
    bin.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_file_is_a_target() {
        let names = targets(include_str!("../../fuzz/Cargo.toml"));
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/fuzz_targets");
        let mut files: Vec<String> = fs::read_dir(folder)
            .expect("the targets")
            .filter_map(|entry| {
                entry.ok()?.file_name().into_string().ok()?.strip_suffix(".rs").map(str::to_owned)
            })
            .collect();
        files.sort();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        assert_eq!(files, sorted);
    }

    #[test]
    fn targets_with_a_sandbox_are_built_on_their_own() {
        let manifest = include_str!("../../fuzz/Cargo.toml");
        assert_eq!(with_sandbox(manifest), ["kernel_pack_descriptor"]);
    }
}
