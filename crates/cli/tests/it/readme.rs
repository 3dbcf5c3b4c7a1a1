//! The README's session, run: its commands print the text shown there.
//!
//! The text does not depend on the machine: seeds are fixed, and results are the same for every
//! instruction set and thread count (ADR-0003).

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::program::repository;

/// Command of a session with its output.
#[derive(Debug, PartialEq)]
struct Entry {
    command: String,
    output: String,
}

/// Entries of every `console` block: `$ ` begins a command, `> ` continues it.
fn sessions(markdown: &str) -> Vec<Entry> {
    let blocks = markdown.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut entries: Vec<Entry> = Vec::new();
    for line in blocks.flat_map(str::lines) {
        match (line.strip_prefix("$ "), line.strip_prefix("> "), entries.last_mut()) {
            (Some(command), ..) => {
                entries.push(Entry { command: command.to_owned(), output: String::new() });
            }
            (None, Some(more), Some(entry)) if entry.command.ends_with('\\') => {
                entry.command = format!("{}\n{more}", entry.command);
            }
            (None, _, Some(entry)) => entry.output = format!("{}{line}\n", entry.output),
            (None, _, None) => panic!("output before the first command: {line}"),
        }
    }
    entries
}

/// True if `actual` is `expected`; a line `...` stands for any number of lines.
fn agrees(actual: &[&str], expected: &[&str]) -> bool {
    match expected.split_first() {
        Some((&"...", rest)) => (0..=actual.len()).any(|skipped| agrees(&actual[skipped..], rest)),
        Some((line, rest)) => actual.first() == Some(line) && agrees(&actual[1..], rest),
        None => actual.is_empty(),
    }
}

/// Standard output and error of a command in `folder`, with the built program as `ruvllm`.
fn run_in(folder: &Path, command: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_ruvllm"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", program.parent().unwrap().to_str().unwrap());
    let output = Command::new("sh")
        .args(["-ec", command])
        .current_dir(folder)
        .env("PATH", path)
        .env("RUVLLM_HOME", folder.join("store"))
        .env_remove("RUVLLM_MODEL")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{command}\n{text}");
    text
}

#[test]
fn readme_session_prints_what_it_shows() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["models", "crates", "LICENSE-MIT"] {
        symlink(repository(name), folder.path().join(name)).unwrap();
    }
    let entries = sessions(&std::fs::read_to_string(repository("README.md")).unwrap());
    for command in ["inspect", "chat", "quantize", "embed", "--adapter"] {
        assert!(entries.iter().any(|entry| entry.command.contains(command)), "no {command} in the README");
    }
    for Entry { command, output } in &entries {
        let actual = run_in(folder.path(), command);
        let lines = (actual.lines().collect::<Vec<_>>(), output.lines().collect::<Vec<_>>());
        assert!(
            agrees(&lines.0, &lines.1),
            "README.md shows other output of\n$ {command}\nshown:\n{output}\nprinted:\n{actual}"
        );
    }
}

#[test]
fn sessions_are_commands_with_output_and_elisions() {
    let text = "a\n```console\n$ one \\\n>   two\nx\ny\n$ three\n```\n$ four\n";
    let expected = [("one \\\n  two", "x\ny\n"), ("three", "")]
        .map(|(command, output)| Entry { command: command.to_owned(), output: output.to_owned() });
    assert_eq!(sessions(text), expected);
    assert!(agrees(&["a", "b", "c"], &["a", "...", "c"]) && agrees(&["a"], &["a", "..."]));
    assert!(!agrees(&["a", "b"], &["a"]) && !agrees(&["a"], &["...", "b"]));
}
