//! `cargo xtask ci --quick`: checks of the changed packages, in seconds.

use std::collections::BTreeSet;

use super::{CLIPPY_REST, Steps, adr_step, clippy, counted, form_steps};
use crate::metadata::Graph;
use crate::process::CommandLine;
use crate::{Result, Workspace, adr};

/// Form, lints of changed packages and their dependents, tests of changed packages.
///
/// Changed files: differences to the last commit, or in a clean tree those of the last commit.
pub(crate) fn quick(workspace: &Workspace) -> Result<()> {
    let mut steps = Steps::default();
    form_steps(workspace, &mut steps)?;
    let graph = Graph::load(workspace)?;
    let changed = changed_packages(workspace, &graph, &changed_files(workspace)?);
    if changed.is_empty() {
        steps.skip("clippy, tests", "no package changed");
    } else {
        let touched = graph.members().map(|package| package.name.as_str()).filter(|name| {
            changed.contains(*name)
                || graph.reachable(name).is_some_and(|below| below.iter().any(|name| changed.contains(*name)))
        });
        let selected = touched.flat_map(|name| ["--package", name]);
        steps.command("clippy", &clippy(workspace).args(selected).args(CLIPPY_REST))?;
        let selected = changed.iter().flat_map(|name| ["--package", *name]);
        let tests = CommandLine::cargo(workspace).args(["test", "--locked", "--no-fail-fast"]).args(selected);
        steps.run("tests", &tests.display(), || counted(&tests))?;
    }
    adr_step(workspace, &mut steps, adr::Depth::Sources)?;
    steps.summary()
}

/// Changed paths from the root, untracked files included.
fn changed_files(workspace: &Workspace) -> Result<Vec<String>> {
    let git = |args: &[&str]| CommandLine::new("git", workspace.root()).args(args).output();
    let mut files = git(&["diff", "--name-only", "--relative", "HEAD"])?;
    files.push_str(&git(&["ls-files", "--others", "--exclude-standard"])?);
    if files.trim().is_empty() {
        files = git(&["diff", "--name-only", "--relative", "HEAD~1"])?;
    }
    Ok(files.lines().map(str::to_owned).collect())
}

/// Packages of the changed files; a workspace-wide manifest or lock file counts for all.
fn changed_packages<'g>(workspace: &Workspace, graph: &'g Graph, files: &[String]) -> BTreeSet<&'g str> {
    let is_common =
        |file: &String| matches!(file.as_str(), "Cargo.toml" | "Cargo.lock" | "rust-toolchain.toml");
    let all_changed = files.iter().any(is_common);
    let mut changed = BTreeSet::new();
    for package in graph.members() {
        let has_file = || files.iter().any(|file| workspace.path(file).starts_with(&package.dir));
        if all_changed || has_file() {
            changed.insert(package.name.as_str());
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_belong_to_packages() {
        let workspace = Workspace::at("/w");
        let package = |name: &str| {
            format!(
                r#"{{"name":"{name}","id":"{name}#1","manifest_path":"/w/{name}/Cargo.toml","targets":[]}}"#
            )
        };
        let json = format!(
            r#"{{"packages":[{},{}],"workspace_members":["a#1","ab#1"],"resolve":{{"nodes":[]}}}}"#,
            package("a"),
            package("ab")
        );
        let graph = Graph::parse(&json).expect("a metadata document");
        let changed = |files: &[&str]| {
            let files: Vec<String> = files.iter().map(|&file| file.to_owned()).collect();
            changed_packages(&workspace, &graph, &files).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(changed(&["ab/src/lib.rs", "docs/x.md"]), ["ab"]);
        assert_eq!(changed(&["docs/x.md"]), [""; 0]);
        assert_eq!(changed(&["Cargo.lock"]), ["a", "ab"]);
    }
}
