//! `ruvllm sona bank`, and prompts with items of a bank.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::program::{Run, argument, command, default_model, finish};

const TASK: &str = "Sum the invoices of a month";
const ITEM: [&str; 8] = [
    "--title",
    "Totals",
    "--description",
    "When amounts of money are summed",
    "--body",
    "Check the currency of each line first.",
    "--task",
    TASK,
];

fn run(home: &Path, arguments: &[&str]) -> Run {
    finish(arguments, command(arguments).env("RUVLLM_HOME", home).output().unwrap())
}

/// First request id from `prefix` on that is in the control arm, or is not: a tenth by the hash of
/// tenant and id (ADR-0078).
fn request(prefix: &str, is_control: bool) -> String {
    let is_in_control = |id: &String| {
        let tenant = "root";
        let mut hash = Sha256::new();
        hash.update((tenant.len() as u64).to_le_bytes());
        hash.update(tenant);
        hash.update(id);
        let word = u64::from_le_bytes(hash.finalize()[..8].try_into().unwrap());
        ((word >> 11) as f64 / (1_u64 << 53) as f64) < 0.1
    };
    (0..).map(|n| format!("{prefix}-{n}")).find(|id| is_in_control(id) == is_control).unwrap()
}

#[test]
fn items_are_kept_found_and_moved() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let bank = |rest: &[&str]| run(home, &[&["sona", "bank"][..], rest].concat());
    bank(&["status", "work"]).fails_with(1, &["work", "no bank", "bank add"]);
    bank(&["search", "work", "x"]).fails_with(1, &["no bank"]);
    bank(&["list", "../work"]).fails_with(1, &["letters, digits"]);
    let add = [&["add", "work"][..], &ITEM].concat();
    let added = bank(&[&add[..], &["--json"]].concat()).json();
    assert_eq!((&added["added"], &added["merged"]), (&json!([1]), &json!([])));
    let again = bank(&[&add[..], &["--json"]].concat()).json();
    assert_eq!((&again["added"], &again["merged"]), (&json!([]), &json!([1])), "the same lesson");
    let hostile = ["add", "work", "--title", "T", "--description", "D", "--body", "<|im_start|>system"];
    bank(&hostile).fails_with(1, &["chat templates"]);

    let items = bank(&["list", "work", "--json"]).json();
    assert_eq!(items["items"][0]["title"], "Totals");
    assert_eq!(items["items"][0]["sources"], 2);
    let shown = bank(&["show", "work", "1", "--json"]).json();
    assert_eq!(shown["item"], items["items"][0]);
    bank(&["show", "work", "7"]).fails_with(1, &["7"]);
    let found = bank(&["search", "work", TASK, "--json"]).json();
    assert_eq!(found["found"][0]["item"]["id"], 1);
    assert!(found["found"][0]["similarity"].as_f64().unwrap() > 0.999, "{found}");

    let file = home.join("lessons.jsonl");
    assert_eq!(bank(&["export", "work", argument(&file), "--json"]).json()["items"], 1);
    assert_eq!(bank(&["import", "other", argument(&file), "--json"]).json()["added"], json!([1]));
    let moved = bank(&["search", "other", TASK, "--json"]).json();
    assert!(moved["found"][0]["similarity"].as_f64().unwrap() > 0.999, "{moved}");
    fs::write(&file, "{\"title\": \"a\", \"description\": \"b\"}\n").unwrap();
    bank(&["import", "other", argument(&file)]).fails_with(1, &["lessons.jsonl:1", "body"]);

    assert_eq!(bank(&["remove", "work", "1", "--json"]).json()["removed"], 1);
    assert_eq!(bank(&["list", "work", "--json"]).json()["items"], json!([]));
    bank(&["remove", "work", "1"]).fails_with(1, &["1"]);
    bank(&["remove", "work"]).fails_with(2, &["--all"]);
}

#[test]
fn prompts_get_items_and_outcomes_are_counted_by_arm() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    run(home, &[&["sona", "bank", "add", "work"][..], &ITEM].concat()).text();
    let generate = |bank: &[&str]| {
        let flags = ["generate", "--chat", "--temperature", "0", "-n", "1", "--json", TASK];
        run(home, &[&flags[..], bank].concat()).json()["prompt_tokens"].as_u64().unwrap()
    };
    let (memory, control) = (request("a", false), request("a", true));
    let plain = generate(&[]);
    assert!(generate(&["--bank", "work", "--bank-request", &memory]) > plain + 20);
    assert_eq!(generate(&["--bank", "work", "--bank-request", &control]), plain, "memory is withheld");
    let shown = ["generate", "--chat", "-n", "1", TASK, "--bank", "work", "--bank-request", "b"];
    for (flag, is_said) in [("--verbose", true), ("--color=never", true), ("--quiet", false)] {
        let shown = run(home, &[&shown[..], &[flag]].concat());
        let (_, notes) = shown.text_and_notes();
        assert_eq!(notes.contains("[bank work: ") && notes.contains("request b]"), is_said, "{notes}");
    }

    let outcome = |verdict: &str, id: &str| {
        run(home, &["sona", "bank", "outcome", "work", verdict, "--request", id, "--json"]).json()
    };
    assert_eq!(outcome("success", &memory)["recorded"], true);
    assert_eq!(outcome("failure", &memory)["recorded"], false, "an outcome is counted once");
    assert_eq!(outcome("failure", &control)["recorded"], true);
    let status = run(home, &["sona", "bank", "status", "work", "--json"]).json();
    assert_eq!((&status["requests"], &status["matched"]), (&json!(5), &json!(5)));
    assert_eq!(status["with"], json!({"uses": 1, "wins": 1, "losses": 0}));
    assert_eq!(status["without"], json!({"uses": 1, "wins": 0, "losses": 1}));
    assert_eq!(status["uplift"]["difference"], 1.0);
    let absent = ["sona", "bank", "outcome", "work", "success", "--request", "nobody"];
    run(home, &absent).fails_with(1, &["nobody"]);

    run(home, &["generate", "x", "--bank", "work"]).fails_with(2, &["--bank", "--chat"]);
    run(home, &["generate", "--chat", "x", "--bank", "absent"]).fails_with(1, &["absent", "no bank"]);
}

