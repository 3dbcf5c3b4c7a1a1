//! `cargo xtask fixtures`: checksums of committed test data and models.
//!
//! The list has the form of `sha256sum`, with paths from the root, so `sha256sum -c` reads it too.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use sha2::{Digest, Sha256};

use crate::workspace::PathPatterns;
use crate::{Error, Result, Workspace};

/// The list of checksums, from the root.
pub const LIST: &str = "xtask/fixtures.sha256";

/// Files that must be listed: test data and the shipped model.
const SCOPE: [&str; 2] = ["crates/*/tests/data/**", "models/*.gguf"];
/// Documentation of the data is not listed.
const EXCEPT: [&str; 1] = ["**/*.md"];

/// Compares the data on disk with the list, prints each difference.
///
/// # Errors
/// [`Error::Fixtures`] when a file changed, is missing, or is not listed.
pub fn check(workspace: &Workspace) -> Result<()> {
    let listed = parse(&workspace.read(LIST)?);
    let found = digests(workspace)?;
    let mut differences = Vec::new();
    for (path, digest) in &listed {
        match found.get(path) {
            None => differences.push(format!("{path}: listed, but missing")),
            Some(other) if other != digest => differences.push(format!("{path}: content changed")),
            Some(_) => {}
        }
    }
    let unlisted = found.keys().filter(|path| !listed.contains_key(*path));
    differences.extend(unlisted.map(|path| format!("{path}: not listed")));
    for difference in &differences {
        println!("{difference}");
    }
    if differences.is_empty() {
        println!("{} files match {LIST}", found.len());
        Ok(())
    } else {
        Err(Error::Fixtures { differences: differences.len(), list: LIST })
    }
}

/// Rewrites the list from the data on disk.
///
/// # Errors
/// [`Error::Io`] if a file cannot be read or the list cannot be written.
pub fn update(workspace: &Workspace) -> Result<()> {
    let found = digests(workspace)?;
    let mut text = String::new();
    for (path, digest) in &found {
        let _ = writeln!(text, "{digest}  {path}");
    }
    let path = workspace.path(LIST);
    fs::write(&path, text).map_err(Error::io("write", path))?;
    println!("{} files listed in {LIST}", found.len());
    Ok(())
}

fn parse(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once("  "));
    pairs.map(|(digest, path)| (path.to_owned(), digest.to_owned())).collect()
}

fn digests(workspace: &Workspace) -> Result<BTreeMap<String, String>> {
    let (scope, except) = (PathPatterns::new(&SCOPE), PathPatterns::new(&EXCEPT));
    let files = workspace.files()?.into_iter();
    let data = files.filter(|path| scope.matches(path) && !except.matches(path));
    data.map(|relative| {
        let path = workspace.path(&relative);
        let bytes = fs::read(&path).map_err(Error::io("read", path))?;
        Ok((relative, hex(&Sha256::digest(&bytes))))
    })
    .collect()
}

/// Lower-case hexadecimal digits of bytes.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_missing_and_new_files_are_found() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let workspace = Workspace::at(dir.path());
        let put = |path: &str, text: &str| {
            let path = workspace.path(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
            fs::write(path, text).expect("a file");
        };
        put("xtask/x", "");
        put("models/a.gguf", "abc");
        put("crates/k/tests/data/b.json", "{}");
        put("models/README.md", "free text");
        update(&workspace).expect("an update");
        check(&workspace).expect("unchanged data");
        let list = workspace.read(LIST).expect("the list");
        assert!(
            list.contains("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  models/a.gguf")
        );
        assert!(!list.contains("README"));

        put("models/README.md", "other text");
        check(&workspace).expect("texts may change");
        put("models/a.gguf", "abd");
        assert!(matches!(check(&workspace), Err(Error::Fixtures { differences: 1, .. })));
        put("models/c.gguf", "new");
        fs::remove_file(workspace.path("crates/k/tests/data/b.json")).expect("a removal");
        assert!(matches!(check(&workspace), Err(Error::Fixtures { differences: 3, .. })));
    }
}
