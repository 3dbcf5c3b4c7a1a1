//! `doctor`.

use crate::program::{argument, command, fields, finish, run, tiny_model};

#[test]
fn the_document_has_the_documented_fields() {
    let document = run(&["doctor", "--json"]).json();
    assert_eq!(fields(&document), ["version", "cpu", "memory", "isa", "threads", "model"]);
    assert_eq!(document["version"], env!("CARGO_PKG_VERSION"));
    assert!(document["cpu"]["cores"].as_u64().unwrap() >= 1);
    assert_eq!(fields(&document["isa"]), ["chosen", "chosen_by", "available"]);
    assert_eq!(
        fields(&document["model"]),
        ["name", "origin", "architecture", "parameters", "weights_bytes", "context"]
    );
    assert_eq!(document["model"]["origin"], "built into the program");
    assert_eq!(document["model"]["parameters"], 29_368_832);
    if cfg!(target_os = "linux") {
        assert!(document["memory"]["total_bytes"].as_u64().unwrap() > 0);
    }
}

#[test]
fn the_human_form_says_what_would_change_the_choice() {
    let run = run(&["doctor"]);
    for piece in ["instruction set", "cores", "memory", "RUVLLM_ISA", "--threads", "base-q8_0"] {
        assert!(run.text().contains(piece), "{piece} is not in {}", run.text());
    }
}

#[test]
fn the_environment_decides_and_is_named() {
    let arguments = ["doctor", "--json"];
    let forced = finish(&arguments, command(&arguments).env("RUVLLM_ISA", "scalar").output().unwrap()).json();
    assert_eq!(forced["isa"]["chosen"], "scalar");
    assert_eq!(forced["isa"]["chosen_by"], "RUVLLM_ISA");
    assert_eq!(forced["cpu"]["features_used"], serde_json::json!([]));
    let free = finish(&arguments, command(&arguments).env_remove("RUVLLM_ISA").output().unwrap()).json();
    assert_eq!(free["isa"]["chosen_by"], "detection");
    finish(&arguments, command(&arguments).env("RUVLLM_ISA", "mmx").output().unwrap())
        .fails_with(1, &["mmx"]);
}

#[test]
fn another_model_is_described() {
    let tiny = tiny_model();
    let document = run(&["doctor", "--json", "--model", argument(&tiny)]).json();
    assert_eq!(document["model"]["origin"], "--model");
    assert_eq!(document["model"]["architecture"], "llama");
    let arguments = ["doctor", "--json"];
    let output = command(&arguments).env("RUVLLM_MODEL", &tiny).output().unwrap();
    assert_eq!(finish(&arguments, output).json()["model"]["origin"], "RUVLLM_MODEL");
}