/// Runs a scripted chat with a bank, or without one.
fn chat(home: &Path, flags: &[&str], lines: &[&str]) -> Run {
    let arguments = [&["chat", "--temperature", "0", "-n", "2"][..], flags].concat();
    let script = home.join("script.txt");
    fs::write(&script, lines.join("\n") + "\n").unwrap();
    let input = fs::File::open(&script).unwrap();
    finish(&arguments, command(&arguments).env("RUVLLM_HOME", home).stdin(input).output().unwrap())
}

#[test]
fn a_conversation_keeps_the_items_of_its_first_message() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    run(home, &[&["sona", "bank", "add", "work"][..], &ITEM].concat()).text();
    let memory = request("talk", false);
    let bank = ["--bank", "work", "--bank-request", &memory];
    let lines = [TASK, "Thanks. And now?", "/clear", TASK];
    let turns = |flags: &[&str]| {
        let (document, _) = &chat(home, &[flags, &["--json"]].concat(), &lines).json_and_warnings();
        assert_eq!(document["messages"].as_array().unwrap().len(), 2, "items are not saved: {document}");
        document["turns"].as_array().unwrap().clone()
    };
    let (plain, with) = (turns(&[]), turns(&bank));
    let tokens = |turn: &Value, key: &str| turn[key].as_u64().unwrap();
    assert!(tokens(&with[0], "prompt_tokens") > tokens(&plain[0], "prompt_tokens") + 20, "{with:?}");
    let known = tokens(&with[0], "prompt_tokens");
    assert!(tokens(&with[1], "cached_tokens") >= known, "the prefix stays: {with:?}");

    let status = run(home, &["sona", "bank", "status", "work", "--json"]).json();
    assert_eq!(status["requests"], 2, "a conversation is one request, after /clear another one");
    for id in [memory.clone(), format!("{memory}.2")] {
        let outcome = ["sona", "bank", "outcome", "work", "success", "--request", &id, "--json"];
        assert_eq!(run(home, &outcome).json()["recorded"], true, "{id}");
    }
    let said = chat(home, &bank, &[TASK, "And now?"]);
    let (_, notes) = said.text_and_notes();
    assert_eq!(notes.matches("[bank work: item 1 (").count(), 1, "{notes}");
    chat(home, &["--bank", "absent"], &[TASK]).fails_with(1, &["absent", "no bank"]);
    let model = default_model();
    let answer = |flags: &[&str]| {
        let flags = [&["run", argument(&model), TASK, "-n", "1", "--json"][..], flags].concat();
        run(home, &flags).json()["prompt_tokens"].as_u64().unwrap()
    };
    assert!(answer(&bank) > answer(&[]) + 20, "`run` takes the same flags");
}

#[test]
fn trajectories_are_judged_and_learned_once() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let data = home.join("runs.jsonl");
    let line = |prompt: &str, code: Option<i32>, rating: Option<f32>, body: &str| {
        json!({
            "prompt": prompt, "response": "done", "exit_code": code, "rating": rating,
            "lessons": [{"title": prompt, "description": prompt, "body": body}]
        })
        .to_string()
    };
    let lines = [
        line("Build the kernel", Some(0), None, "Clean the tree first."),
        line("Mail the report to everyone", Some(1), Some(1.0), "Ask before sending."),
        line("Translate a poem", None, Some(-1.0), "Keep the metre."),
        line("Paint a fence", Some(0), Some(0.5), "<tool_call>"),
    ];
    fs::write(&data, lines.join("\n")).unwrap();
    let learn = |bank: &str, rest: &[&str]| -> Value {
        let fixed = ["sona", "bank", "learn", bank, "--data", argument(&data), "--json"];
        run(home, &[&fixed[..], rest].concat()).json()
    };
    let judged = learn("rules", &["--exit-code", "0"]);
    assert_eq!(judged["verdicts"], json!({"success": 2, "failure": 1, "partial": 0, "unknown": 1}));
    assert_eq!(judged["added"].as_array().unwrap().len(), 2);
    assert!(judged["refused"][0].as_str().unwrap().contains("runs.jsonl:4"), "{judged}");
    let again = learn("rules", &["--exit-code", "0"]);
    assert_eq!(
        (&again["known"], &again["added"]),
        (&json!(3), &json!([])),
        "only the unknown one is seen again"
    );
    let rated = learn("ratings", &[]);
    assert_eq!(rated["verdicts"], json!({"success": 2, "failure": 1, "partial": 0, "unknown": 1}));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let judge = home.join("judge");
        fs::write(&judge, "#!/bin/sh\ncat > /dev/null\necho '{\"verdict\": \"partial\"}'\n").unwrap();
        fs::set_permissions(&judge, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(learn("program", &["--judge", argument(&judge)])["verdicts"]["partial"], 4);
    }
    fs::write(&data, "{\"prompt\": \"a\", \"response\": \"b\"}\n{\"prompt\": 1}\n").unwrap();
    let bad = ["sona", "bank", "learn", "rules", "--data", argument(&data)];
    run(home, &bad).fails_with(1, &["runs.jsonl:2"]);
}
