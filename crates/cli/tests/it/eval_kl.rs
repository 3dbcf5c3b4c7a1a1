//! `eval kl`: output forms, agreement with `eval perplexity`, refusals.

use serde_json::Value;

use crate::program::{argument, data, fields, run, run_with_input, tiny_model, without_commit};

/// Two windows of 128 tokens.
const WINDOWS: [&str; 6] = ["eval", "kl", "--context", "128", "--limit", "300"];

/// Document of a comparison over the test text.
fn compare(flags: &[&str]) -> Value {
    let file = data("validation-prefix.txt");
    run(&[&WINDOWS[..], &["--json", "--file", argument(&file)], flags].concat()).json()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[test]
fn documents_have_the_documented_fields() {
    let document = compare(&["--kv", "q4"]);
    let names = [
        "version",
        "model",
        "isa",
        "threads",
        "kv",
        "reference",
        "context",
        "positions",
        "kl",
        "agreement",
        "agreement_error",
        "perplexity",
        "perplexity_error",
        "nll",
        "nll_error",
        "perplexity_ratio",
        "perplexity_ratio_error",
        "rms_delta_p",
        "rms_delta_p_error",
        "complete",
    ];
    assert_eq!(without_commit(fields(&document)), names);
    let (reference, kl) = (&document["reference"], &document["kl"]);
    let names = ["model", "kv", "perplexity", "perplexity_error", "nll", "nll_error"];
    assert_eq!(fields(reference), names);
    assert_eq!(fields(kl), ["mean", "mean_error", "p50", "p95", "p99", "max"]);
    assert_eq!((&document["kv"], &reference["kv"]), (&"q4".into(), &"f16".into()));
    assert_eq!(document["model"], reference["model"]);
    assert_eq!((&document["positions"], &document["complete"]), (&(2 * 127).into(), &true.into()));
}

/// Without a calibration: the levels are those of rotated values.
#[test]
fn three_bits_of_the_normal_distribution_diverge_less_than_two() {
    let [turbo3, kivi2] = ["turbo3", "kivi2"].map(|format| {
        let policy = format!("tiered:hot=0,sink=0,warm={format},cold=off");
        number(&compare(&["--kv", &policy])["kl"]["mean"])
    });
    assert!(turbo3 > 0.0 && turbo3 < 0.4 * kivi2, "{turbo3} nats, {kivi2} with kivi2");
}

#[test]
fn equal_runs_do_not_diverge() {
    let document = compare(&["--kv", "f16"]);
    for name in ["mean", "mean_error", "p50", "p95", "p99", "max"] {
        assert_eq!(document["kl"][name], 0.0, "{name}");
    }
    assert_eq!((number(&document["agreement"]), number(&document["perplexity_ratio"])), (1.0, 1.0));
    assert_eq!(document["nll"], document["reference"]["nll"]);
    assert_eq!(document["rms_delta_p"], 0.0);
}

#[test]
fn four_bits_diverge_more_than_eight() {
    let [eight, four] = ["q8", "q4"].map(|kv| compare(&["--kv", kv]));
    let [mean_of_eight, mean_of_four] = [&eight, &four].map(|document| number(&document["kl"]["mean"]));
    assert!(mean_of_eight > 0.0 && mean_of_four > 2.0 * mean_of_eight, "{eight} and {four}");
    assert!(number(&four["agreement"]) < 1.0 && number(&four["rms_delta_p"]) > 0.0, "{four}");
    let kl = &four["kl"];
    let ranks = ["p50", "p95", "p99", "max"].map(|name| number(&kl[name]));
    assert!(ranks.is_sorted() && number(&kl["mean_error"]) > 0.0, "{kl}");
    // The perplexities are those of the two runs alone.
    let file = data("validation-prefix.txt");
    let alone = |kv: &str| {
        let arguments = ["eval", "perplexity", "--context", "128", "--limit", "300", "--json", "--kv", kv];
        run(&[&arguments[..], &["--file", argument(&file)]].concat()).json()["perplexity"].clone()
    };
    assert_eq!((&four["perplexity"], &four["reference"]["perplexity"]), (&alone("q4"), &alone("f16")));
    let ratio = number(&four["perplexity"]) / number(&four["reference"]["perplexity"]);
    assert!((number(&four["perplexity_ratio"]) - ratio).abs() < 1e-12);
    // The paired error is smaller than that of either perplexity.
    assert!(number(&four["perplexity_ratio_error"]) < number(&four["nll_error"]) / 2.0, "{four}");
}

#[test]
fn weights_of_the_candidate_are_quantized_alone() {
    let document = compare(&["--quantize", "q4_0", "--kv", "f16"]);
    assert_ne!(document["model"]["fingerprint"], document["reference"]["model"]["fingerprint"]);
    assert!(number(&document["kl"]["mean"]) > 1e-4, "{document}");
}

#[test]
fn models_of_one_vocabulary_are_compared() {
    let folder = tiny_model();
    let [half, full] = ["model-F16.gguf", "model-F32.gguf"].map(|name| folder.with_file_name(name));
    let flags = ["--model", argument(&half), "--reference", argument(&full), "--reference-kv", "f32"];
    let document = compare(&flags);
    assert_eq!(document["reference"]["kv"], "f32");
    let kl = number(&document["kl"]["mean"]);
    assert!(kl > 0.0 && kl < 1e-3, "{document}");
}

#[test]
fn people_read_the_same_figures() {
    let file = data("validation-prefix.txt");
    let human = run(&[&WINDOWS[..], &["--kv", "q4", "--file", argument(&file)]].concat());
    let (text, document) = (human.text(), compare(&["--kv", "q4"]));
    let kl = &document["kl"];
    for piece in [
        format!("kl divergence {:.6} +- {:.6} nats", number(&kl["mean"]), number(&kl["mean_error"])),
        format!("p99 {:.6}, max {:.6}", number(&kl["p99"]), number(&kl["max"])),
        format!("same top token {:.3} %", 100.0 * number(&document["agreement"])),
        format!("ratio {:.6}", number(&document["perplexity_ratio"])),
        "254 positions in windows of 128".to_owned(),
    ] {
        assert!(text.contains(&piece), "{piece:?} is not in {text}");
    }
}

#[test]
fn runs_that_cannot_be_compared() {
    let file = data("validation-prefix.txt");
    let with = |flags: &[&str]| run(&[&WINDOWS[..], &["--file", argument(&file)], flags].concat());
    with(&["--reference", argument(&tiny_model())]).fails_with(1, &["8192 tokens", "the reference has"]);
    with(&["--reference", "/nonexistent.gguf"]).fails_with(1, &["/nonexistent.gguf"]);
    with(&["--reference-kv", "q5"]).fails_with(2, &["--reference-kv", "q5"]);
    run_with_input(&["eval", "kl", "--file", "-"], b"too short").fails_with(1, &["512", "longer text"]);
    run(&["eval", "kl", "--file", "/nonexistent.txt"]).fails_with(1, &["/nonexistent.txt", "No such file"]);
    run(&["eval", "kl"]).fails_with(2, &["--file"]);
    run(&["eval", "kl", "--context", "5000", "--file", argument(&file)]).fails_with(1, &["5000", "4096"]);
}
