//! `cargo xtask ci --full`: all checks, also slow ones and those that need other tools.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::gpu::gpu_steps;
use super::{CLIPPY_REST, Steps, adr_step, clippy, counted, cross_test_step, docs, form_steps, test_steps};
use crate::deployment::DeploymentArgs;
use crate::example::CANDLE;
use crate::extent::Extent;
use crate::platforms::Platform;
use crate::process::CommandLine;
use crate::sanitize::{Bound, Sanitizer};
use crate::{
    Error, Result, Workspace, adr, core_pack, deployment, fuzz, grpc, kernel_sandbox, object_store,
    rust_version, sanitize, second_opinion,
};

/// Page with the last successful run, between two markers.
const PAGE: &str = "docs/testing.md";
const BEGIN: &str = "<!-- full-run:begin -->\n";
const END: &str = "<!-- full-run:end -->";

/// Seconds for each fuzz target.
const FUZZ_SECONDS: u64 = 60;

/// Programs and folders of others that comparisons need.
#[derive(clap::Args, Debug)]
pub(crate) struct Full {
    /// With --full: a Python with `torch` and `transformers`, and `jinja2` for --templates
    #[arg(long, value_name = "PROGRAM", requires = "full", default_value = "python3")]
    python: PathBuf,
    /// With --full: vocabularies in the manner of llama.cpp's `models`
    #[arg(long, value_name = "DIR", requires = "full")]
    vocabularies: Option<PathBuf>,
    /// With --full: chat templates of published models
    #[arg(long, value_name = "DIR", requires = "full")]
    templates: Option<PathBuf>,
}

/// Runs every step, also after failures, lists skipped ones, and records a successful run in
/// docs/testing.md.
pub(crate) fn full(workspace: &Workspace, args: &Full) -> Result<()> {
    let start = Instant::now();
    let mut steps = Steps::that_go_on();
    form_steps(workspace, &mut steps)?;
    steps.command("clippy", &clippy(workspace).args(["--workspace"]).args(CLIPPY_REST))?;
    test_steps(workspace, &mut steps, Extent::Full)?;
    cross_test_step(workspace, &mut steps, Extent::Full)?;
    steps.command("docs", &docs(workspace))?;
    feature_steps(workspace, &mut steps)?;
    adr_step(workspace, &mut steps, adr::Depth::Full)?;

    let ok = |()| "ok".to_owned();
    steps.run("loom", "cargo xtask sanitize loom", || sanitize::loom(workspace, Bound::None).map(ok))?;
    for (name, sanitizer, rerun) in [
        ("address sanitizer", Sanitizer::Address, "cargo xtask sanitize address"),
        ("thread sanitizer", Sanitizer::Thread, "cargo xtask sanitize thread"),
    ] {
        steps.run(name, rerun, || sanitize::sanitize(workspace, sanitizer, Duration::ZERO).map(ok))?;
    }
    steps.run("fuzzing", "cargo xtask fuzz", || fuzz::fuzz(workspace, None, FUZZ_SECONDS))?;
    for platform in Platform::ALL {
        match platform.missing(workspace) {
            None => steps.run(platform.name(), "cargo xtask platforms", || platform.check(workspace))?,
            Some(missing) => steps.skip(platform.name(), missing),
        }
    }
    gpu_steps(workspace, &mut steps)?;
    grpc_steps(workspace, &mut steps)?;
    object_store_steps(workspace, &mut steps)?;
    sandbox_steps(workspace, &mut steps)?;
    deployment_step(workspace, &mut steps)?;
    peers(workspace, &mut steps, args)?;
    steps.summary()?;
    record(workspace, &steps, start)
}

/// Builds non-default feature sets, tests those that add behaviour, and checks the tree with the
/// minimum Rust version.
fn feature_steps(workspace: &Workspace, steps: &mut Steps) -> Result<()> {
    let cargo = |words: &str| CommandLine::cargo(workspace).args(words.split(' '));
    for (name, command) in [
        (
            "text with templates alone",
            "check --package ruvllm-text --no-default-features --features templates --locked",
        ),
        ("engine with built-in model", "check --package ruvllm --features builtin-model --locked"),
        ("engine with store", "check --package ruvllm --features store --locked"),
    ] {
        steps.command(name, &cargo(command))?;
    }
    for (name, command) in [
        ("text without features", "test --package ruvllm-text --no-default-features --lib --locked"),
        (
            "features of the engine",
            "test --package ruvllm --features builtin-model,store --test features --locked",
        ),
    ] {
        let tests = cargo(command);
        steps.run(name, &tests.display(), || counted(&tests))?;
    }
    match rust_version::command(workspace)? {
        Ok(command) => steps.command("oldest compiler", &command),
        Err(missing) => {
            steps.skip("oldest compiler", missing);
            Ok(())
        }
    }
}

/// The server's feature `grpc`.
fn grpc_steps(workspace: &Workspace, steps: &mut Steps) -> Result<()> {
    for (name, command) in [("grpc lints", grpc::lint(workspace)), ("grpc program", grpc::program(workspace))]
    {
        steps.command(name, &command)?;
    }
    let tests = grpc::tests(workspace);
    steps.run("grpc", &tests.display(), || counted(&tests))
}

