//! `convert`, and Hugging Face folders wherever a model is named.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::program::{argument, fields, ids, repository, run, tiny_model};

fn folder() -> PathBuf {
    repository("crates/models/tests/data/tiny/llama/hf")
}

#[test]
fn the_document_has_the_documented_fields() {
    let output = tempfile::tempdir().unwrap();
    let out = output.path().join("out.gguf");
    let document = run(&["convert", argument(&folder()), argument(&out), "--type", "F16", "--json"]).json();
    assert_eq!(fields(&document), ["input", "output", "type", "tensor_count", "bytes_before", "bytes_after"]);
    assert_eq!(document["type"], "F16");
    assert_eq!(document["bytes_before"], fs::metadata(folder().join("model.safetensors")).unwrap().len());
    assert_eq!(document["bytes_after"], fs::metadata(&out).unwrap().len());
    assert_eq!(fs::read_dir(output.path()).unwrap().count(), 1, "nothing temporary is left");
    run(&["convert", argument(&folder()), argument(&out)]).fails_with(1, &["exists", "--force"]);
    let text = run(&["convert", argument(&folder()), argument(&out), "--force"]);
    assert!(text.text().contains("auto, 31 tensors"), "{text:?}");
    let inspected = run(&["inspect", "--json", argument(&out)]).json();
    assert_eq!(inspected["metadata"]["general.architecture"], "llama");
    assert!(inspected["metadata"]["tokenizer.ggml.merges"].is_array());
    assert!(inspected["metadata"]["tokenizer.chat_template"].is_string());
}

#[test]
fn a_folder_is_a_model() {
    let folder = folder();
    // The file has token texts for ids that the folder lacks, and soon generates one.
    let generate = |model: &str, more: &[&str]| {
        let arguments =
            ["generate", "Hello world", "--model", model, "--max-tokens", "6", "--temperature", "0"];
        let document = run(&[&arguments, more, &["--json"]].concat()).json();
        ids(&document["tokens"])
    };
    let (folder, file) = (argument(&folder).to_owned(), tiny_model());
    let file = argument(&file);
    assert_eq!(generate(&folder, &[]), generate(file, &[]));
    assert_eq!(generate(&folder, &["--chat"]), generate(file, &["--chat"]));
    for command in ["tokenize", "detokenize"] {
        let text = if command == "tokenize" { "Hello <|eot_id|>" } else { "39 68 75" };
        let of = |model: &str| run(&[command, text, "--model", model]).text().to_owned();
        assert_eq!(of(&folder), of(file));
    }
    let facts = |model: &str| run(&["doctor", "--model", model, "--json"]).json()["model"].clone();
    let (mut of_folder, of_file) = (facts(&folder), facts(file));
    of_folder["name"] = of_file["name"].clone();
    assert_eq!(of_folder, of_file);
}

#[test]
fn inspect_shows_a_folder_as_a_file_without_offsets() {
    let document = run(&["inspect", "--json", argument(&folder())]).json();
    assert_eq!(fields(&document), ["metadata", "parameters", "tensors"]);
    assert_eq!(fields(&document["tensors"][0]), ["name", "type", "shape", "bytes"]);
    assert_eq!(document["metadata"]["llama.block_count"], 3);
    let text = run(&["inspect", argument(&folder())]);
    assert!(text.text().starts_with("Hugging Face folder, "), "{text:?}");
}

#[test]
fn weights_can_be_quantized_while_they_are_loaded() {
    let output = tempfile::tempdir().unwrap();
    let quantized = output.path().join("q8.gguf");
    let folder = folder();
    run(&["quantize", argument(&folder), argument(&quantized), "Q8_0"]).text();
    let generate = |model: &str, more: &[&str]| {
        let arguments = ["generate", "Hello", "--model", model, "--max-tokens", "6", "--temperature", "0"];
        run(&[&arguments, more, &["--json"]].concat()).json()["tokens"].clone()
    };
    let expected: Value = generate(argument(&quantized), &[]);
    assert_eq!(generate(argument(&folder), &["--quantize", "q8_0"]), expected);
    assert_eq!(generate(argument(&tiny_model()), &["--quantize", "Q8_0"]), expected);
    run(&["generate", "a", "--quantize", "q9"]).fails_with(2, &["q9", "Q4_K_M"]);
    let file = output.path().join("text.txt");
    fs::write(&file, "Hello world. ".repeat(40)).unwrap();
    let perplexity = |model: &str, more: &[&str]| {
        let arguments =
            ["eval", "perplexity", "--context", "32", "--file", argument(&file), "--model", model];
        run(&[&arguments, more, &["--json"]].concat()).json()["nll"].clone()
    };
    let expected = perplexity(argument(&quantized), &[]);
    assert_eq!(perplexity(argument(&folder), &["--quantize", "q8_0"]), expected);
}

#[test]
fn folders_that_hold_no_model_are_refused_in_one_line() {
    let output = tempfile::tempdir().unwrap();
    let out = output.path().join("out.gguf");
    run(&["convert", argument(output.path()), argument(&out)]).fails_with(1, &["it has no config.json"]);
    run(&["convert", argument(&tiny_model()), argument(&out)]).fails_with(1, &["config.json"]);
    run(&["convert", "absent", argument(&out)]).fails_with(1, &["absent"]);
    run(&["convert", argument(&folder()), argument(&out), "--type", "q8_0"]).fails_with(2, &["bf16"]);
    fs::write(output.path().join("config.json"), r#"{"architectures": ["MambaForCausalLM"]}"#).unwrap();
    run(&["convert", argument(output.path()), argument(&out)])
        .fails_with(1, &["`MambaForCausalLM` is not supported"]);
    run(&["generate", "a", "--model", argument(output.path())]).fails_with(1, &["MambaForCausalLM"]);
    assert!(!out.exists());
}
