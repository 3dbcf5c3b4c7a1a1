//! Completion scripts and manual pages.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::program::{argument, run};
use crate::usage::COMMANDS;

#[test]
fn scripts_name_every_command_and_its_flags() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]);
        for command in COMMANDS {
            let name = command.last().unwrap();
            assert!(script.text().contains(name), "{shell}: {name}");
        }
        for flag in ["kv-budget", "temperature", "color"] {
            assert!(script.text().contains(flag), "{shell}: {flag}");
        }
    }
    let document = run(&["completions", "bash", "--json"]).json();
    assert_eq!(document["script"], run(&["completions", "bash"]).text());
    run(&["completions", "csh"]).fails_with(2, &["bash", "zsh", "fish"]);
}

/// Completions that bash offers after `line`.
#[cfg(unix)]
fn offered(script: &str, line: &str) -> BTreeSet<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let last = words.len() - 1;
    let program = format!(
        "{script}\nCOMP_WORDS=({}); COMP_CWORD={last}; _ruvllm ruvllm '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        quoted.join(" "),
        words[last],
        words[last.saturating_sub(1)],
    );
    // A file: the script is longer than an argument may be.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    fs::write(&path, program).unwrap();
    let output = Command::new("bash").args(["--norc", argument(&path)]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[cfg(unix)]
#[test]
fn bash_offers_every_command() {
    let script = run(&["completions", "bash"]);
    let first = offered(script.text(), "ruvllm ");
    for command in COMMANDS {
        assert!(first.contains(command[0]), "{command:?} is not in {first:?}");
    }
    assert_eq!(offered(script.text(), "ruvllm perpl"), BTreeSet::from([String::new()]));
    let measures = offered(script.text(), "ruvllm eval ");
    assert!(
        ["perplexity", "passkey", "logits", "tools"].iter().all(|name| measures.contains(*name)),
        "{measures:?}"
    );
    assert!(offered(script.text(), "ruvllm generate --kv-").contains("--kv-budget"));
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("man");
    let document = run(&["man", argument(&folder), "--json"]).json();
    let written: BTreeSet<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let pages: BTreeSet<String> =
        document["pages"].as_array().unwrap().iter().map(|page| page.as_str().unwrap().to_owned()).collect();
    assert_eq!(pages, written);
    let expected: BTreeSet<String> = COMMANDS
        .iter()
        .map(|command| format!("ruvllm-{}.1", command.join("-")))
        .chain(
            [
                "ruvllm.1",
                "ruvllm-adapter.1",
                "ruvllm-eval.1",
                "ruvllm-key.1",
                "ruvllm-pack.1",
                "ruvllm-session.1",
                "ruvllm-sona.1",
                "ruvllm-sona-bank.1",
                "ruvllm-witness.1",
            ]
            .map(str::to_owned),
        )
        .collect();
    assert_eq!(written, expected);
    for (page, pieces) in [
        ("ruvllm.1", &[".TH ruvllm 1", "generate", "Exit codes"][..]),
        ("ruvllm-generate.1", &[".TH ruvllm-generate 1", "temperature", ".SH SAMPLING"]),
        ("ruvllm-eval-logits.1", &["positions", "safetensors"]),
    ] {
        let text = fs::read_to_string(folder.join(page)).unwrap();
        for piece in pieces {
            assert!(text.contains(piece), "{piece:?} is not in {page}: {text}");
        }
    }
}
