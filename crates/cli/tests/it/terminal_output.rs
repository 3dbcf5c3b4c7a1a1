//! Control characters of models and files at a pseudo-terminal and in pipes. Linux only.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::Read;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use serde_json::{Value, json};

use crate::program::{argument, command, ids, run};

/// Runs the program with a pseudo-terminal as standard output; returns the terminal's bytes. The
/// terminal can show styles, also where that of the tests cannot.
pub(crate) fn at_terminal(arguments: &[&str]) -> String {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let peer = ioctl_tiocgptpeer(&master, flags).unwrap();
    let mut command = command(arguments);
    command.env("TERM", "xterm").env_remove("NO_COLOR");
    let mut child = command.stdout(Stdio::from(peer)).stderr(Stdio::null()).spawn().unwrap();
    // It holds the other end open.
    drop(command);
    let mut shown = Vec::new();
    let mut master = File::from(master);
    let mut bytes = [0; 4096];
    // Reads fail once the program has closed the terminal.
    while let Ok(n @ 1..) = master.read(&mut bytes) {
        shown.extend_from_slice(&bytes[..n]);
    }
    assert!(child.wait().unwrap().success());
    // The terminal driver puts a carriage return before each line break.
    String::from_utf8(shown).unwrap().replace("\r\n", "\n")
}

fn is_plain(text: &str) -> bool {
    !text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t'))
}

#[test]
fn generated_control_characters_reach_pipes_and_no_terminal() {
    let escape = run(&["tokenize", "--no-special", "--json", "\u{1b}"]).json();
    let forced = format!("{}=1e6", ids(&escape["tokens"]).last().unwrap());
    let arguments = ["generate", "-n", "3", "--temperature", "0", "--logit-bias", &forced, "Once"];
    assert_eq!(run(&arguments).text(), "\u{1b}\u{1b}\u{1b}\n");
    assert_eq!(at_terminal(&arguments), "\n");
}

#[test]
fn control_characters_of_messages_reach_pipes_and_no_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("messages.json");
    let hostile = "a\u{1b}]0;title\u{7}b\u{9b}2Jc\r\td";
    std::fs::write(&file, json!([{"role": "user", "content": hostile}]).to_string()).unwrap();
    let arguments = ["template", "--style", "chatml", "--messages", argument(&file)];
    assert!(run(&arguments).text().contains(hostile));
    let shown = at_terminal(&arguments);
    assert!(is_plain(&shown) && shown.contains("a]0;titleb2Jc\td"), "{shown:?}");

    // JSON allows characters from U+007F on in strings; their escapes are equal strings.
    let arguments = [&arguments[..], &["--json"]].concat();
    let shown = at_terminal(&arguments);
    assert!(is_plain(&shown), "{shown:?}");
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), run(&arguments).json());
}

#[test]
fn decoded_tokens_drive_no_terminal() {
    let tokens = ids(&run(&["tokenize", "--no-special", "--json", "a\u{1b}[2Jb"]).json()["tokens"]);
    let tokens: Vec<String> = tokens.iter().map(u32::to_string).collect();
    let arguments: Vec<&str> = ["detokenize"].into_iter().chain(tokens.iter().map(String::as_str)).collect();
    assert_eq!(run(&arguments).text(), "a\u{1b}[2Jb");
    assert_eq!(at_terminal(&arguments), "a[2Jb");
}
