//! Sets `RUVLLM_COMMIT`, the commit that measurements name in their documents.
//!
//! Unset outside of a repository of this project, and without git.

use std::process::Command;

fn main() {
    // Without such a line every change in the package runs the script again.
    println!("cargo:rerun-if-changed=build.rs");
    // Sources packaged inside of another repository do not belong to its commits.
    if git(&["rev-parse", "--show-prefix"]).as_deref() != Some("crates/cli/") {
        return;
    }
    let Some(commit) = git(&["rev-parse", "HEAD"]) else { return };
    println!("cargo:rustc-env=RUVLLM_COMMIT={commit}");
    // The log of HEAD grows with each commit and checkout.
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
}

/// Output of a git command without its line break.
fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim_end().to_owned())
}
