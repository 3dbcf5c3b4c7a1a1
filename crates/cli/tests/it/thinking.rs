//! Thinking in `generate` and `chat`: the built-in model with a template that opens it.

use std::fs;
use std::path::PathBuf;

use ruvllm_testkit::with_chat_template;
use serde_json::Value;
use tempfile::TempDir;

use crate::program::{argument, default_model, fields, run, run_with_input};

/// A template in the style of the built-in one, whose prompt opens the thinking.
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n\
    {% endfor %}<|im_start|>assistant\n<think>\n";

/// A question; the output is one of two texts, behind at most three tokens of thinking.
const ASK: [&str; 8] =
    ["--temperature", "0", "--thinking-budget", "3", "--choices", "Paris,Rome", "--speculation", "off"];
const FRANCE: &str = "What is the capital of France?";

/// A folder with the model.
fn model() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("thinks.gguf");
    fs::write(&path, with_chat_template(&fs::read(default_model()).unwrap(), TEMPLATE)).unwrap();
    (folder, path)
}

#[test]
fn documents_have_thinking_and_answer_apart() {
    let (_folder, path) = model();
    let generate = |more: &[&str]| {
        let arguments =
            [&["generate", "--json", "--chat", "--model", argument(&path), FRANCE], &ASK[..], more];
        run(&arguments.concat()).json()
    };
    let document = generate(&[]);
    assert_eq!(fields(&document)[..3], ["text", "reasoning", "reasoning_tokens"]);
    assert_eq!((&document["text"], &document["finish_reason"]), (&"Paris".into(), &"stop".into()));
    let thought = document["reasoning"].as_str().unwrap();
    assert!(!thought.is_empty() && !thought.contains("think>"), "{thought}");
    assert_eq!(document["reasoning_tokens"], 3);
    // The later flag counts.
    let none = generate(&["--thinking", "hide", "-n", "1"]);
    assert!(none["reasoning"].is_string() && none["finish_reason"] == "length" && none["text"] == "");

    let without = run(&["generate", "--json", "--chat", "--temperature", "0", "-n", "4", FRANCE]).json();
    assert!(without.get("reasoning").is_none() && without.get("reasoning_tokens").is_none());
}

#[test]
fn pipes_get_the_answer_unless_they_ask_for_more() {
    let (_folder, path) = model();
    let text = |more: &[&str]| {
        let arguments =
            [&["generate", "--chat", "--model", argument(&path), FRANCE], &ASK[..], more].concat();
        run(&arguments).text().to_owned()
    };
    assert_eq!(text(&[]), "Paris\n");
    let shown = text(&["--thinking", "show"]);
    let (thought, answer) = shown.split_once("\n\n").unwrap();
    assert!(!thought.is_empty() && !thought.contains('\u{1b}'), "{shown:?}");
    assert_eq!(answer, "Paris\n");
    let folded = text(&["--thinking", "fold"]);
    assert!(folded.starts_with("[thought for ") && folded.ends_with(" s]\n\nParis\n"), "{folded:?}");
}

#[test]
fn a_budget_of_nothing_gives_the_answer_at_once() {
    let (_folder, path) = model();
    let arguments = ["generate", "--json", "--chat", "--model", argument(&path), FRANCE];
    let none = ASK.map(|argument| if argument == "3" { "0" } else { argument });
    let document = run(&[&arguments[..], &none].concat()).json();
    assert!(document.get("reasoning").is_none(), "{document}");
    assert_eq!(document["text"], "Paris", "{document}");
}

#[test]
fn conversations_keep_thinking_beside_the_answer() {
    let (_folder, path) = model();
    let arguments = [&["chat", "--json", "--model", argument(&path)], &ASK[..]].concat();
    let input = format!("{FRANCE}\nAnd again?\n");
    let document = run_with_input(&arguments, input.as_bytes()).json();
    let turns = document["turns"].as_array().unwrap();
    assert!(turns.iter().all(|turn| turn["reasoning_tokens"] == 3), "{turns:?}");
    let answers: Vec<&Value> = document["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "assistant")
        .collect();
    assert_eq!(answers.len(), 2);
    for answer in answers {
        assert!(["Paris", "Rome"].contains(&answer["content"].as_str().unwrap()), "{answer}");
        assert!(answer["reasoning_content"].is_string(), "{answer}");
    }
    let text = run_with_input(
        &arguments.iter().copied().filter(|&a| a != "--json").collect::<Vec<_>>(),
        input.as_bytes(),
    );
    assert_eq!(text.text().lines().count(), 2, "a line for each answer");
}

#[cfg(target_os = "linux")]
#[test]
fn a_terminal_gets_dimmed_thinking() {
    let (_folder, path) = model();
    let arguments = [&["generate", "--chat", "--model", argument(&path), FRANCE], &ASK[..]].concat();
    let shown = crate::terminal_output::at_terminal(&arguments);
    assert!(shown.starts_with("\u{1b}[2m"), "{shown:?}");
    assert!(shown.ends_with("Paris\n"), "{shown:?}");
    let folded = crate::terminal_output::at_terminal(&[&arguments[..], &["--thinking", "fold"]].concat());
    assert!(folded.starts_with("\u{1b}[2m[thought for "), "{folded:?}");
}
