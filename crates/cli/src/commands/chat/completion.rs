//! Tab completion of commands, settings, files and adapters.

use std::fs;
use std::path::{MAIN_SEPARATOR, Path};

use super::entry;
use super::settings::Settings;

/// Byte offset of the text to replace, and its sorted replacements.
pub(super) type Candidates = (usize, Vec<String>);

/// Completes `typed`, the line up to the cursor. `adapters` are the names known to `/adapter`.
pub(super) fn complete(typed: &str, adapters: &[String]) -> Candidates {
    if !typed.starts_with('/') {
        return (typed.len(), Vec::new());
    }
    let Some((command, rest)) = typed.split_once(' ') else {
        return (0, matching(typed, entry::command_names()));
    };
    let argument = typed.len() - rest.len();
    // Start of the last word.
    let word = typed.rfind(' ').map_or(argument, |at| at + 1);
    let is_first = word == argument;
    let words = |words: &mut dyn Iterator<Item = &str>| (word, matching(&typed[word..], words));
    match command {
        "/save" | "/load" => (argument, files(rest)),
        "/help" if is_first && rest.starts_with('/') => words(&mut entry::command_names()),
        "/help" if is_first => {
            words(&mut entry::command_names().map(|name| name.strip_prefix('/').unwrap_or(name)))
        }
        "/set" if is_first => words(&mut Settings::NAMES.into_iter()),
        "/set" if rest.split_once(' ').is_some_and(|(name, _)| Settings::WITH_OFF.contains(&name)) => {
            words(&mut ["off"].into_iter())
        }
        "/system" if is_first => words(&mut ["off"].into_iter()),
        "/adapter" => match typed[word..].split_once('=') {
            Some((name, path)) => (word + name.len() + 1, files(path)),
            None => words(&mut adapters.iter().map(String::as_str).chain(["off"])),
        },
        _ => (typed.len(), Vec::new()),
    }
}

/// Words that begin with `typed`, sorted.
fn matching<'a>(typed: &str, words: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut found: Vec<String> = words.filter(|word| word.starts_with(typed)).map(str::to_owned).collect();
    found.sort();
    found
}

/// Files and folders whose paths begin with `typed`; folders end in a separator. Hidden ones appear
/// once their dot is typed.
fn files(typed: &str) -> Vec<String> {
    let at = typed.rfind(std::path::is_separator).map_or(0, |at| at + 1);
    let (folder, prefix) = typed.split_at(at);
    let listed = fs::read_dir(if folder.is_empty() { Path::new(".") } else { Path::new(folder) });
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.ok()?;
        let name = entry.file_name().into_string().ok()?;
        let is_shown = name.starts_with(prefix) && (prefix.starts_with('.') || !name.starts_with('.'));
        // `metadata` follows links: a link to a folder counts as a folder.
        let is_folder = || fs::metadata(entry.path()).is_ok_and(|file| file.is_dir());
        is_shown.then(|| {
            let end = if is_folder() { MAIN_SEPARATOR.to_string() } else { String::new() };
            format!("{folder}{name}{end}")
        })
    };
    let mut found: Vec<String> = listed.into_iter().flatten().filter_map(name).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(typed: &str, start: usize, expected: &[&str]) {
        let adapters = ["poet".to_owned(), "pirate".to_owned()];
        assert_eq!(complete(typed, &adapters), (start, expected.iter().map(|&text| text.into()).collect()));
    }

    #[test]
    fn commands_are_completed() {
        check("/re", 0, &["/regenerate", "/reset"]);
        check("/help cl", 6, &["clear"]);
        check("/help /un", 6, &["/undo"]);
        check("a /re", 5, &[]);
        check("", 0, &[]);
    }

    #[test]
    fn settings_and_their_off_are_completed() {
        check("/set top", 5, &["top_k", "top_nsigma", "top_p"]);
        check("/set seed o", 10, &["off"]);
        check("/set top_k o", 12, &[]);
        check("/system o", 8, &["off"]);
    }

    #[test]
    fn adapters_are_completed_by_name_and_by_file() {
        check("/adapter p", 9, &["pirate", "poet"]);
        check("/adapter poet pi", 14, &["pirate"]);
        check("/adapter of", 9, &["off"]);
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sea-lora")).unwrap();
        let typed = format!("/adapter sea={}/se", folder.path().display());
        let (start, found) = complete(&typed, &[]);
        assert_eq!((&typed[..start], found.len()), ("/adapter sea=", 1));
        assert!(found[0].ends_with(&format!("sea-lora{MAIN_SEPARATOR}")), "{found:?}");
    }

    #[test]
    fn files_are_completed_with_spaces_and_without_hidden_ones() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["my talk.json", "my other.json", ".my hidden"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let path = |name: &str| format!("{}/{name}", folder.path().display());
        for command in ["/load", "/save"] {
            let typed = format!("{command} {}", path("my t"));
            assert_eq!(complete(&typed, &[]), (6, vec![path("my talk.json")]));
            assert_eq!(complete(&format!("{command} {}", path("")), &[]).1.len(), 2);
            assert_eq!(complete(&format!("{command} {}", path(".")), &[]).1, [path(".my hidden")]);
        }
        assert_eq!(files("/no/such/folder/x"), [""; 0]);
    }
}
