//! Names, ids and paths that mean the same on every system.

use crate::error::{Error, Result, excerpt};
use crate::limits::{MAX_NAME_BYTES, MAX_PATH_BYTES, MAX_PATH_PARTS};

/// The manifest of a pack.
pub const MANIFEST: &str = "kernels.json";
/// The signature of the manifest.
pub const SIGNATURE: &str = "kernels.json.sig";

/// Fault of a plain name: lower-case letters, digits, `.`, `_` and `-`, at most 64, beginning with
/// a letter or digit. Without upper case, names that differ are different files on every system.
pub(crate) fn name_fault(name: &str) -> Option<&'static str> {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    let (Some(&first), Some(&last)) = (bytes.first(), bytes.last()) else { return Some("a name is empty") };
    if bytes.len() > MAX_NAME_BYTES {
        return Some("a name is longer than 64 bytes");
    }
    if !bytes.iter().all(|&byte| is_word(byte) || b"._-".contains(&byte)) {
        return Some("names have lower-case letters, digits, '.', '_' and '-'");
    }
    if !is_word(first) || last == b'.' {
        return Some("names begin with a letter or digit and do not end with a dot");
    }
    is_device(name).then_some("a name is that of a device of Windows")
}

/// True for names of devices on Windows, which they are with any ending.
fn is_device(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or(name);
    match stem.as_bytes() {
        [b'c', b'o', b'm', digit] | [b'l', b'p', b't', digit] => digit.is_ascii_digit(),
        _ => matches!(stem, "con" | "prn" | "aux" | "nul"),
    }
}

/// Checks the path of a file in a pack: plain names with `/` between them.
///
/// # Errors
/// [`Error::Path`].
pub(crate) fn check_path(path: &str) -> Result<()> {
    let fault = || {
        if path.len() > MAX_PATH_BYTES {
            return Some("it is longer than 100 bytes");
        }
        if path.split('/').count() > MAX_PATH_PARTS {
            return Some("it has more than 4 parts");
        }
        if path.starts_with('/') || path.contains(['\\', ':']) {
            return Some("it must be relative, with '/' between its parts");
        }
        if path.split('/').any(|part| part == ".." || part == ".") {
            return Some("'.' and '..' lead out of the pack");
        }
        path.split('/').find_map(name_fault)
    };
    fault().map_or(Ok(()), |why| Err(Error::Path { path: excerpt(path), why }))
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_names_are_accepted() {
        for name in ["a", "rope-f32.wasm", "0_x", "com", "com10", &"a".repeat(64)] {
            assert_eq!(name_fault(name), None, "{name}");
        }
        for path in ["a.wasm", "kernels/rope.wasm", "a/b/c/d"] {
            assert!(check_path(path).is_ok(), "{path}");
        }
    }

    #[test]
    fn paths_that_escape_or_differ_between_systems_are_refused() {
        for path in [
            "",
            ".",
            "..",
            "../a",
            "a/../b",
            "a/./b",
            "a//b",
            "a/",
            "/a",
            "//a",
            "\\a",
            "a\\b",
            "c:a",
            "c:/a",
            "~/a",
            "a\0",
            "a\n",
            "A",
            "é",
            "a b",
            "-a",
            ".a",
            "a.",
            "con",
            "nul.wasm",
            "a/com1",
            "lpt9.x",
            "a/b/c/d/e",
        ] {
            assert!(matches!(check_path(path), Err(Error::Path { .. })), "{path:?}");
        }
        let long = vec!["a".repeat(40); 3].join("/");
        assert!(check_path(&long).is_err());
    }

    #[test]
    fn errors_about_long_paths_are_short() {
        let error = check_path(&"\u{1b}[".repeat(1 << 20)).unwrap_err().to_string();
        assert!(error.len() < 1000 && !error.contains('\u{1b}'), "{error}");
    }

    proptest! {
        #[test]
        fn an_accepted_path_stays_below_its_folder(path in r"([a-z./\\:~]|\PC|con|\.\.){0,12}") {
            if check_path(&path).is_ok() {
                let parts: Vec<_> = Path::new(&path).components().collect();
                prop_assert!(parts.iter().all(|part| matches!(part, Component::Normal(_))));
                prop_assert_eq!(parts.len(), path.split('/').count());
            }
        }
    }
}
