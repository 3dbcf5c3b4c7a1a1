//! `generate --logprobs`, `--n` and `--best-of`.

use serde_json::{Value, json};

use crate::program::{fields, ids, run, run_with_input};

const PROMPT: &str = "Once upon a time, there was a little fox";

/// Short texts of seed 7, drawn.
const DRAWN: [&str; 7] = ["generate", "--temperature", "1.2", "-n", "12", "--seed", "7"];

fn drawn<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&DRAWN[..], more, &[PROMPT]].concat()
}

fn choices(document: &Value) -> &[Value] {
    document["choices"].as_array().expect("several choices")
}

#[test]
fn log_probabilities_are_those_of_the_tokens() {
    let plain = run(&drawn(&["--json", "--speculation", "off"])).json();
    let document = run(&drawn(&["--json", "--speculation", "off", "--logprobs", "3"])).json();
    let names = [
        "text",
        "tokens",
        "prompt_tokens",
        "cached_tokens",
        "finish_reason",
        "seed",
        "mean_logprob",
        "logprobs",
        "timings",
    ];
    assert_eq!(fields(&document), names);
    assert_eq!((&document["tokens"], &document["text"]), (&plain["tokens"], &plain["text"]));
    let logprobs = document["logprobs"].as_array().unwrap();
    let tokens = ids(&document["tokens"]);
    assert_eq!(logprobs.len(), tokens.len());
    let (mut text, mut sum) = (String::new(), 0.0);
    for (at, token) in logprobs.iter().zip(&tokens) {
        assert_eq!(fields(at), ["token", "text", "logprob", "top"]);
        assert_eq!(at["token"], *token);
        text.push_str(at["text"].as_str().unwrap());
        sum += at["logprob"].as_f64().unwrap();
        let top: Vec<f64> =
            at["top"].as_array().unwrap().iter().map(|top| top["logprob"].as_f64().unwrap()).collect();
        assert_eq!(top.len(), 3);
        assert!(top.is_sorted_by(|a, b| a >= b) && top.iter().all(|logprob| *logprob <= 0.0), "{top:?}");
        let own = at["top"].as_array().unwrap().iter().find(|top| top["token"] == *token);
        assert!(own.is_none_or(|own| own["logprob"] == at["logprob"]));
    }
    assert_eq!(document["text"], text);
    let mean = document["mean_logprob"].as_f64().unwrap();
    assert!((mean - sum / tokens.len() as f64).abs() < 1e-12);
    // Without alternatives.
    let none = run(&drawn(&["--json", "--logprobs", "0"])).json();
    assert_eq!(none["logprobs"][0]["top"], json!([]));
}

#[test]
fn log_probabilities_are_a_table_behind_the_text() {
    let document = run(&drawn(&["--json", "--logprobs", "2"])).json();
    let text = run(&drawn(&["--logprobs", "2"])).text().to_owned();
    let table = text.strip_prefix(document["text"].as_str().unwrap()).expect("the text comes first");
    let lines: Vec<&str> = table.trim_start().lines().collect();
    assert_eq!(
        lines[0].split_whitespace().collect::<Vec<_>>().join(" "),
        "token text logprob probability most likely"
    );
    let logprobs = document["logprobs"].as_array().unwrap();
    assert_eq!(lines.len(), 1 + logprobs.len(), "{table}");
    for (line, at) in lines[1..].iter().zip(logprobs) {
        assert!(line.trim_start().starts_with(&at["token"].to_string()), "{line}");
        assert!(line.contains(&format!("{:.4}", at["logprob"].as_f64().unwrap())), "{line}");
        assert_eq!(line.matches(" %").count(), 3, "{line}");
    }
    let forced = run(&["generate", "--temperature", "0", "--choices", "yes", "--logprobs", "0", PROMPT]);
    assert!(forced.text().starts_with("yes\n\n"), "{forced:?}");
}

