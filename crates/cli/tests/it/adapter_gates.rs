//! `--adapter-gate`: effects on all commands with adapters, and errors of unusable gates.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::program::{argument, data, repository, run, run_with_input, tiny_model};

/// Layers of the tiny Llama.
const LAYERS: usize = 3;

/// Width of the tiny Llama.
const DIM: usize = 64;

fn option(name: &str, file: &str) -> String {
    format!("{name}={}", argument(&repository("crates/models/tests/data/lora").join(file)))
}

fn floats(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}

/// Writes a gate over `n` adapters, its weights times `by`.
fn gate(folder: &Path, n: usize, layers: usize, by: f32) -> PathBuf {
    let path = folder.join(format!("gate-{n}-{layers}-{by}.safetensors"));
    let weight = floats((0..n * DIM).map(|i| by * ((i * 37 % 101) as f32 / 101.0 - 0.5)));
    // Gates of 0.75 and 0.25 without weights.
    let bias = floats((0..n).map(|i| -(3f32.ln()) * i as f32));
    let view = |shape: Vec<usize>, data| TensorView::new(Dtype::F32, shape, data).unwrap();
    let tensors = (0..layers).flat_map(|layer| {
        [
            (format!("layers.{layer}.weight"), view(vec![n, DIM], &weight[..])),
            (format!("layers.{layer}.bias"), view(vec![n], &bias[..])),
        ]
    });
    let fields = [("n_adapters", n.to_string()), ("temperature", "1".to_owned())];
    let fields: HashMap<_, _> = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    std::fs::write(&path, safetensors::serialize(tensors, Some(fields)).unwrap()).unwrap();
    path
}

#[test]
fn gates_weight_the_adapters_of_every_command() {
    let (model, text, out) = (tiny_model(), data("validation-prefix.txt"), tempfile::tempdir().unwrap());
    let [constant, drawn] = [0.0, 4.0].map(|by| gate(out.path(), 2, LAYERS, by));
    let (first, second) = (option("a", "r4_all"), option("b", "r16_all_rs"));
    let both = ["--adapter", &first, "--adapter", &second];
    let gated = |gate| [&both[..], &["--adapter-gate", argument(gate)]].concat();
    let nll = |adapters: &[&str]| {
        let fixed = ["eval", "perplexity", "--file", argument(&text), "--context", "64", "--limit", "64"];
        let arguments = [&fixed[..], &["--json", "--model", argument(&model)], adapters].concat();
        run(&arguments).json()["nll"].as_f64().unwrap()
    };
    let scales = [format!("{first}@0.75"), format!("{second}@0.25")];
    let scaled = nll(&["--adapter", &scales[0], "--adapter", &scales[1]]);
    let (constant_nll, drawn_nll) = (nll(&gated(&constant)), nll(&gated(&drawn)));
    // Factors are rounded to F16 with the scale of the flag, and without the gate.
    assert!((constant_nll - scaled).abs() < 1e-3, "{constant_nll} {scaled}");
    assert!((drawn_nll - scaled).abs() > 1e-2, "{drawn_nll} {scaled}");
    let tokens = |adapters: &[&str]| {
        let fixed = ["generate", "Hello", "--temperature", "0", "-n", "8", "--json", "--model"];
        run(&[&fixed[..], &[argument(&model)], adapters].concat()).json()["tokens"].clone()
    };
    assert_ne!(tokens(&gated(&drawn)), tokens(&both));
    let fixed = ["bench", "-m", argument(&model), "-p", "8", "-n", "2", "-r", "1", "--json"];
    let document = run(&[&fixed[..], &gated(&drawn)].concat()).json();
    assert_eq!(document["results"].as_array().unwrap().len(), 2);
}

#[test]
fn a_conversation_begins_with_the_gate() {
    let folder = repository("crates/models/tests/data/tiny/llama/hf");
    let out = tempfile::tempdir().unwrap();
    let gate = gate(out.path(), 2, LAYERS, 4.0);
    let (first, second) = (option("a", "r4_all"), option("b", "r16_all_rs"));
    let both = ["--adapter", &first, "--adapter", &second];
    let chat = |arguments: &[&str], lines: &str| {
        let fixed = ["chat", "--temperature", "0", "-n", "8", "--json", "--model", argument(&folder)];
        let run = run_with_input(&[&fixed[..], &both, arguments].concat(), lines.as_bytes());
        let (document, said) = run.json_and_warnings();
        (document["messages"][1]["content"].clone(), said.to_owned())
    };
    let gated = ["--adapter-gate", argument(&gate)];
    let (plain, _) = chat(&[], "Hello\n");
    assert_ne!(chat(&gated, "Hello\n").0, plain);
    assert_eq!(chat(&gated, "/adapter a b\nHello\n").0, plain, "what is selected has no gate");
    let (_, said) = chat(&gated, "/adapter\n/adapter a\n/adapter\n");
    let rows = said.lines().filter(|line| !line.starts_with('['));
    let states: Vec<&str> = rows.map(|line| line.split("  ").nth(1).unwrap_or("").trim()).collect();
    assert_eq!(states, ["scale 1, gated", "scale 1, gated", "scale 1", "off"], "{said}");
}

#[test]
fn gates_that_cannot_be_used_are_one_line() {
    let (model, out) = (tiny_model(), tempfile::tempdir().unwrap());
    let adapter = option("a", "r4_all");
    let with = |adapters: &[&str], gate: &str| {
        let fixed = ["generate", "x", "--model", argument(&model), "--adapter-gate", gate];
        run(&[&fixed[..], adapters].concat())
    };
    let one = ["--adapter", &adapter];
    let two = gate(out.path(), 2, LAYERS, 1.0);
    with(&one, argument(&two)).fails_with(2, &["--adapter-gate is for 2 adapters, --adapter names 1"]);
    with(&[], argument(&two)).fails_with(2, &["--adapter"]);
    let short = gate(out.path(), 1, LAYERS - 1, 1.0);
    with(&one, argument(&short)).fails_with(1, &["cannot use the gate", "it has no tensor layers.2.weight"]);
    with(&one, "/nonexistent/gate").fails_with(1, &["/nonexistent/gate", "No such file"]);
    with(&one, argument(&data("README.md"))).fails_with(1, &["README.md", "cannot use the gate"]);
}
