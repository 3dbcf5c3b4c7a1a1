//! `ruvllm sona`: adapters that learn from feedback.

use std::fs;
use std::path::Path;

use crate::program::{Run, argument, command, finish};

const PROMPT: &str = "The name of the cat is";
const CORRECTION: &str = " Bartholomew the Third.";
/// Times that the correction is taught.
const LESSONS: usize = 24;

fn run(home: &Path, arguments: &[&str]) -> Run {
    finish(arguments, command(arguments).env("RUVLLM_HOME", home).output().unwrap())
}

fn number(document: &serde_json::Value, key: &str) -> f64 {
    document[key].as_f64().unwrap_or_else(|| panic!("{key} in {document}"))
}

#[test]
fn corrections_change_what_is_generated_and_can_be_forgotten() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let generate = |adapter: &[&str]| {
        let flags = ["--temperature", "0", "-n", "8"];
        run(home, &[&["generate", PROMPT][..], &flags, adapter].concat()).text().to_owned()
    };
    let base = generate(&[]);
    let data = home.join("feedback.jsonl");
    let line = serde_json::json!({"prompt": PROMPT, "correction": CORRECTION}).to_string() + "\n";
    fs::write(&data, line.repeat(LESSONS)).unwrap();
    let one = ["sona", "feedback", "cat", "--prompt", PROMPT, "--correction", CORRECTION, "--json"];
    let first = run(home, &one).json();
    assert_eq!((first["learned"].as_u64(), first["outliers"].as_u64()), (Some(1), Some(0)));
    assert!(number(&first, "log_probability_after") > number(&first, "log_probability_before"));
    let status = run(home, &["sona", "status", "cat", "--json"]).json();
    assert!(status["norms"].as_array().unwrap().iter().any(|norm| norm.as_f64().unwrap() > 0.0), "{status}");
    run(home, &["sona", "feedback", "cat", "--data", argument(&data), "--json"]).json();
    let last = run(home, &one).json();
    assert!(
        number(&last, "log_probability_before") > number(&first, "log_probability_before") + 1.0,
        "{first}, {last}"
    );
    assert_ne!(generate(&["--adapter", "cat"]), base);
    assert_eq!(generate(&[]), base, "requests without the adapter are those of the base");

    let status = run(home, &["sona", "status", "cat", "--json"]).json();
    assert_eq!(
        (status["standing"].as_str(), status["lessons"].as_u64()),
        (Some("learning"), Some(LESSONS as u64 + 2))
    );
    assert!(number(&status, "harm") < 0.01, "{status}");
    let replay = run(home, &["sona", "replay", "cat", "--json"]).json();
    assert_eq!((replay["equal"].as_bool(), &replay["digest"]), (Some(true), &status["digest"]));

    // The exported lessons teach another adapter the same bits.
    let lessons = home.join("lessons.jsonl");
    let export = ["sona", "export", "cat", argument(&lessons)];
    assert_eq!(run(home, &[&export[..], &["--json"]].concat()).json()["lessons"], LESSONS as u64 + 2);
    run(home, &export).fails_with(1, &["exists", "--force"]);
    run(home, &["sona", "feedback", "twin", "--data", argument(&lessons)]).text();
    assert_eq!(run(home, &["sona", "status", "twin", "--json"]).json()["digest"], status["digest"]);

    let forgotten = run(home, &["sona", "forget", "cat", "--since", "2020-01-01", "--json"]).json();
    assert_eq!(forgotten["remaining"].as_u64(), Some(0), "{forgotten}");
    assert_eq!(generate(&["--adapter", "cat"]), base);
    run(home, &["sona", "forget", "cat", "--all"]).text();
    run(home, &["generate", "x", "--adapter", "cat"]).fails_with(2, &["no stored adapter"]);
}

