//! `adapter merge` and `adapter extract`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::program::{argument, data, fields, read_logits, repository, run, tiny_model};

/// Bound of a difference of logits between adapters that are loaded, in F16, and weights that are
/// computed in F32; the adapters move them by more than 1.
const ROUNDING: f32 = 5e-2;

fn lora(name: &str) -> PathBuf {
    repository("crates/models/tests/data/lora").join(name)
}

/// Largest difference of two models' logits over a few tokens; adapters are `NAME=PATH@SCALE`.
fn logits(out: &Path, model: &Path, adapters: &[String]) -> Vec<f32> {
    let tokens = out.join("tokens.json");
    fs::write(&tokens, "[1, 2, 3, 50, 60, 70, 80]").unwrap();
    let file = out.join("logits");
    let _ = fs::remove_file(&file);
    let mut arguments = vec!["eval", "logits", "--tokens", argument(&tokens), "--out", argument(&file)];
    arguments.extend(["--kv", "f32", "--model", argument(model)]);
    adapters.iter().for_each(|adapter| arguments.extend(["--adapter", adapter]));
    run(&arguments).succeeded();
    read_logits(&file).1
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Merged adapters, in both formats, and merged models compute what the adapters compute together.
#[test]
fn a_linear_merge_has_the_logits_of_its_adapters() {
    let out = tempfile::tempdir().unwrap();
    let (out, model) = (out.path(), tiny_model());
    let (small, large) = (lora("r4_all"), lora("r16_all_rs"));
    let parts = [format!("a={}@0.7", argument(&small)), format!("b={}@-0.4", argument(&large))];
    let expected = logits(out, &model, &parts);
    let weighted = [format!("{}@0.7", argument(&small)), format!("{}@-0.4", argument(&large))];
    let merge =
        |more: &[&str]| run(&[&["adapter", "merge", "linear", &weighted[0], &weighted[1]], more].concat());
    let (folder, gguf) = (out.join("both-lora"), out.join("both.gguf"));
    let document = merge(&["-o", argument(&folder), "--json"]).json();
    let named =
        ["method", "inputs", "output", "format", "type", "base", "relative_error", "bytes", "matrices"];
    assert_eq!(fields(&document), named);
    assert_eq!((&document["method"], &document["format"]), (&"linear".into(), &"peft".into()));
    assert_eq!(document["matrices"].as_array().unwrap().len(), 21);
    assert_eq!(document["matrices"][0]["rank"], 20);
    assert!(document["relative_error"].as_f64().unwrap() < 1e-6);
    merge(&["-o", argument(&gguf), "--base", argument(&model)]).text();
    for path in [&folder, &gguf] {
        let found = logits(out, &model, &[format!("m={}", argument(path))]);
        assert!(difference(&found, &expected) < ROUNDING, "{}", path.display());
    }
    let into = |name: &str, base: &Path, more: &[&str]| {
        let path = out.join(name);
        let flags = ["-o", argument(&path), "--into-base", argument(base)];
        let text = merge(&[&flags[..], more].concat()).text().to_owned();
        assert!(text.contains("21 matrices changed"), "{text}");
        logits(out, &path, &[])
    };
    let hf = repository("crates/models/tests/data/tiny/llama/hf");
    assert!(difference(&into("model.gguf", &model, &["--type", "f32"]), &expected) < ROUNDING);
    assert!(difference(&into("folder", &hf, &[]), &expected) < ROUNDING);
    assert!(difference(&into("q8.gguf", &model, &["--type", "q8_0"]), &expected) < 0.5);
    assert!(difference(&logits(out, &model, &[]), &expected) > 1.0);
}

#[test]
fn an_extracted_adapter_has_the_logits_of_the_tuned_model() {
    let out = tempfile::tempdir().unwrap();
    let (out, model, tuned) = (out.path(), tiny_model(), out.path().join("tuned.gguf"));
    let flags = ["--into-base", argument(&model), "-o", argument(&tuned), "--type", "f32"];
    run(&[&["adapter", "merge", "linear", argument(&lora("r4_all"))], &flags[..]].concat()).text();
    let expected = logits(out, &tuned, &[]);
    for name in ["lora", "lora.gguf"] {
        let path = out.join(name);
        let arguments = ["adapter", "extract", argument(&model), argument(&tuned), "-o", argument(&path)];
        let document = run(&[&arguments[..], &["--rank", "4", "--json"]].concat()).json();
        assert_eq!(
            fields(&document),
            ["base", "tuned", "output", "format", "type", "relative_error", "bytes", "matrices", "left_out"]
        );
        assert_eq!(document["left_out"], serde_json::json!([]));
        assert!(document["relative_error"].as_f64().unwrap() < 1e-5);
        let found = logits(out, &model, &[format!("x={}", argument(&path))]);
        assert!(difference(&found, &expected) < ROUNDING, "{name}");
        run(&arguments).fails_with(1, &["exists", "--force"]);
        let text = run(&[&arguments[..], &["--force", "--error", "0.5"]].concat());
        assert!(text.text().contains("21 matrices, ranks 2 to 3, "), "{text:?}");
    }
}

#[test]
fn every_method_writes_an_adapter_and_states_its_error() {
    let out = tempfile::tempdir().unwrap();
    let (a, b) = (lora("r4_all"), lora("r16_all_rs"));
    for (i, (arguments, rank, exact)) in [
        (&["average"][..], 20, true),
        (&["slerp", "--t", "0.3"], 20, true),
        (&["concat"], 16, false),
        (&["linear", "--rank", "3"], 3, false),
        (&["ties", "--density", "0.3"], 20, false),
        (&["dare-linear", "--p", "0.2", "--seed", "9"], 20, false),
        (&["dare-ties", "--lambda", "0.5", "--rank", "32"], 32, false),
    ]
    .into_iter()
    .enumerate()
    {
        let path = out.path().join(i.to_string());
        let more = [argument(&a), argument(&b), "-o", argument(&path), "--json"];
        let document = run(&[&["adapter", "merge"], arguments, &more[..]].concat()).json();
        assert_eq!(document["method"], arguments[0]);
        assert_eq!(document["matrices"][0]["rank"], rank, "{arguments:?}");
        let error = document["relative_error"].as_f64().unwrap();
        assert!(if exact { error < 1e-6 } else { (1e-3..1.0).contains(&error) }, "{arguments:?}: {error}");
    }
}

#[test]
fn impossible_merges_are_one_line() {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("out");
    let (a, b) = (lora("r4_all"), lora("r16_all_rs"));
    let merge =
        |arguments: &[&str]| run(&[&["adapter", "merge"], arguments, &["-o", argument(&path)]].concat());
    let (a, b) = (argument(&a), argument(&b));
    merge(&["soup", a]).fails_with(2, &["linear, average, concat"]);
    merge(&["linear"]).fails_with(2, &["PATH"]);
    merge(&["linear", &format!("{a}@inf")]).fails_with(2, &["finite"]);
    merge(&["linear", a, b, "--rank", "0"]).fails_with(2, &["--rank", "at least 1"]);
    merge(&["linear", a, b, "--error", "1.5"]).fails_with(2, &["--error", "below 1"]);
    merge(&["ties", a, b, "--density", "1.5"]).fails_with(2, &["--density is 1.5", "at most 1"]);
    merge(&["ties", a, b, "--density", "nan"]).fails_with(2, &["--density"]);
    merge(&["dare-linear", a, b, "--p", "1"]).fails_with(2, &["--p is 1", "below 1"]);
    merge(&["linear", a, b, "--density", "0.5"]).fails_with(2, &["--density", "ties and dare-ties do"]);
    merge(&["slerp", a]).fails_with(2, &["exactly 2 adapters", "given: 1"]);
    merge(&["slerp", &format!("{a}@0.5"), b]).fails_with(2, &["slerp has no weights"]);
    merge(&["linear", a, "--type", "q4_0"]).fails_with(2, &["F32, F16 or BF16"]);
    merge(&["linear", a, argument(&lora("phi3"))]).fails_with(1, &["different models", "phi3"]);
    merge(&["linear", a, "/nonexistent/lora"]).fails_with(1, &["/nonexistent/lora"]);
    merge(&["linear", a, argument(&lora("r4_all/adapter.gguf"))]).fails_with(2, &["--base MODEL"]);
    merge(&["linear", a, "--base", argument(&data("README.md"))]).fails_with(1, &["README.md"]);
    let model = tiny_model();
    merge(&["linear", a, "--into-base", argument(&model)]).fails_with(2, &["let OUT end in .gguf"]);
    let phi = lora("phi3");
    let gguf = out.path().join("out.gguf");
    run(&[
        "adapter",
        "merge",
        "linear",
        argument(&phi),
        "--into-base",
        argument(&model),
        "-o",
        argument(&gguf),
    ])
    .fails_with(1, &["phi3", "another model"]);
    let nowhere = out.path().join("none/out");
    run(&["adapter", "merge", "linear", a, "-o", argument(&nowhere)])
        .fails_with(1, &["cannot write", "none/out"]);
    fs::create_dir(&path).unwrap();
    merge(&["linear", a, "--force"]).fails_with(1, &["is no folder of an adapter"]);
    merge(&["linear", a]).fails_with(1, &["--force"]);
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 1, "nothing was written");
    let extract = |more: &[&str]| {
        run(&[&["adapter", "extract", argument(&model)], more, &["-o", argument(&gguf)]].concat())
    };
    extract(&[argument(&model)]).fails_with(1, &["changes nothing"]);
    extract(&["/nonexistent"]).fails_with(1, &["/nonexistent"]);
    let phi = repository("crates/models/tests/data/tiny/phi3/model-F32.gguf");
    extract(&[argument(&phi)]).fails_with(1, &["architecture phi3"]);
}
