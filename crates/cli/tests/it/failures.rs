//! Errors as JSON: one document on standard output, with a category that scripts can rely on.

use crate::program::{argument, command, finish, repository, run, tiny_model};

#[track_caller]
fn check(arguments: &[&str], code: i32, kind: &str, hint: Option<&str>) {
    let run = run(&[arguments, &["--json"]].concat());
    run.failure(code);
    let error = run.error_document();
    assert_eq!(error["kind"], kind, "{run:?}");
    assert_eq!(error["hint"].as_str(), hint, "{run:?}");
}

#[test]
fn usage_errors_are_documents_too() {
    check(&["generate", "--kv", "tired", "x"], 2, "usage", Some("see `ruvllm generate --help`"));
    check(&["generate", "--no-such-flag"], 2, "usage", Some("see `ruvllm generate --help`"));
    check(&["no-such-command"], 2, "usage", Some("see `ruvllm --help`"));
    check(&["bench", "-p", "0", "-n", "0"], 2, "usage", None);
    let missing = run(&["--json"]);
    missing.failure(2);
    assert_eq!(missing.error_document()["kind"], "usage");
    // After `--` it is text.
    let text = run(&["generate", "--kv", "tired", "--", "--json"]);
    text.fails_with(2, &["tired"]);
}

#[test]
fn every_category_has_its_word() {
    let unknown = repository("crates/gguf-rs-lite/tests/data/malformed/architecture_unknown.gguf");
    let tiny = tiny_model();
    for (arguments, kind) in [
        (&["generate", "x", "-m", "/nonexistent.gguf"][..], "model_not_found"),
        (&["inspect", "/nonexistent.gguf"], "model_not_found"),
        (&["show", "nothing"], "model_not_found"),
        (&["generate", "x", "-m", argument(&unknown)], "invalid_model"),
        (&["inspect", "Cargo.toml"], "invalid_model"),
        (&["generate", ""], "invalid_input"),
        (&["detokenize", "x"], "invalid_input"),
        (&["generate", "x", "--adapter", "a=/nonexistent"], "invalid_adapter"),
        (&["calibrate-kv", "-f", "Cargo.toml", "/nonexistent/x"], "output"),
    ] {
        check(arguments, 1, kind, None);
    }
    let long = "word ".repeat(200);
    check(
        &["generate", "-c", "32", &long],
        1,
        "context_exceeded",
        Some("shorten the prompt or raise --context"),
    );
    let budget = ["generate", "--kv-budget", "4MiB", "--kv", "f16", &"one two three four ".repeat(200)];
    check(&budget, 1, "out_of_memory", Some("change --kv-budget"));
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    std::fs::write(&out, "kept").unwrap();
    let hint = Some("give another name, or --force to replace it");
    check(&["quantize", argument(&tiny), argument(&out), "q8_0"], 1, "output", hint);
}

#[test]
fn a_configuration_that_is_wrong_is_a_document() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    std::fs::write(&path, "threads = 0\n").unwrap();
    let arguments = ["list", "--json"];
    let failed = finish(&arguments, command(&arguments).env("RUVLLM_CONFIG", &path).output().unwrap());
    failed.fails_with(2, &["config.toml:1", "at least 1"]);
    assert_eq!(failed.error_document()["kind"], "config");
}
