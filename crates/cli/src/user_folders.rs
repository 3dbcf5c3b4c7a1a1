//! Folders for a user's files: the XDG base directories, on Windows the user's application data.

use std::path::PathBuf;

/// The program's folder for what it can do without; `None` if neither the variable nor a home is
/// set.
pub(crate) fn cache() -> Option<PathBuf> {
    of("XDG_CACHE_HOME", ".cache")
}

/// The program's folder for what it remembers between runs; `None` if neither the variable nor a
/// home is set.
pub(crate) fn state() -> Option<PathBuf> {
    of("XDG_STATE_HOME", ".local/state")
}

/// The program's folder for what people configure; `None` if neither the variable nor a home is
/// set.
pub(crate) fn config() -> Option<PathBuf> {
    of("XDG_CONFIG_HOME", ".config")
}

/// The folder of a variable, else its place in the user's home. Paths that are not absolute count
/// as unset.
fn of(variable: &str, in_home: &str) -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let in_home = || match cfg!(windows) {
        true => absolute("LOCALAPPDATA"),
        false => Some(absolute("HOME")?.join(in_home)),
    };
    Some(absolute(variable).or_else(in_home)?.join("ruvllm"))
}
