//! Type checks for platforms that this machine does not run.
//!
//! Debian's compiler comes with the source of its standard library, from which cargo builds it for
//! any target.

use std::path::Path;

use crate::Workspace;
use crate::process::CommandLine;

/// The compiler, and the source that must lie beside it.
const COMPILER: &str = "/usr/bin/rustc";
const SOURCE: &str = "library/std/Cargo.toml";

/// A platform to check for.
pub(crate) struct Platform {
    pub(crate) name: &'static str,
    target: &'static str,
    package: &'static str,
    /// A C compiler that the package's dependencies need for the target.
    c_compiler: Option<&'static str>,
}

/// macOS without the program: the C code of its TLS library wants Apple's headers.
pub(crate) const PLATFORMS: [Platform; 2] = [
    Platform { name: "macOS", target: "aarch64-apple-darwin", package: "ruvllm", c_compiler: None },
    Platform {
        name: "Windows",
        target: "x86_64-pc-windows-gnu",
        package: "ruvllm-cli",
        c_compiler: Some("x86_64-w64-mingw32-gcc"),
    },
];

impl Platform {
    /// The words for what this machine lacks; none if it can check.
    pub(crate) fn missing(&self, workspace: &Workspace) -> Option<String> {
        let compiler = CommandLine::new(COMPILER, workspace.root());
        let sysroot = compiler.args(["--print", "sysroot"]).output().ok();
        let has_source = sysroot
            .is_some_and(|root| Path::new(root.trim()).join("lib/rustlib/src/rust").join(SOURCE).exists());
        if !has_source {
            return Some(
                "no compiler with the source of its library: apt-get install rustc-web rust-web-src".into(),
            );
        }
        let starts =
            |program: &str| CommandLine::new(program, workspace.root()).args(["--version"]).succeeds();
        let lacking = self.c_compiler.filter(|program| !starts(program))?;
        Some(format!("no {lacking}: apt-get install gcc-mingw-w64-x86-64"))
    }

    /// Checks the package and all it needs, the standard library included.
    pub(crate) fn check(&self, workspace: &Workspace) -> CommandLine {
        CommandLine::cargo(workspace)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTC", COMPILER)
            .args(["check", "-Zbuild-std=std,panic_unwind", "--locked", "--quiet"])
            .args(["--target", self.target, "--target-dir", "target/platforms", "--package", self.package])
    }
}
