//! Tools: `--tools`, `--tool-choice`, `chat --exec`, `eval tools`.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::program::{argument, run, run_with_input};

const QUESTION: &str = "What is the weather in Rome?";

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "get_weather", "description": "Get the weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Name of the city"}},
                "required": ["city"]}}},
        {"type": "function", "function": {"name": "set_timer", "description": "Start a timer",
            "parameters": {"type": "object", "properties": {"minutes": {"type": "integer", "description": "Length in minutes"}},
                "required": ["minutes"]}}},
    ])
}

/// Path of a new file with `text`.
fn written(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    argument(&path).to_owned()
}

/// Arguments of one greedy answer.
fn ask<'a>(file: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["generate", "--chat", "--temperature", "0", "--tools", file], more, &[QUESTION]].concat()
}

#[test]
fn calls_are_lines_of_json_and_part_of_the_document() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), "tools.json", &tools().to_string());
    let document = run(&ask(&file, &["--json"])).json();
    assert_eq!((&document["text"], &document["finish_reason"]), (&json!(""), &json!("tool_calls")));
    let call = &document["tool_calls"][0];
    assert_eq!((&call["name"], &call["arguments"]), (&json!("get_weather"), &json!({"city": "Rome"})));
    let text = run(&ask(&file, &[])).text().to_owned();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), *call);

    let named = run(&ask(&file, &["--json", "--tool-choice", "set_timer", "--one-tool-call"])).json();
    assert_eq!(named["tool_calls"].as_array().unwrap().len(), 1);
    assert!(named["tool_calls"][0]["arguments"]["minutes"].is_i64());
    let none = run(&ask(&file, &["--json", "--tool-choice", "none"])).json();
    assert!(none["tool_calls"] == json!([]) && none["text"] != "");
    let free = run(&ask(&file, &["--json", "--unconstrained-tools"])).json();
    assert_eq!(free["tool_calls"][0]["name"], "get_weather");
    // An object as chat servers get it, from standard input.
    let object = json!({"tools": tools()}).to_string();
    assert_eq!(run_with_input(&ask("-", &[]), object.as_bytes()).text(), text);
}

#[test]
fn calls_with_elements_are_valid_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), "tools.json", &tools().to_string());
    for format in ["qwen-xml", "glm"] {
        // The model was trained on another format; names and types hold in any case.
        let flags =
            ["--json", "--tool-choice", "set_timer", "--one-tool-call", "--tool-format", format, "-n", "60"];
        let document = run(&ask(&file, &flags)).json();
        let call = &document["tool_calls"][0];
        assert_eq!(call["name"], "set_timer", "{format}: {document}");
        // `-0.0` is an integer of JSON Schema.
        let minutes = call["arguments"]["minutes"].as_f64();
        assert!(minutes.is_some_and(|minutes| minutes.fract() == 0.0), "{format}: {document}");
        assert_eq!(document["text"], "");
    }
}

