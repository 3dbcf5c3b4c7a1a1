//! Folders for a user's files: the XDG base directories, on Windows the user's application data.

use std::fs::DirBuilder;
use std::io;
use std::path::{Path, PathBuf};

/// Program's cache folder; `None` if neither the variable nor a home is set.
pub(crate) fn cache() -> Option<PathBuf> {
    of("XDG_CACHE_HOME", ".cache")
}

/// Program's state folder (chat history, sessions); `None` if neither the variable nor a home is
/// set.
pub(crate) fn state() -> Option<PathBuf> {
    of("XDG_STATE_HOME", ".local/state")
}

/// Program's configuration folder; `None` if neither the variable nor a home is set.
pub(crate) fn config() -> Option<PathBuf> {
    of("XDG_CONFIG_HOME", ".config")
}

/// Creates a folder that only its owner can read, unless it exists.
pub(crate) fn make_private(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

/// Folder of a variable, else its default in the user's home. Relative paths count as unset.
fn of(variable: &str, in_home: &str) -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let in_home = || match cfg!(windows) {
        true => absolute("LOCALAPPDATA"),
        false => Some(absolute("HOME")?.join(in_home)),
    };
    Some(absolute(variable).or_else(in_home)?.join("ruvllm"))
}
