//! `ruvllm adapter`: adapters of the store, and their names for `--adapter`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::program::{Run, argument, command, finish, ids, repository, tiny_model};

/// Runs the program with its stores in a folder of the test.
fn run(home: &Path, arguments: &[&str]) -> Run {
    finish(arguments, command(arguments).env("RUVLLM_HOME", home).output().unwrap())
}

fn lora(name: &str) -> String {
    argument(&repository("crates/models/tests/data/lora").join(name)).to_owned()
}

#[test]
fn stored_adapters_are_listed_used_and_removed() {
    let (home, model) = (tempfile::tempdir().unwrap(), tiny_model());
    let (home, model) = (home.path(), argument(&model));
    assert!(run(home, &["adapter", "list"]).text().contains("no adapters in"));
    let source = lora("r4_all");
    let added = run(home, &["adapter", "add", "poet", &source, "--model", model, "--json"]).json();
    assert_eq!((added["name"].as_str(), added["architecture"].as_str()), (Some("poet"), Some("llama")));
    run(home, &["adapter", "add", "poet", &source, "--model", model])
        .fails_with(1, &["\"poet\" already", "--replace"]);
    run(home, &["adapter", "add", "../poet", &source, "--model", model])
        .fails_with(1, &["no name of an adapter"]);
    let half = format!("{source}@0.5");
    run(home, &["adapter", "add", "half", &half, &half, "--model", model]).text();
    let listed = run(home, &["adapter", "list", "--json"]).json();
    let names: Vec<&str> = listed["adapters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|adapter| adapter["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["half", "poet"]);
    let shown = run(home, &["adapter", "show", "poet", "--json"]).json();
    assert!(shown["hot_bytes"].as_u64() > shown["warm_bytes"].as_u64() && shown["digest"] != added["digest"]);
    assert!(run(home, &["adapter", "show", "half"]).text().contains("base model"));
    // Its name, its file and the files that it was made of give the same tokens.
    let expected: Value = serde_json::from_slice(&fs::read(lora("expected.json")).unwrap()).unwrap();
    let adapters = expected["adapters"].as_array().unwrap();
    let prompt = &adapters.iter().find(|adapter| adapter["name"] == "r4_all").unwrap()["prompts"][0];
    let text = ids(&prompt["ids"])[1..].iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let text = run(home, &["detokenize", &text, "--model", model]).text().to_owned();
    let path = added["path"].as_str().unwrap();
    for adapter in ["poet", "half@1", path, "a=poet@1.0"] {
        let flags = ["--adapter", adapter, "--temperature", "0", "--kv", "f32", "-n", "16", "--json"];
        let document = run(home, &[&["generate", &text, "--model", model][..], &flags].concat()).json();
        assert_eq!(ids(&document["tokens"]), ids(&prompt["greedy"]), "{adapter}");
    }
    run(home, &["generate", "x", "--adapter", "pot"]).fails_with(2, &["no stored adapter", "adapter list"]);
    run(home, &["adapter", "rm", "half"]).text();
    run(home, &["adapter", "rm", "half"]).fails_with(1, &["no adapter \"half\"", "adapter list"]);
}

#[test]
fn damaged_adapters_are_reported() {
    let (home, model) = (tempfile::tempdir().unwrap(), tiny_model());
    let (home, model) = (home.path(), argument(&model));
    for name in ["good", "bad", "cut"] {
        run(home, &["adapter", "add", name, &lora("r1_qv"), "--model", model]).text();
    }
    let file = |name: &str| home.join("adapters").join(format!("{name}.ruvlora"));
    let mut bytes = fs::read(file("bad")).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(file("bad"), &bytes).unwrap();
    fs::write(file("cut"), &bytes[..100]).unwrap();
    let listed = run(home, &["adapter", "list", "--json"]).json();
    assert_eq!(listed["damaged"][0]["name"], "cut", "payloads are not read");
    assert_eq!(listed["adapters"].as_array().unwrap().len(), 2);
    assert!(run(home, &["adapter", "verify", "good"]).text().contains("valid"));
    let arguments = ["adapter", "verify"];
    let output = command(&arguments).env("RUVLLM_HOME", home).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("wrong checksum") && text.contains("good"), "{text}");
    run(home, &["adapter", "rm", "cut"]).text();
    // Of another model.
    run(home, &["generate", "x", "--adapter", "good"]).fails_with(1, &["another model"]);
}
