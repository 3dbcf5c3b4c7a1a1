//! `ruvllm sona train --curriculum`.

use std::fs;

use serde_json::json;

use crate::program::{argument, run, tiny_model};

#[test]
fn examples_are_ordered_by_loss_or_fields() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    let (data, model) = (path("data.jsonl"), tiny_model());
    let write = |field: &str| {
        let line = |number: usize| {
            let text = format!("ferry {number} leaves the harbour at {}", number * 7);
            format!("{}\n", json!({"text": text, field: number % 4}))
        };
        fs::write(&data, (0..12).map(line).collect::<String>()).unwrap();
    };
    let train = |out: &str, rest: &[&str]| {
        let out = path(out);
        let paths = ["--model", argument(&model), "--data", argument(&data), "--out", argument(&out)];
        let flags = ["--batch", "2", "--rank", "2", "--steps", "6", "--curriculum"];
        run(&[&["sona", "train"][..], &paths, &flags, rest].concat())
    };
    let weights = |out: &str| fs::read(path(out).join("adapter_model.safetensors")).unwrap();
    write("other");
    let document = train("loss", &["--json"]).json();
    assert_eq!(document["curriculum"], json!({"by": "loss", "examples": [4, 8, 12]}));
    assert!(train("again", &[]).text().contains("curriculum by loss: phases of 4, 8, 12 examples"));
    assert!(weights("loss") == weights("again"), "equal runs differ");
    write("difficulty");
    let document = train("difficulty", &["--phases", "2", "--json"]).json();
    assert_eq!(document["curriculum"], json!({"by": "difficulty", "examples": [6, 12]}));
    assert!(weights("loss") != weights("difficulty"), "another order");
    write("phase");
    let document = train("phase", &["--json"]).json();
    assert_eq!(document["curriculum"], json!({"by": "phase", "examples": [3, 6, 9, 12]}));

    train("x", &["--phases", "2"]).fails_with(2, &["--phases", "`phase`"]);
    train("x", &["--replay", argument(&data)]).fails_with(2, &["--curriculum", "--replay"]);
    write("other");
    train("x", &["--phases", "7"]).fails_with(1, &["phases is 7", "number of steps"]);
    fs::write(&data, "{\"text\": \"a b c\", \"phase\": 1}\n{\"text\": \"d e f\"}\n").unwrap();
    train("x", &[]).fails_with(1, &["data.jsonl:2", "`phase`"]);
    let plain = run(&["sona", "train", "--data", argument(&data), "--out", "x", "--phases", "2"]);
    plain.fails_with(2, &["--curriculum"]);
    assert!(!path("x").exists());
}