#[test]
fn faults_name_the_file_or_the_tool() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| written(folder.path(), name, text);
    let good = file("good.json", &tools().to_string());
    let unnamed = file("unnamed.json", r#"[{"function": {}}]"#);
    let twice = file("twice.json", r#"[{"name": "a"}, {"name": "a"}]"#);
    let keyword = file(
        "keyword.json",
        r#"[{"name": "a", "parameters": {"type": "object", "properties": {"b": {"not": {}}}}}]"#,
    );
    let broken = file("broken.json", "[");
    let text = file("text.json", "\"x\"");
    for (arguments, code, pieces) in [
        (ask(&unnamed, &[]), 1, ["tool 1 has no name", ""]),
        (ask(&twice, &[]), 1, ["two tools with the name `a`", ""]),
        (ask(&keyword, &[]), 1, ["tool `a`", "keyword `not`"]),
        (ask(&broken, &[]), 1, ["broken.json", "invalid JSON"]),
        (ask(&text, &[]), 1, ["text.json", "JSON array"]),
        (ask("absent.json", &[]), 1, ["absent.json", ""]),
        (ask(&good, &["--tool-choice", "fly"]), 1, ["no tool `fly`", "get_weather, set_timer"]),
        (ask(&good, &["--choices", "yes,no"]), 1, ["exclude each other", ""]),
        (ask(&good, &["--tool-format", "xml"]), 2, ["--tool-format", "hermes, llama"]),
        (vec!["generate", "--tools", &good, "Hi"], 1, ["--tools", "--chat"]),
        (vec!["generate", "--chat", "--tool-choice", "auto", "Hi"], 2, ["--tools", ""]),
        (vec!["generate", "--chat", "--tools", "-"], 2, ["--tools", ""]),
        (vec!["chat", "--tools", &good, "--exec", "true"], 1, ["--exec", "--yes"]),
        (vec!["chat", "--exec", "true"], 2, ["--tools", ""]),
    ] {
        run(&arguments).fails_with(code, &pieces);
    }
}

#[cfg(unix)]
mod exec {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::program::command;

    /// Path of a new script.
    fn script(folder: &Path, text: &str) -> String {
        let path = written(folder, "run-tool", &format!("#!/bin/sh\n{text}\n"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        path
    }

    /// The document of a chat with one question and a script that runs its calls.
    fn chat(text: &str, more: &[&str]) -> (Value, String) {
        let folder = tempfile::tempdir().unwrap();
        let file = written(folder.path(), "tools.json", &tools().to_string());
        let tool = script(folder.path(), text);
        let flags = ["chat", "--json", "--temperature", "0", "--tools", &file, "--exec", &tool, "--yes"];
        let run = run_with_input(&[&flags, more].concat(), format!("{QUESTION}\n").as_bytes());
        let (document, notes) = run.json_and_warnings();
        (document, notes.to_owned())
    }

    #[test]
    fn a_command_runs_calls_and_its_output_is_the_result() {
        let (document, notes) =
            chat("cat >&2; echo \"{\\\"called\\\": \\\"$1\\\", \\\"temperature_c\\\": 21}\"", &[]);
        let messages = document["messages"].as_array().unwrap();
        let roles: Vec<&str> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
        assert_eq!(roles[..3], ["user", "assistant", "tool"]);
        let call = &messages[1]["tool_calls"][0];
        assert_eq!(call["function"], json!({"name": "get_weather", "arguments": {"city": "Rome"}}));
        assert_eq!(messages[2]["content"], "{\"called\": \"get_weather\", \"temperature_c\": 21}");
        assert_eq!(messages[2]["tool_call_id"], call["id"]);
        assert!(notes.contains("{\"city\": \"Rome\"}"), "arguments on standard input: {notes}");
        let reasons: Vec<_> =
            document["turns"].as_array().unwrap().iter().map(|turn| &turn["finish_reason"]).collect();
        assert_eq!(reasons[0], "tool_calls");
        assert!(reasons.len() >= 2);
    }

    #[test]
    fn failures_are_told_to_the_model() {
        for (text, more, reason) in [
            ("echo no network; exit 3", &[][..], "no network"),
            ("exec sleep 60", &["--exec-timeout", "0.1"], "0.1"),
        ] {
            let (document, notes) = chat(text, more);
            let told: Value =
                serde_json::from_str(document["messages"][2]["content"].as_str().unwrap()).unwrap();
            assert!(told["error"].as_str().unwrap().contains(reason), "{told}");
            assert!(notes.contains(reason), "{notes}");
        }
    }

    #[test]
    fn a_signal_ends_a_call() {
        let folder = tempfile::tempdir().unwrap();
        let file = written(folder.path(), "tools.json", &tools().to_string());
        let begun = folder.path().join("begun");
        let tool = script(folder.path(), &format!("touch {}; exec sleep 600", begun.display()));
        let flags = [
            "chat",
            "--temperature",
            "0",
            "--tools",
            &file,
            "--exec",
            &tool,
            "--yes",
            "--exec-timeout",
            "600",
        ];
        let mut child = command(&flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut stdin, format!("{QUESTION}\n").as_bytes()).unwrap();
        let started = Instant::now();
        while !begun.exists() {
            assert!(started.elapsed() < Duration::from_secs(120), "the call has not begun");
            std::thread::sleep(Duration::from_millis(10));
        }
        let pid = child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130));
    }
}

#[test]
fn accuracy_has_the_documented_fields() {
    let folder = tempfile::tempdir().unwrap();
    let task = |question: &str, name: &str, arguments: Value, split: &str| {
        let calls = json!([{"function": {"name": name, "arguments": arguments}}]);
        let messages = json!([{"role": "user", "content": question}, {"role": "assistant", "content": "", "tool_calls": calls}]);
        json!({"messages": messages, "tools": tools(), "split": split}).to_string()
    };
    let tasks = [
        task(QUESTION, "get_weather", json!({"city": "Rome"}), "a"),
        task(QUESTION, "get_weather", json!({"city": "Paris"}), "b"),
        task(QUESTION, "set_timer", json!({"minutes": 3}), "b"),
    ];
    let file = written(folder.path(), "tasks.jsonl", &(tasks.join("\n") + "\n"));
    let document = run(&["eval", "tools", "--file", &file, "--json"]).json();
    let score = |split: &str, counts: [usize; 5]| {
        let [tasks, called, valid, name, exact] = counts;
        json!({"split": split, "tasks": tasks, "called": called, "valid": valid, "name": name, "exact": exact})
    };
    let expected =
        json!([score("a", [1, 1, 1, 1, 1]), score("b", [2, 2, 2, 1, 0]), score("all", [3, 3, 3, 2, 1])]);
    assert_eq!((&document["results"], &document["constrained"]), (&expected, &json!(true)));
    let table = run(&["eval", "tools", "--file", &file, "--unconstrained", "--limit", "1"]).text().to_owned();
    assert!(table.contains("called") && table.contains("1 (100 %)"), "{table}");
    let bad = written(folder.path(), "bad.jsonl", "{\"messages\": [], \"tools\": []}\n");
    run(&["eval", "tools", "--file", &bad]).fails_with(1, &["bad.jsonl", "line 1"]);
}