/// Stored prefixes in an object store.
fn object_store_steps(workspace: &Workspace, steps: &mut Steps) -> Result<()> {
    steps.command("object store lints", &object_store::lint(workspace))?;
    match object_store::missing(workspace) {
        None => steps.run("object store", "cargo xtask object-store", || {
            object_store::tests(workspace, CommandLine::run).map(|()| "ok".to_owned())
        }),
        Some(missing) => {
            steps.skip("object store", missing);
            Ok(())
        }
    }
}

/// The sandbox of kernel packs.
fn sandbox_steps(workspace: &Workspace, steps: &mut Steps) -> Result<()> {
    for lint in kernel_sandbox::lints(workspace) {
        steps.command("kernel sandbox lints", &lint)?;
    }
    steps.command("lints of its use", &kernel_sandbox::program(workspace))?;
    for (name, tests) in [
        ("kernel sandbox", kernel_sandbox::tests(workspace)),
        ("kernel sandbox on wasmi", kernel_sandbox::interpreter(workspace)),
        ("kernel packs in the engine", kernel_sandbox::engine(workspace)),
    ] {
        steps.run(name, &tests.display(), || counted(&tests))?;
    }
    match core_pack::missing(workspace) {
        None => steps.run("core pack", "cargo xtask core-pack --check", || core_pack::check(workspace)),
        Some(missing) => {
            steps.skip("core pack", missing);
            Ok(())
        }
    }
}

/// Manifests of the folder `deploy`.
fn deployment_step(workspace: &Workspace, steps: &mut Steps) -> Result<()> {
    if let Some(missing) = deployment::missing(workspace) {
        steps.skip("deployment", missing);
        return Ok(());
    }
    steps.run("deployment", "cargo xtask deployment", || {
        deployment::deployment(workspace, &DeploymentArgs::default()).map(|()| "ok".to_owned())
    })
}

/// Comparisons with other implementations.
fn peers(workspace: &Workspace, steps: &mut Steps, args: &Full) -> Result<()> {
    let ok = |()| "ok".to_owned();
    steps.run("second opinion", "cargo xtask second-opinion", || {
        second_opinion::second_opinion(workspace).map(ok)
    })?;
    steps.run(CANDLE.step, &CANDLE.command(workspace).display(), || CANDLE.check(workspace))?;
    let tool = |arguments: &[&Path]| {
        CommandLine::cargo(workspace).args(["xtask"]).args(arguments.iter().map(|word| word.as_os_str()))
    };
    let has =
        |modules: &str| CommandLine::new(&args.python, workspace.root()).args(["-c", modules]).succeeds();
    let python = [Path::new("--python"), args.python.as_path()];
    if has("import torch, transformers") {
        steps.command("family goldens", &tool(&[&[Path::new("family-goldens")], &python[..]].concat()))?;
    } else {
        steps.skip("family goldens", "no Python with torch and transformers: --python PROGRAM");
    }
    match &args.vocabularies {
        Some(folder) => {
            steps.command("tokenizer goldens", &tool(&[Path::new("tokenizer-goldens"), folder]))?;
        }
        None => steps.skip("tokenizer goldens", "no folder of vocabularies: --vocabularies DIR"),
    }
    match &args.templates {
        Some(folder) if has("import jinja2") => {
            let words = [&[Path::new("template-goldens"), folder.as_path()], &python[..]].concat();
            steps.command("template goldens", &tool(&words))?;
        }
        Some(_) => steps.skip("template goldens", "no Python with jinja2: --python PROGRAM"),
        None => steps.skip("template goldens", "no folder of templates: --templates DIR"),
    }
    Ok(())
}

/// Writes the successful run to the page.
fn record(workspace: &Workspace, steps: &Steps, start: Instant) -> Result<()> {
    let describe = CommandLine::new("git", workspace.root()).args(["describe", "--always", "--dirty"]);
    let commit = describe.output().unwrap_or_default();
    let minutes = start.elapsed().as_secs() / 60;
    let mut line = format!("{}, commit {}, {minutes} minutes.", crate::today(), commit.trim());
    for (name, reason) in steps.skipped() {
        line.push_str(&format!("\n- skipped: {name} ({reason})"));
    }
    let text = workspace.read(PAGE)?;
    let path = workspace.path(PAGE);
    let page = replaced(&text, &line)
        .ok_or_else(|| Error::NoMarker { path: path.clone(), marker: "full-run".to_owned() })?;
    std::fs::write(&path, page).map_err(Error::io("write", path))?;
    println!("recorded in {PAGE}");
    Ok(())
}

fn replaced(text: &str, line: &str) -> Option<String> {
    let start = text.find(BEGIN)? + BEGIN.len();
    let end = start + text[start..].find(END)?;
    Some(format!("{}{line}\n{}", &text[..start], &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_replaces_the_one_before() {
        let page = format!("a\n{BEGIN}old\n{END}\nb\n");
        assert_eq!(replaced(&page, "new"), Some(format!("a\n{BEGIN}new\n{END}\nb\n")));
        assert_eq!(replaced("no markers", "new"), None);
    }
}
