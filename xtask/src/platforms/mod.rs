//! `cargo xtask platforms`: checks of other systems on Linux: types for macOS and browsers, tests
//! and program for Windows under wine.
//!
//! Debian packages the source of the standard library, from which cargo builds it for any target.

mod wine;

use std::path::Path;

use crate::process::CommandLine;
use crate::{Error, Result, Workspace};

pub(crate) use wine::{LINKER, WINE};

/// Compiler with the standard library's source beside it.
const COMPILER: &str = "/usr/bin/rustc";
const SOURCE: &str = "library/std/Cargo.toml";

/// Target folder, separate from the default build.
const TARGET_FOLDER: &str = "target/platforms";

/// Another system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Platform {
    /// Type checks of the engine with its GPU backend, for Metal. Not of the program: the C code of
    /// its TLS library needs Apple's headers.
    MacOs,
    /// Type checks of the GPU kernels' crate, for WebGPU.
    Browser,
    /// Tests and program, built and run.
    Windows,
}

impl Platform {
    pub(crate) const ALL: [Self; 3] = [Self::MacOs, Self::Browser, Self::Windows];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::MacOs => "macOS",
            Self::Browser => "browsers",
            Self::Windows => "Windows",
        }
    }

    /// Description of missing tools; `None` if the check can run.
    pub(crate) fn missing(self, workspace: &Workspace) -> Option<String> {
        let compiler = CommandLine::new(COMPILER, workspace.root());
        let sysroot = compiler.args(["--print", "sysroot"]).output().ok();
        let has_source = sysroot
            .is_some_and(|root| Path::new(root.trim()).join("lib/rustlib/src/rust").join(SOURCE).exists());
        if !has_source {
            return Some("no compiler with the source of its library: cargo xtask setup --platforms".into());
        }
        let starts =
            |program: &str| CommandLine::new(program, workspace.root()).args(["--version"]).succeeds();
        let programs: &[&str] = if self == Self::Windows { &[LINKER, WINE] } else { &[] };
        let lacking = programs.iter().find(|program| !starts(program))?;
        Some(format!("no {lacking}: cargo xtask setup --platforms"))
    }

    /// Runs the checks; returns a note on their scope.
    pub(crate) fn check(self, workspace: &Workspace) -> Result<String> {
        let checks = |command: CommandLine, scope: &str| {
            println!("{}", command.display());
            command.run().map(|()| scope.to_owned())
        };
        match self {
            Self::MacOs => {
                let engine = ["--package", "ruvllm", "--features", "gpu"];
                let command = cargo(workspace, "check", "aarch64-apple-darwin").args(engine);
                checks(command, "types of the engine and its GPU backend")
            }
            Self::Browser => {
                let kernels = ["--manifest-path", "crates/gpu/Cargo.toml", "--lib"];
                let command = cargo(workspace, "check", "wasm32-unknown-unknown").args(kernels);
                checks(command, "types of the GPU kernels")
            }
            Self::Windows => wine::check(workspace),
        }
    }
}

/// Checks all platforms; fails if a tool is missing.
pub(crate) fn platforms(workspace: &Workspace) -> Result<()> {
    for platform in Platform::ALL {
        if let Some(missing) = platform.missing(workspace) {
            return Err(Error::PlatformTools { platform: platform.name(), missing });
        }
        let checked = platform.check(workspace)?;
        println!("{}: ok; {checked}", platform.name());
    }
    Ok(())
}

/// A command of cargo that builds the standard library too.
fn cargo(workspace: &Workspace, command: &str, target: &str) -> CommandLine {
    let library = match target {
        "wasm32-unknown-unknown" => "-Zbuild-std=std,panic_abort",
        _ => "-Zbuild-std=std,panic_unwind",
    };
    CommandLine::cargo(workspace)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTC", COMPILER)
        .args([command, library, "--locked", "--quiet"])
        .args(["--target", target, "--target-dir", TARGET_FOLDER])
}
