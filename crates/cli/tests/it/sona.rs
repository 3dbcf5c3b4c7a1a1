//! `ruvllm sona`: adapters that learn from feedback.

use std::fs;
use std::path::Path;

use crate::program::{Run, argument, command, finish, repository};

const PROMPT: &str = "The name of the cat is";
const CORRECTION: &str = " Bartholomew the Third.";
/// Times that the correction is taught.
const LESSONS: usize = 24;

/// Runs the program with the draft model, which computes a lesson in a fraction of the time that
/// the built-in model takes.
fn run(home: &Path, arguments: &[&str]) -> Run {
    let mut command = command(arguments);
    command.env("RUVLLM_HOME", home).env("RUVLLM_MODEL", repository("models/draft-q8_0.gguf"));
    finish(arguments, command.output().unwrap())
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

    // A lesson that is always the same is one example: too little for a consolidation.
    let consolidated = run(home, &["sona", "consolidate", "cat", "--json"]).json();
    assert_eq!(consolidated["result"], "skipped", "{consolidated}");
    let text = run(home, &["sona", "consolidate", "cat"]).text().to_owned();
    assert_eq!(text, "cat: skipped, too little text to train on: 0 of 32 pieces of 16 tokens\n");

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

/// Sentences of one form; equal numbers give equal sentences.
fn sentence(number: usize) -> String {
    let colours = ["red", "blue", "green", "white", "black", "yellow", "grey"];
    let places = ["Lisse", "Haren", "Brielle", "Vlist", "Ommen", "Zwolle", "Ede", "Weesp", "Goes"];
    format!(
        "In the harbour of {} the {} ferry number {number} leaves at nine.",
        places[number % places.len()],
        colours[number % colours.len()]
    )
}

#[test]
fn a_figure_has_all_steps_and_a_split_has_no_duplicates() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let (data, out, figure) = (home.join("data.jsonl"), home.join("ferry"), home.join("ferry.svg"));
    // 40 distinct texts, 10 of them twice.
    let line = |number: usize| format!("{}\n", serde_json::json!({"text": sentence(number % 40)}));
    fs::write(&data, (0..50).map(line).collect::<String>()).unwrap();
    let train = |rest: &[&str]| {
        let paths = ["sona", "train", "--data", argument(&data), "--out", argument(&out)];
        let flags = ["--plot", argument(&figure), "--batch", "2", "--rank", "2"];
        run(home, &[&paths[..], &flags, rest].concat())
    };
    let document = train(&["--split", "0.3", "--dedup", "exact", "--steps", "4", "--json"]).json();
    let examples = &document["examples"];
    let count = |name: &str| examples[name].as_u64().unwrap();
    assert_eq!((count("duplicates"), count("near_duplicates")), (10, 0), "{document}");
    assert_eq!(count("trained") + count("held_out"), 40);
    assert!(count("held_out") > 0);
    let svg = fs::read_to_string(&figure).unwrap();
    assert_eq!(svg.matches("<polyline").count(), 2, "training and validation: {svg}");
    assert_eq!(svg.matches("<circle").count(), 4 + 1, "4 steps, validated behind the last");
    assert!(svg.contains("optimizer step") && svg.contains("cross-entropy (nats per token)"));
    let text = train(&["--steps", "1", "--force", "--dedup", "near", "--split", "0.3"]).text().to_owned();
    assert!(text.contains("held out, removed 10 equal and "), "{text}");
    train(&["--split", "0.3", "--test", argument(&data), "--force"]).fails_with(2, &["--split", "--test"]);
    train(&["--split", "1.5", "--force"]).fails_with(2, &["--split"]);
    train(&["--test", argument(&data), "--dedup", "exact", "--force"]).fails_with(1, &["nothing is left"]);
}

