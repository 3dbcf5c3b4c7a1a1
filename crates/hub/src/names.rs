//! Names of files, as other people choose them: which can be stored on every system, and be shown.

/// Longest path of a file, in bytes.
const MAX_PATH_BYTES: usize = 1000;

/// Longest name in a path, in bytes: most file systems take 255, and the store appends to it.
const MAX_PART_BYTES: usize = 240;

/// Most folders and names in the path of a file.
pub(crate) const MAX_DEPTH: usize = 32;

/// Names of devices on Windows, in every folder and with any ending. Those with a digit are
/// [`NUMBERED_DEVICES`].
const DEVICES: [&str; 7] = ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$", "CLOCK$"];
const NUMBERED_DEVICES: [&str; 2] = ["COM", "LPT"];

/// Reason that `path` is not the name of a file below whatever folder it is joined to, on every
/// system; `None` if it is. Source for Windows: Microsoft, "Naming Files, Paths, and Namespaces".
pub(crate) fn path_fault(path: &str) -> Option<&'static str> {
    if path.len() > MAX_PATH_BYTES {
        return Some("it is longer than 1000 bytes");
    }
    if path.split('/').count() > MAX_DEPTH {
        return Some("it has more than 32 parts");
    }
    path.split('/').find_map(part_fault)
}

/// As [`path_fault`], of one name.
pub(crate) fn part_fault(part: &str) -> Option<&'static str> {
    if matches!(part, "" | "." | "..") {
        return Some("it is not a plain relative path");
    }
    if part.len() > MAX_PART_BYTES {
        return Some("a part of it is longer than 240 bytes");
    }
    if part.contains(char::is_control) {
        return Some("it holds a control character");
    }
    if part.contains(is_invisible) {
        return Some("it holds a character that is invisible or changes the direction of writing");
    }
    if part.contains(['\\', ':', '<', '>', '"', '|', '?', '*']) {
        return Some(r#"it holds one of \ : < > " | ? *"#);
    }
    if part.ends_with(['.', ' ']) {
        return Some("a part of it ends with a dot or a space");
    }
    is_device(part).then_some("a part of it names a device of Windows")
}

/// Characters that make a name look like another: controls of direction, ends of lines, and spaces
/// without width.
pub(crate) fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'
            | '\u{2066}'..='\u{2069}' | '\u{feff}'
    )
}

/// True for the name of a device. Spaces of any width at its end count as none, as it is shown.
fn is_device(part: &str) -> bool {
    let stem = part.split('.').next().unwrap_or(part).trim_end().to_uppercase();
    let is_number = |rest: &str| {
        matches!(rest.chars().next(), Some('0'..='9' | '\u{b9}' | '\u{b2}' | '\u{b3}'))
            && rest.chars().count() == 1
    };
    DEVICES.contains(&stem.as_str())
        || NUMBERED_DEVICES.iter().any(|device| stem.strip_prefix(device).is_some_and(is_number))
}

/// A text from elsewhere without characters that could drive a terminal or reorder a line.
pub(crate) fn visible(c: char) -> char {
    match c {
        c if c.is_control() => ' ',
        c if is_invisible(c) => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_every_system_are_safe() {
        for path in
            ["a", "a/b c.gguf", "console", "com", "com10.x", "lpt0x", ".hidden", "nul-1", "\u{e9}\u{200d}"]
        {
            assert_eq!(path_fault(path), None, "{path:?}");
        }
        for (path, fault) in [
            ("CON", "device"),
            ("a/nul.gguf", "device"),
            ("Com1.tar.gz/x", "device"),
            ("aux .txt", "device"),
            ("con\u{2000}", "device"),
            ("lpt\u{b2}", "device"),
            ("conin$", "device"),
            ("a./b", "ends with"),
            ("a ", "ends with"),
            ("a\u{202e}fugg.b", "direction"),
            ("a\u{2067}b", "direction"),
            ("\u{feff}a", "invisible"),
            ("a\u{9b}b", "control"),
            ("a\0", "control"),
            ("a\u{2028}", "invisible"),
            ("a:b", "one of"),
            ("a\\b", "one of"),
            ("a?", "one of"),
            ("../a", "plain"),
            ("/a", "plain"),
        ] {
            assert!(
                path_fault(path).is_some_and(|found| found.contains(fault)),
                "{path:?}: {:?}",
                path_fault(path)
            );
        }
        assert!(path_fault(&"a/".repeat(40)).is_some() && path_fault(&"a".repeat(241)).is_some());
    }

    proptest! {
        #[test]
        fn a_safe_path_stays_below_its_folder(path in r"([a-z./\\:]|\PC|(con|nul|com1|\.\.|[ .])){0,9}") {
            if path_fault(&path).is_none() {
                prop_assert!(Path::new(&path).components().all(|part| matches!(part, Component::Normal(_))));
                prop_assert!(!path.contains(|c: char| c.is_control() || is_invisible(c) || c == '\\'));
                for part in path.split('/') {
                    prop_assert_eq!(part.trim_end_matches(['.', ' ']), part);
                    let stem = part.split('.').next().unwrap().trim_end().to_ascii_lowercase();
                    prop_assert!(!["con", "prn", "aux", "nul", "com1", "lpt9"].contains(&stem.as_str()));
                }
            }
        }
    }
}
