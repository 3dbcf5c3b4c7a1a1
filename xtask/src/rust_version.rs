//! Minimum Rust version: every manifest states the workspace's, and a compiler of that version
//! checks the tree.

use crate::process::CommandLine;
use crate::{Error, Result, Workspace};

/// Manifests outside of the workspace that state the version too.
const OUTSIDE: [&str; 1] = ["crates/gpu/Cargo.toml"];

/// The version of the workspace's manifest, as `1.95`.
fn stated(workspace: &Workspace) -> Result<String> {
    let text = workspace.read("Cargo.toml")?;
    value(&text)
        .map(str::to_owned)
        .ok_or_else(|| Error::RustVersion { problem: "Cargo.toml states none".to_owned() })
}

/// Value of the line `rust-version = "..."`.
fn value(manifest: &str) -> Option<&str> {
    let line = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "))?;
    line.trim().strip_prefix('"')?.strip_suffix('"')
}

/// Compares the manifests with one another and with the running compiler, which must not be older.
///
/// # Errors
/// [`Error::RustVersion`] if one differs or states none.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let version = stated(workspace)?;
    for path in workspace.files()?.iter().filter(|path| path.ends_with("/Cargo.toml")) {
        let text = workspace.read(path)?;
        let is_apart = text.lines().any(|line| line == "[workspace]");
        let agrees = if OUTSIDE.contains(&path.as_str()) {
            value(&text) == Some(&version)
        } else {
            is_apart || text.lines().any(|line| line == "rust-version.workspace = true")
        };
        if !agrees {
            return Err(Error::RustVersion { problem: format!("{path} does not state {version}") });
        }
    }
    let compiler = CommandLine::new("rustc", workspace.root()).args(["--version"]).output()?;
    match (minor(&compiler), minor(&version)) {
        (Some(found), Some(least)) if found >= least => Ok(()),
        _ => Err(Error::RustVersion { problem: format!("{} is older than {version}", compiler.trim()) }),
    }
}

/// Command that checks the workspace with the stated version, or the reason that it is unavailable.
///
/// # Errors
/// When the manifest states no version.
pub(crate) fn command(workspace: &Workspace) -> Result<std::result::Result<CommandLine, String>> {
    let toolchain = format!("{}.0", stated(workspace)?);
    let rustup = |words: &[&str]| {
        // `rustup run` alone would install a missing toolchain, or ask to.
        CommandLine::new("rustup", workspace.root()).args(["run", &toolchain]).args(words)
    };
    Ok(if rustup(&["rustc", "--version"]).succeeds() {
        let rest = ["check", "--workspace", "--locked", "--quiet", "--target-dir", "target/rust-version"];
        Ok(rustup(&["cargo"]).args(rest))
    } else {
        Err(format!("no toolchain {toolchain}: rustup toolchain install {toolchain}"))
    })
}

/// The second number of the first version in a text.
fn minor(text: &str) -> Option<u32> {
    let version = text.split_whitespace().find(|word| word.starts_with("1."))?;
    version.split('.').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_manifests_and_compilers() {
        assert_eq!(value("[workspace.package]\nrust-version = \"1.95\"\n"), Some("1.95"));
        assert_eq!(value("[package]\nrust-version.workspace = true\n"), None);
        assert_eq!(minor("rustc 1.96.0 (abc 2026-04-14)"), Some(96));
        assert_eq!(minor("1.95"), Some(95));
        assert_eq!(minor("rustc"), None);
    }
}
