//! `tokenize` and `detokenize`.

use crate::program::{
    argument, default_model, expected, fields, ids, json_document, repository, run, run_with_input,
    tiny_model,
};

const TEXT: &str = "Once upon a time, there was a caf\u{e9}.";

#[test]
fn text_becomes_the_reference_ids_and_back() {
    for prompt in expected()["prompts"].as_array().unwrap() {
        let text = prompt["prompt"].as_str().unwrap();
        let document = run(&["tokenize", "--json", text]).json();
        assert_eq!(fields(&document), ["tokens"]);
        assert_eq!(document["tokens"], prompt["prompt_ids"], "{text:?}");
        let list = document["tokens"].to_string();
        let back = run(&["detokenize", "--json", &list]).json();
        assert_eq!(fields(&back), ["text"]);
        assert_eq!(back["text"], text);
    }
}

#[test]
fn the_human_form_is_ids_that_detokenize_reads() {
    let ids = run(&["tokenize", TEXT]);
    let line = ids.text();
    assert!(line.trim_end().split(' ').all(|id| id.parse::<u32>().is_ok()), "{line:?}");
    assert_eq!(run_with_input(&["detokenize"], line.as_bytes()).text(), TEXT);
    assert_eq!(run_with_input(&["detokenize", "-"], line.as_bytes()).text(), TEXT);
    let arguments: Vec<&str> = ["detokenize"].into_iter().chain(line.split_whitespace()).collect();
    assert_eq!(run(&arguments).text(), TEXT);
}

#[test]
fn standard_input_is_taken_exactly() {
    let from_argument = run(&["tokenize", "a\nb\n"]);
    for arguments in [&["tokenize"][..], &["tokenize", "-"]] {
        assert_eq!(run_with_input(arguments, b"a\nb\n").text(), from_argument.text());
    }
    assert_ne!(run(&["tokenize", "a\nb"]).text(), from_argument.text());
}

#[test]
fn no_text_is_no_tokens() {
    assert_eq!(run_with_input(&["tokenize", "--json"], b"").json()["tokens"], serde_json::json!([]));
    assert_eq!(run_with_input(&["detokenize", "--json"], b"").json()["text"], "");
}

#[test]
fn special_tokens_are_recognized_unless_raw() {
    let special = ids(&run(&["tokenize", "--json", "<|im_start|>user"]).json()["tokens"]);
    let raw = ids(&run(&["tokenize", "--json", "--raw", "<|im_start|>user"]).json()["tokens"]);
    assert_eq!(special.len(), 2);
    assert_eq!(special[0], 1);
    assert!(raw.len() > 2 && raw.iter().all(|id| *id > 15), "{raw:?}");
    assert_eq!(run(&["detokenize", "1", "2"]).text(), "<|im_start|><|im_end|>");
    assert_eq!(run(&["detokenize", "--skip-special", "1", "2"]).text(), "");
}

#[test]
fn no_special_leaves_the_beginning_out() {
    // The tiny Llama's rules ask for a beginning-of-text token.
    let model = tiny_model();
    let with = ids(&run(&["tokenize", "--json", "hi", "--model", argument(&model)]).json()["tokens"]);
    let without = ids(
        &run(&["tokenize", "--json", "--no-special", "hi", "--model", argument(&model)]).json()["tokens"]
    );
    assert_eq!(with[1..], without);
}

#[test]
fn verbose_shows_what_each_id_stands_for() {
    let verbose = run(&["tokenize", "--verbose", "Once upon"]);
    let lines: Vec<&str> = verbose.text().lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].ends_with("\"Once\"") && lines[1].ends_with("\" upon\""), "{lines:?}");
}

#[test]
fn any_working_directory_finds_the_default_model() {
    let elsewhere = tempfile::tempdir().unwrap();
    let output =
        crate::program::command(&["tokenize", "--json", TEXT]).current_dir(&elsewhere).output().unwrap();
    let here = run(&["tokenize", "--json", TEXT]).json();
    assert_eq!(json_document(std::str::from_utf8(&output.stdout).unwrap()), here);
    let file = run(&["tokenize", "--json", TEXT, "--model", argument(&default_model())]).json();
    assert_eq!(file, here);
}

#[test]
fn the_environment_names_a_model() {
    let tiny = tiny_model();
    let output = crate::program::command(&["tokenize", TEXT]).env("RUVLLM_MODEL", &tiny).output().unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        run(&["tokenize", TEXT, "-m", argument(&tiny)]).text()
    );
    let empty = crate::program::command(&["tokenize", TEXT]).env("RUVLLM_MODEL", "").output().unwrap();
    assert_eq!(String::from_utf8(empty.stdout).unwrap(), run(&["tokenize", TEXT]).text());
}

#[test]
fn a_tokenizer_json_is_a_model_here() {
    let folder = repository("crates/text/tests/data/tokenizers/bpe_llama3");
    let reference: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let file = folder.join("tokenizer.json");
    for case in reference["cases"].as_array().unwrap().iter().take(12) {
        // Through standard input: a text may begin with a dash.
        let text = case["text"].as_str().unwrap();
        let arguments = ["tokenize", "--json", "--model", argument(&file)];
        assert_eq!(
            run_with_input(&arguments, text.as_bytes()).json()["tokens"],
            case["ids_with_special"],
            "{text:?}"
        );
        let plain = [&arguments[..], &["--no-special"]].concat();
        assert_eq!(run_with_input(&plain, text.as_bytes()).json()["tokens"], case["ids"], "{text:?}");
    }
}
