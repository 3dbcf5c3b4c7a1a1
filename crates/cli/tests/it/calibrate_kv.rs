//! `calibrate-kv`, and `--kv-calibration` of the commands that take it.

use std::fs;
use std::path::PathBuf;

use crate::program::{argument, data, fields, run, tiny_model};

/// Calibration of the default model, from another part of the text than the measured one, and its
/// folder.
fn calibrated() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(data("validation-prefix.txt")).unwrap();
    let file = folder.path().join("text.txt");
    let second_half = (text.len() / 2..).find(|&at| text.is_char_boundary(at)).unwrap();
    fs::write(&file, &text[second_half..]).unwrap();
    let out = folder.path().join("base.kv");
    let arguments = ["calibrate-kv", "--file", argument(&file), "--tokens", "2048", argument(&out), "--json"];
    let document = run(&arguments).json();
    assert_eq!(fields(&document), ["output", "tokens", "layers", "bytes"]);
    assert_eq!(document["tokens"], 2048);
    assert_eq!(document["bytes"], fs::metadata(&out).unwrap().len());
    run(&arguments).fails_with(1, &["exists", "--force"]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing temporary is left");
    (folder, out)
}

#[test]
fn learned_three_bits_lose_less_than_two() {
    let (_folder, calibration) = calibrated();
    let file = data("validation-prefix.txt");
    let measure = |kv: &str, more: &[&str]| {
        let arguments = ["eval", "perplexity", "--context", "512", "--limit", "2048", "--json", "--kv", kv];
        let document = run(&[&arguments[..], &["--file", argument(&file)], more].concat()).json();
        document["perplexity"].as_f64().unwrap()
    };
    let given = ["--kv-calibration", argument(&calibration)];
    let exact = measure("f16", &[]);
    let nuq3 = measure("tiered:hot=0,warm=nuq3,cold=off", &given);
    let kivi2 = measure("tiered:hot=0,warm=kivi2,cold=off", &[]);
    assert!(nuq3 - exact < 0.5 * (kivi2 - exact), "f16 {exact}, nuq3 {nuq3}, kivi2 {kivi2}");
    assert!(nuq3 < 1.03 * exact, "f16 {exact}, nuq3 {nuq3}");
}

#[test]
fn generate_and_bench_take_a_calibration_of_their_model() {
    let (folder, calibration) = calibrated();
    let given = ["--kv", "nuq3", "--kv-calibration", argument(&calibration)];
    let story =
        run(&[&["generate", "Once upon a time", "-n", "80", "--temperature", "0"], &given[..]].concat());
    assert!(story.succeeded(), "{story:?}");
    let bench = run(&[&["bench", "-p", "40", "-n", "4", "-r", "1", "--json"], &given[..]].concat()).json();
    assert_eq!(bench["results"][0]["kv"], "nuq3");
    let tiny = tiny_model();
    let arguments = [&["generate", "x", "--model", argument(&tiny)], &given[..]].concat();
    run(&arguments).fails_with(1, &["another model", "calibrate"]);
    run(&["generate", "x", "--kv", "nuq3"]).fails_with(1, &["needs a calibration"]);
    run(&["generate", "x", "--kv-calibration", argument(&calibration)]).fails_with(1, &["no tier needs"]);
    // `doctor` rejects the same plan.
    assert!(run(&[&["doctor"], &given[..]].concat()).text().contains("nuq3"));
    run(&["doctor", "--kv-calibration", argument(&calibration)]).fails_with(1, &["no tier needs"]);
    let tiny = crate::program::tiny_model();
    run(&[&["doctor", "--model", argument(&tiny)], &given[..]].concat()).fails_with(1, &["another model"]);
    let damaged = folder.path().join("damaged.kv");
    let mut bytes = fs::read(&calibration).unwrap();
    bytes[100] ^= 1;
    fs::write(&damaged, bytes).unwrap();
    let arguments = ["generate", "x", "--kv", "nuq3", "--kv-calibration", argument(&damaged)];
    run(&arguments).fails_with(2, &["--kv-calibration", "checksum"]);
}

#[test]
fn texts_that_are_too_short_and_heads_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("text.txt"), folder.path().join("out.kv"));
    fs::write(&file, "Too short.").unwrap();
    run(&["calibrate-kv", "--file", argument(&file), argument(&out)]).fails_with(1, &["at least 512"]);
    let (text, tiny) = (data("validation-prefix.txt"), tiny_model());
    let arguments = [
        "calibrate-kv",
        "--file",
        argument(&text),
        "--model",
        argument(&tiny),
        "--tokens",
        "600",
        argument(&out),
    ];
    run(&arguments).fails_with(1, &["nuq3", "multiple of 32"]);
    assert!(!out.exists());
}
