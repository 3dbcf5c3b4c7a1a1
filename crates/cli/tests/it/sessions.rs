//! `chat --session` and `session`: conversations that go on after a restart.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::program::{Run, argument, command, fields, finish, repository};

const FRANCE: &str = "What is the capital of France?";
const ITALY: &str = "And of Italy?";

/// Runs the program with its state in a folder of the test.
fn run(state: &Path, arguments: &[&str], lines: &[&str]) -> Run {
    let mut child = command(arguments)
        .env("XDG_STATE_HOME", state)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let input = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    // A program that does not read its input closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    finish(arguments, child.wait_with_output().unwrap())
}

/// The document of a greedy chat.
fn chat(state: &Path, flags: &[&str], lines: &[&str]) -> Value {
    let base = ["chat", "--json", "--temperature", "0", "-n", "24"];
    run(state, &[&base, flags].concat(), lines).json_and_warnings().0
}

fn sessions(state: &Path) -> Vec<Value> {
    run(state, &["session", "list", "--json"], &[]).json()["sessions"].as_array().unwrap().clone()
}

#[test]
fn a_session_goes_on_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let system = ["--system", "You answer questions about countries, rivers and cities in one sentence."];
    let whole = chat(state, &system, &[FRANCE, ITALY]);
    assert!(sessions(state).is_empty(), "without --session nothing is kept");
    let first = chat(state, &[&["--session", "geo"], &system[..]].concat(), &[FRANCE]);
    assert_eq!(first["session"], "geo");
    let second = chat(state, &["--session", "geo"], &[ITALY]);
    assert_eq!(second["messages"], whole["messages"], "as without a restart");
    let turn = &second["turns"][0];
    assert!(turn["cached_tokens"].as_u64() >= Some(32), "keys and values are read back: {turn}");

    let listed = sessions(state);
    assert_eq!(fields(&listed[0]), ["id", "message_count", "bytes", "used_unix", "last_message"]);
    assert_eq!((&listed[0]["id"], &listed[0]["message_count"]), (&json!("geo"), &json!(5)));
    assert_eq!(listed[0]["last_message"], ITALY);
    let table = run(state, &["session", "list"], &[]).text().to_owned();
    assert!(table.starts_with("geo  5 messages  ") && table.ends_with("  And of Italy?\n"), "{table}");

    // Messages only, for a model that has computed none of them.
    let tiny = repository("crates/models/tests/data/tiny/llama/model-F32.gguf");
    let other = ["--session", "geo", "--system", "Be brief.", "-m", argument(&tiny)];
    if run(state, &[&["chat"], &other[..]].concat(), &[]).succeeded() {
        assert_eq!(sessions(state)[0]["message_count"], 5);
    }
}

#[test]
fn commands_change_the_session_too() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let flags = ["--session", "a", "--prefix-cache", "off"];
    chat(state, &flags, &[FRANCE, ITALY, "/undo", "/system Be brief."]);
    let messages = chat(state, &flags, &[])["messages"].clone();
    let said: Vec<&str> =
        messages.as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap()).collect();
    assert_eq!(said, ["Be brief.", FRANCE, "The capital of France is Paris."]);
    // Flags take precedence over the session.
    assert_eq!(
        chat(state, &[&flags[..], &["--system", "Other."]].concat(), &[])["messages"][0]["content"],
        "Other."
    );
    assert!(
        !state.join("ruvllm/sessions/a/prefixes").exists(),
        "--prefix-cache off keeps no keys and values"
    );
    chat(state, &flags, &["/clear"]);
    assert_eq!(sessions(state)[0]["message_count"], 1);
}

#[test]
fn sessions_are_forked_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let long = "Tell me about the river that flows through the capital of France, and about its bridges.";
    chat(state, &["--session", "one"], &[long]);
    let made = run(state, &["session", "fork", "one", "two", "--json"], &[]).json();
    assert_eq!(made["id"], "two");
    let forked = chat(state, &["--session", "two"], &[ITALY]);
    assert!(forked["turns"][0]["cached_tokens"].as_u64() >= Some(32), "{forked}");
    let counts: Vec<_> = sessions(state).iter().map(|session| session["message_count"].clone()).collect();
    assert_eq!(counts, [2, 4], "the fork goes on alone");

    let removed = run(state, &["session", "rm", "one", "--json"], &[]).json();
    assert!(removed["id"] == "one" && removed["freed_bytes"].as_u64() > Some(1000), "{removed}");
    assert_eq!(sessions(state).len(), 1);
    assert!(!state.join("ruvllm/sessions/one").exists());
    assert_eq!(run(state, &["session", "rm", "two"], &[]).text().split(',').next(), Some("two removed"));
    let none = run(state, &["session", "list"], &[]).text().to_owned();
    assert_eq!(none, "no sessions; `ruvllm chat --session ID` begins one\n");
}

#[test]
fn faults_name_the_session() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    chat(state, &["--session", "a"], &[FRANCE]);
    chat(state, &["--session", "b"], &[FRANCE]);
    let broken = state.join("ruvllm/sessions/broken");
    fs::create_dir(&broken).unwrap();
    fs::write(broken.join("chat.json"), "{").unwrap();
    for (arguments, code, pieces) in [
        (&["session", "rm", "c"][..], 1, ["no session c", "session list"]),
        (&["session", "fork", "c", "d"], 1, ["no session c", ""]),
        (&["session", "fork", "a", "b"], 1, ["session b exists", "session rm b"]),
        (&["session", "rm", "../a"], 2, ["letters, digits", ""]),
        (&["chat", "--session", "a/b"], 2, ["--session", "letters, digits"]),
        (&["chat", "--session", "broken"], 1, ["chat.json", ""]),
        (&["run", "base", "--session", "a", "Hello"], 1, ["", ""]),
    ] {
        run(state, arguments, &[]).fails_with(code, &pieces);
    }
    let listed = sessions(state);
    assert_eq!(fields(&listed[2]), ["id", "bytes", "used_unix"]);
    assert!(run(state, &["session", "list"], &[]).text().contains("damaged"));
    let model = repository("models/base-q8_0.gguf");
    run(state, &["run", argument(&model), "--session", "a", "Hello"], &[])
        .fails_with(2, &["--session", "no session"]);
}

#[cfg(unix)]
#[test]
fn an_open_session_is_private_and_locked() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let mut child = command(&["chat", "--session", "a", "--temperature", "0"])
        .env("XDG_STATE_HOME", state)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{FRANCE}").unwrap();
    let mut answer = [0; 31];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut answer).unwrap();
    for arguments in [&["chat", "--session", "a"][..], &["session", "rm", "a"]] {
        // The file appears behind the answer.
        let run = run(state, arguments, &[]);
        let line = run.failure(1);
        assert!(line.contains("open in another chat") || line.contains("no session a"), "{line}");
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
    let path = state.join("ruvllm/sessions/a");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&path.join("chat.json"))), (0o700, 0o600));
    run(state, &["session", "rm", "a"], &[]).text();
}
