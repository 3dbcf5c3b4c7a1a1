//! Names of adapters, in a store and in a registry.

use crate::error::{Error, Result};
use crate::shortened::shortened;

/// Longest name in bytes.
pub const MAX_NAME_BYTES: usize = 64;

/// Names of devices on Windows, in every folder and with any ending.
const DEVICES: [&str; 4] = ["con", "prn", "aux", "nul"];

/// Checks a name: letters, digits, `.`, `_` and `-` of ASCII, at most 64, beginning with a letter
/// or digit. Such a name is a file name on every system, and no path.
///
/// # Errors
/// [`Error::Name`].
pub(crate) fn check_name(name: &str) -> Result<()> {
    let fault = || {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric();
        let is_part = |byte: u8| is_word(byte) || matches!(byte, b'.' | b'_' | b'-');
        if name.is_empty() {
            return Some("it is empty");
        }
        if name.len() > MAX_NAME_BYTES {
            return Some("it is longer than 64 bytes");
        }
        if !name.bytes().all(is_part) {
            return Some("letters, digits, '.', '_' and '-' are allowed");
        }
        if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || name.ends_with('.') {
            return Some("it must begin with a letter or digit, and not end with a dot");
        }
        let stem = name.split('.').next().unwrap_or(name).to_ascii_lowercase();
        let is_port = ["com", "lpt"].iter().any(|port| {
            stem.strip_prefix(port).is_some_and(|rest| rest.len() == 1 && rest.as_bytes()[0].is_ascii_digit())
        });
        (is_port || DEVICES.contains(&&*stem)).then_some("it names a device of Windows")
    };
    fault().map_or(Ok(()), |why| Err(Error::Name { name: shortened(name), why }))
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_file_names_everywhere() {
        for name in ["a", "Poet-2.v1", "0_x", &"a".repeat(64)] {
            assert!(check_name(name).is_ok(), "{name:?}");
        }
        for name in
            ["", ".", "..", "../a", "a/b", "a\\b", "/a", "-a", ".a", "a.", "a b", "a\0", "é", "CON", "nul.x"]
        {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        assert!(check_name("com1").is_err() && check_name("Lpt9.a").is_err() && check_name("com").is_ok());
    }

    #[test]
    fn errors_about_long_names_are_short() {
        let error = check_name(&"a\n".repeat(5 << 20)).unwrap_err().to_string();
        assert!(error.len() < 500 && !error.contains('\n'), "{error}");
    }

    proptest! {
        #[test]
        fn a_valid_name_is_one_part_of_a_path(name in r"([a-z./\\:~]|\PC|con|\.\.){0,9}") {
            if check_name(&name).is_ok() {
                let mut parts = Path::new(&name).components();
                prop_assert!(matches!(parts.next(), Some(Component::Normal(part)) if part == &*name));
                prop_assert!(parts.next().is_none());
            }
        }
    }
}