#[test]
fn bad_feedback_is_one_clear_error_and_teaches_nothing() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let feedback = |rest: &[&str]| run(home, &[&["sona", "feedback", "tone"][..], rest].concat());
    feedback(&[]).fails_with(2, &["--prompt"]);
    for rating in ["1.5", "nan", "-7"] {
        feedback(&["--prompt", "a", "--response", "b", "--rating", rating])
            .fails_with(1, &["rating is", "[-1, 1]"]);
    }
    feedback(&["--prompt", "a", "--correction", ""]).fails_with(1, &["response", "no tokens"]);
    feedback(&["--prompt", "a"]).fails_with(1, &["correction"]);
    feedback(&["--data", "absent.jsonl"]).fails_with(1, &["absent.jsonl"]);
    let data = home.join("bad.jsonl");
    fs::write(&data, "{\"prompt\": \"a\", \"correction\": \"b\"}\n{\"prompt\": 1}\n").unwrap();
    feedback(&["--data", argument(&data)]).fails_with(1, &["bad.jsonl:2"]);
    let long = home.join("long.jsonl");
    let line = serde_json::json!({"prompt": "a", "correction": "word ".repeat(100_000)});
    fs::write(&long, line.to_string()).unwrap();
    feedback(&["--data", argument(&long)]).fails_with(1, &["100002 tokens", "4096"]);
    let status = run(home, &["sona", "status", "tone", "--json"]).json();
    assert_eq!((status["lessons"].as_u64(), status["updates"].as_u64()), (Some(0), Some(0)));
    run(home, &["sona", "status", "../tone"]).fails_with(1, &["name"]);

    let store = home.join("learning/learning.redb");
    fs::write(&store, b"this is no store").unwrap();
    run(home, &["sona", "status", "tone"]).fails_with(1, &["learning.redb", "damaged"]);
}

#[test]
fn fine_tuning_lowers_held_out_perplexity_and_resumes() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let sentence = "In the harbour of Lisse the red ferry leaves at nine and the blue ferry at ten. ";
    let (data, test) = (home.join("data.txt"), home.join("test.txt"));
    fs::write(&data, sentence.repeat(60)).unwrap();
    fs::write(&test, sentence.repeat(6)).unwrap();
    let out = home.join("ferry");
    let train = |rest: &[&str]| {
        let flags = ["sona", "train", "--data", argument(&data), "--test", argument(&test), "--out"];
        let sizes = ["--steps", "6", "--batch", "2", "--window", "64", "--rank", "4", "--json"];
        run(home, &[&flags[..], &[argument(&out)], &sizes, rest].concat())
    };
    let document = train(&[]).json();
    assert_eq!((document["steps"].as_u64(), document["outcome"].as_str()), (Some(6), Some("finished")));
    assert!(
        number(&document, "perplexity_after") < 0.8 * number(&document, "perplexity_before"),
        "{document}"
    );
    run(home, &["generate", "In the", "--adapter", argument(&out), "-n", "4"]).text();
    train(&[]).fails_with(1, &["exists", "--force"]);
    train(&["--force", "--resume"]).fails_with(1, &["ferry.state"]);
    fs::write(&data, "").unwrap();
    train(&["--force"]).fails_with(1, &["nothing to learn"]);
    let lines = home.join("lines.jsonl");
    fs::write(&lines, "{\"question\": 1}\n").unwrap();
    let chat = home.join("chat.jsonl");
    let line = serde_json::json!({
        "messages": [
            {"role": "user", "content": "When does the red ferry leave?"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"name": "ferry_times", "arguments": {"colour": "red"}}
            ]}
        ],
        "tools": [{"type": "function", "function": {"name": "ferry_times", "parameters": {"type": "object"}}}]
    });
    fs::write(&chat, format!("{line}\n").repeat(4)).unwrap();
    let out = home.join("calls");
    let flags = ["--steps", "4", "--batch", "2", "--rank", "4", "--json"];
    let paths = ["sona", "train", "--data", argument(&chat), "--test", argument(&chat), "--out"];
    let calls = run(home, &[&paths[..], &[argument(&out)], &flags].concat()).json();
    assert!(number(&calls, "perplexity_after") < number(&calls, "perplexity_before"), "{calls}");
    fs::write(&chat, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n").unwrap();
    let out = home.join("x");
    let bad = ["sona", "train", "--data", argument(&chat), "--out", argument(&out)];
    run(home, &bad).fails_with(1, &["chat.jsonl:1", "assistant"]);
    let bad = ["sona", "train", "--data", argument(&lines), "--out", argument(&out)];
    run(home, &bad).fails_with(1, &["lines.jsonl:1", "prompt"]);
    assert!(!out.exists());
}
