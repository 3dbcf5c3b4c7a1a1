//! `cargo xtask fuzz`: every target of the folder `fuzz` for some seconds, under the address
//! sanitizer.
//!
//! Uses the flags of `cargo fuzz` with the stable compiler; the only other tool is the C++ compiler
//! for libFuzzer.

use std::fs;

use crate::process::CommandLine;
use crate::{Error, Result, Workspace, sanitize};

/// Workspace of the fuzz targets.
const FOLDER: &str = "fuzz";

/// Instrumentation: coverage for libFuzzer, and the address sanitizer.
const FLAGS: &str = "--cfg fuzzing -Zsanitizer=address -Cdebug-assertions -Ccodegen-units=1 -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

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
    let folder = workspace.path("target/fuzz");
    CommandLine::cargo(workspace)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", FLAGS)
        .args(["build", "--release", "--locked", "--quiet", "--manifest-path", "fuzz/Cargo.toml"])
        .args(["--target", host.as_str(), "--target-dir", "target/fuzz"])
        .run()?;
    for name in &chosen {
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

/// Names of the targets in the manifest.
fn targets(manifest: &str) -> Vec<&str> {
    let bins = manifest.split("[[bin]]").skip(1);
    bins.filter_map(|bin| bin.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"')))
        .collect()
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
}