#[test]
fn choices_are_the_request_with_seeds_that_follow() {
    let document = run(&drawn(&["--json", "--n", "3"])).json();
    assert_eq!(fields(&document), ["choices", "timings"]);
    assert_eq!(fields(&document["timings"]), ["load_ms"]);
    assert_eq!(choices(&document).len(), 3);
    for (choice, seed) in choices(&document).iter().zip(7..) {
        assert_eq!(choice["seed"], seed);
        let seed = seed.to_string();
        let arguments = ["generate", "--temperature", "1.2", "-n", "12", "--json", "--seed", &seed, PROMPT];
        let alone = run(&arguments).json();
        assert_eq!((&choice["tokens"], &choice["text"]), (&alone["tokens"], &alone["text"]));
    }
    let text = run(&drawn(&["--n", "3"])).text().to_owned();
    let mut expected = String::new();
    for (choice, number) in choices(&document).iter().zip(1..) {
        let text = choice["text"].as_str().unwrap();
        let end = if text.ends_with('\n') { "" } else { "\n" };
        expected.push_str(&format!("--- choice {number} of 3 ---\n{text}{end}"));
    }
    assert_eq!(text, expected);
    // One is printed as ever.
    assert_eq!(run(&drawn(&["--n", "1"])).text(), run(&drawn(&[])).text());
}

#[test]
fn the_best_choices_have_the_highest_mean_log_probability() {
    let all = run(&drawn(&["--json", "--n", "5", "--logprobs", "0"])).json();
    let mean = |choice: &Value| choice["mean_logprob"].as_f64().unwrap();
    let mut ranked: Vec<&Value> = choices(&all).iter().collect();
    ranked.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    let best = run(&drawn(&["--json", "--n", "2", "--best-of", "5"])).json();
    assert_eq!(choices(&best).len(), 2);
    for (choice, expected) in choices(&best).iter().zip(&ranked) {
        assert_eq!((&choice["text"], &choice["seed"]), (&expected["text"], &expected["seed"]));
        assert_eq!(choice["mean_logprob"], expected["mean_logprob"]);
        assert!(choice.get("logprobs").is_none(), "they were not asked for");
    }
    let one = run(&drawn(&["--json", "--best-of", "5"])).json();
    assert_eq!((&one["text"], &one["mean_logprob"]), (&ranked[0]["text"], &ranked[0]["mean_logprob"]));
    let end = if one["text"].as_str().unwrap().ends_with('\n') { "" } else { "\n" };
    assert_eq!(run(&drawn(&["--best-of", "5"])).text(), format!("{}{end}", one["text"].as_str().unwrap()));
    let text = run(&drawn(&["--n", "2", "--best-of", "5"])).text().to_owned();
    let title = format!("--- choice 1 of 2, mean log-probability {:.3} ---\n", mean(ranked[0]));
    assert!(text.starts_with(&title), "{text}");
}

#[test]
fn choices_have_tool_calls_of_their_own() {
    let tools = br#"[{"name": "get_weather", "parameters": {"type": "object",
        "properties": {"city": {"type": "string"}}, "required": ["city"]}}]"#;
    let arguments = [
        "generate",
        "--chat",
        "--temperature",
        "0.5",
        "--seed",
        "1",
        "--n",
        "2",
        "--tools",
        "-",
        "--tool-choice",
        "required",
        "What is the weather in Rome?",
    ];
    let document = run_with_input(&[&arguments[..], &["--json"]].concat(), tools).json();
    let text = run_with_input(&arguments, tools).text().to_owned();
    for choice in choices(&document) {
        assert_eq!(choice["finish_reason"], "tool_calls");
        let call = choice["tool_calls"][0].to_string();
        assert!(text.lines().any(|line| line == call), "{call} is not in {text}");
    }
    assert_eq!(text.lines().filter(|line| line.starts_with("--- choice ")).count(), 2);
}

#[test]
fn flags_of_choices_that_do_not_go_together_are_refused() {
    for (flags, pieces) in [
        (&["--n", "3", "--best-of", "2"][..], ["--best-of", "at least 3"]),
        (&["--n", "2", "--temperature", "0"], ["--n", "--temperature 0"]),
        (&["--best-of", "2", "--temperature", "0"], ["--best-of", "--temperature 0"]),
        (&["--n", "0"], ["--n", "1 to 128"]),
        (&["--n", "129"], ["--n", "1 to 128"]),
        (&["--best-of", "129"], ["--best-of", "1 to 128"]),
        (&["--logprobs", "129"], ["--logprobs", "0 to 128"]),
        (&["--best-of", "2", "--device", "gpu"], ["generate --best-of", "CPU only"]),
    ] {
        run(&[&["generate"], flags, &[PROMPT]].concat()).fails_with(2, &pieces);
        run(&[&["generate", "--json"], flags, &[PROMPT]].concat()).fails_with(2, &pieces);
    }
}
