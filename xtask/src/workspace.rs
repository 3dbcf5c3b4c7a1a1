//! The workspace on disk: root, files, path patterns.

use std::fs;
use std::path::{Path, PathBuf};

use regex_lite::Regex;

use crate::{Error, Result};

/// The root folder of a Cargo workspace.
#[derive(Clone, Debug)]
pub struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Workspace with this root, unchecked.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Searches the current folder and its parents for a `Cargo.toml` with a `[workspace]` table.
    ///
    /// # Errors
    /// [`Error::NoWorkspace`] if there is none, [`Error::Io`] if the current folder is unknown.
    pub fn find() -> Result<Self> {
        let start = std::env::current_dir().map_err(Error::io("find", "."))?;
        start
            .ancestors()
            .find(|dir| {
                fs::read_to_string(dir.join("Cargo.toml"))
                    .is_ok_and(|text| text.lines().any(|line| line.trim() == "[workspace]"))
            })
            .map(Self::at)
            .ok_or(Error::NoWorkspace { start: start.clone() })
    }

    /// The root folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A path below the root.
    #[must_use]
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    /// Reads a text file below the root.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read or is not UTF-8.
    pub fn read(&self, relative: &str) -> Result<String> {
        let path = self.path(relative);
        fs::read_to_string(&path).map_err(Error::io("read", path))
    }

    /// Every file below the root as a relative path with `/` between the parts, sorted.
    /// Build outputs and version control are left out.
    ///
    /// # Errors
    /// [`Error::Io`] if a folder cannot be listed.
    pub fn files(&self) -> Result<Vec<String>> {
        let mut files = Vec::new();
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            let path = self.path(&folder);
            for entry in fs::read_dir(&path).map_err(Error::io("list", &path))? {
                let entry = entry.map_err(Error::io("list", &path))?;
                let name = entry.file_name().to_string_lossy().into_owned();
                let relative = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
                let kind = entry.file_type().map_err(Error::io("list", &path))?;
                if kind.is_dir() {
                    if !is_output(&name) {
                        folders.push(relative);
                    }
                } else if kind.is_file() {
                    files.push(relative);
                }
            }
        }
        files.sort();
        Ok(files)
    }
}

/// Seconds since 1970 (UTC).
#[must_use]
pub fn unix_seconds() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Today (UTC) as `YYYY-MM-DD`.
#[must_use]
pub fn today() -> String {
    let (year, month, day) = civil(unix_seconds() / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Year, month and day of a number of days since 1970-01-01 in the Gregorian calendar.
fn civil(mut days: u64) -> (u64, u64, u64) {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

/// Folders that hold no source: version control and build outputs.
fn is_output(name: &str) -> bool {
    name == ".git" || name == "target" || name.starts_with("target-")
}

/// A set of path patterns: `*` matches within one path part, `**` any number of parts, `?` one
/// character.
#[derive(Debug)]
pub(crate) struct PathPatterns(Vec<Regex>);

impl PathPatterns {
    /// Compiles patterns such as `crates/**/src/**/*.rs`.
    pub(crate) fn new<S: AsRef<str>>(patterns: &[S]) -> Self {
        Self(patterns.iter().map(|pattern| glob(pattern.as_ref())).collect())
    }

    /// True if any pattern matches the whole path.
    pub(crate) fn matches(&self, path: &str) -> bool {
        self.0.iter().any(|pattern| pattern.is_match(path))
    }
}

/// Translates one path pattern into an anchored regular expression.
fn glob(pattern: &str) -> Regex {
    let mut source = String::from("^");
    let mut rest = pattern;
    while let Some(first) = rest.chars().next() {
        let (piece, used) = if rest.starts_with("**/") {
            ("(?:.*/)?".to_owned(), 3)
        } else if rest.starts_with("**") {
            (".*".to_owned(), 2)
        } else if first == '*' {
            ("[^/]*".to_owned(), 1)
        } else if first == '?' {
            ("[^/]".to_owned(), 1)
        } else {
            (regex_lite::escape(&first.to_string()), first.len_utf8())
        };
        source.push_str(&piece);
        rest = &rest[used..];
    }
    source.push('$');
    Regex::new(&source).expect("every character outside the wildcards is escaped")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, path: &str, expected: bool) {
        assert_eq!(PathPatterns::new(&[pattern]).matches(path), expected, "{pattern} on {path}");
    }

    #[test]
    fn path_patterns_match_whole_paths() {
        check("crates/**/src/**/*.rs", "crates/kernels/src/lib.rs", true);
        check("crates/**/src/**/*.rs", "crates/kernels/src/op/dot/mod.rs", true);
        check("crates/**/src/**/*.rs", "crates/kernels/tests/a.rs", false);
        check("crates/*/Cargo.toml", "crates/kernels/Cargo.toml", true);
        check("crates/*/Cargo.toml", "crates/kernels/sub/Cargo.toml", false);
        check("docs/adr/000?-*.md", "docs/adr/0001-layers.md", true);
        check("a.rs", "axrs", false);
        check("crates/**", "crates/a/b", true);
    }

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(59), (1970, 3, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_453), (2025, 12, 31));
    }

    #[test]
    fn outputs_are_not_sources() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for path in ["src/a.rs", "target/debug/x.rs", "target-asan/y.rs", ".git/config", ".ci/run"] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
            fs::write(path, "").expect("a file");
        }
        assert_eq!(Workspace::at(dir.path()).files().expect("a listing"), [".ci/run", "src/a.rs"]);
    }
}