#[test]
fn conversations_are_trained_with_masked_copies() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let data = home.join("data.jsonl");
    let train = |rest: &[&str]| {
        let (out, paths) = (home.join("out"), ["sona", "train", "--data", argument(&data), "--force"]);
        let flags = ["--out", argument(&out), "--batch", "2", "--rank", "2", "--steps", "2"];
        run(home, &[&paths[..], &flags, rest].concat())
    };
    let call = |number: usize| {
        let place = ["Lisse", "Haren", "Brielle"][number % 3];
        let tool = serde_json::json!({"type": "function", "function": {
            "name": "find_ferry", "description": format!(
                "{} The office has timetable, platform, captain, fare and weather of the northern islands.",
                sentence(number)
            ),
            "parameters": {"type": "object", "properties": {"harbour": {"type": "string"}}, "required": ["harbour"]}}});
        let messages = serde_json::json!([
            {"role": "user", "content": format!("Which ferry leaves from {place} at noon?")},
            {"role": "assistant", "content": "",
             "tool_calls": [{"name": "find_ferry", "arguments": {"harbour": place}}]}]);
        format!("{}\n", serde_json::json!({"messages": messages, "tools": [tool]}))
    };
    fs::write(&data, (0..20).map(call).collect::<String>()).unwrap();
    let document = train(&["--mask-functions", "3", "--split", "0.3", "--json"]).json();
    let count = |name: &str| document["examples"][name].as_u64().unwrap();
    let kept = 20 - count("held_out");
    assert_eq!(
        (count("masked"), count("trained")),
        (3 * kept, 4 * kept),
        "copies of held-out lines are none"
    );
    let text = train(&["--mask-functions", "1"]).text().to_owned();
    assert!(text.contains("40 examples trained on, 20 of them masked copies, 0 held out"), "{text}");
    train(&["--mask-functions", "1", "--loss", "preference"]).fails_with(2, &["--mask-functions"]);
    fs::write(&data, "{\"text\": \"a\"}\n").unwrap();
    train(&["--mask-functions", "1"]).fails_with(1, &["data.jsonl", "different words"]);
}

#[test]
fn preferences_and_pairs_are_learned() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let data = home.join("data.jsonl");
    let train = |rest: &[&str]| {
        let (out, paths) = (home.join("out"), ["sona", "train", "--data", argument(&data), "--force"]);
        let flags = ["--out", argument(&out), "--batch", "4", "--rank", "2", "--split", "0.3"];
        run(home, &[&paths[..], &flags, rest].concat())
    };
    let preference = |number: usize| {
        let (prompt, chosen) = (sentence(number), " It is on time!");
        format!("{}\n", serde_json::json!({"prompt": prompt, "chosen": chosen, "rejected": " It is late."}))
    };
    fs::write(&data, (0..20).map(preference).collect::<String>()).unwrap();
    let document = train(&["--loss", "preference", "--steps", "6", "--rate", "1e-3", "--json"]).json();
    let held_out = |document: &serde_json::Value, name: &str, when: &str| {
        document["held_out"][name][when].as_f64().unwrap_or_else(|| panic!("{name} {when}: {document}"))
    };
    assert!(held_out(&document, "loss", "after") < held_out(&document, "loss", "before"), "{document}");
    assert_eq!(held_out(&document, "accuracy", "after"), 1.0, "{document}");
    train(&["--loss", "contrastive"]).fails_with(1, &["data.jsonl:1", "positive"]);
    let general = home.join("general.txt");
    fs::write(&general, sentence(1)).unwrap();
    train(&["--loss", "preference", "--replay", argument(&general)]).fails_with(2, &["--replay"]);

    let pair = |number: usize| {
        let positive = format!("Ferry {number}: {}", sentence(number));
        format!("{}\n", serde_json::json!({"query": sentence(number), "positive": positive}))
    };
    fs::write(&data, (0..20).map(pair).collect::<String>()).unwrap();
    let document = train(&["--loss", "contrastive", "--steps", "4", "--json"]).json();
    for name in ["recall_at_1", "mrr"] {
        assert!((0.0..=1.0).contains(&held_out(&document, name, "after")), "{document}");
    }
    let last = document["loss"].as_f64().unwrap();
    assert!(last < 4_f64.ln(), "better than chance among four: {document}");
    train(&["--loss", "preference"]).fails_with(1, &["data.jsonl:1", "chosen"]);
    train(&["--loss", "contrastive", "--temperature", "0"]).fails_with(2, &["--temperature"]);
}
