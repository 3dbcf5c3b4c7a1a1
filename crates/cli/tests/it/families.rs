//! Mixtures of experts and layers with a state: parameters in `inspect` and `doctor`, and damaged
//! or foreign input in one line.

use std::fs;
use std::path::{Path, PathBuf};

use gguf_rs_lite::{Error, Gguf, Metadata, TensorInfo, write_file};
use ruvllm_testkit::letters_tokenizer;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::program::{argument, repository, run};

/// Copy of a form of `ruvllm-models` with a tokenizer.
struct Form {
    folder: TempDir,
}

impl Form {
    fn new(name: &str) -> Self {
        let form = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(form.model()).unwrap();
        for file in ["config.json", "model.safetensors"] {
            let source = repository("crates/models/tests/data/forms").join(name).join(file);
            fs::copy(source, form.model().join(file)).unwrap();
        }
        fs::write(form.model().join("tokenizer.json"), letters_tokenizer()).unwrap();
        form
    }

    fn model(&self) -> PathBuf {
        self.folder.path().join("model")
    }

    fn configure(&self, key: &str, value: Value) {
        let path = self.model().join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config[key] = value;
        fs::write(path, config.to_string()).unwrap();
    }

    /// Converts the folder and writes the file again with changes of metadata, tensors and data.
    fn changed(&self, change: impl FnOnce(&mut Metadata, &mut Vec<(TensorInfo, Vec<u8>)>)) -> PathBuf {
        let [whole, changed] = ["whole.gguf", "changed.gguf"].map(|name| self.folder.path().join(name));
        run(&["convert", argument(&self.model()), argument(&whole), "--force"]).text();
        let gguf = Gguf::open(&whole).unwrap();
        let mut metadata = gguf.metadata().clone();
        let data = |info: &TensorInfo| gguf.data(&info.name).unwrap().as_ref().to_vec();
        let mut tensors = gguf.tensors().map(|info| (info.clone(), data(info))).collect();
        change(&mut metadata, &mut tensors);
        write_file::<Error>(&changed, &metadata, tensors.iter().map(|(info, _)| info.clone()), |writer| {
            tensors.iter().try_for_each(|(info, data)| writer.write_tensor(&info.name, data))
        })
        .unwrap();
        changed
    }
}

/// Fails to load: one line with the file and every piece, and the document of the same error.
#[track_caller]
fn refused(path: &Path, pieces: &[&str]) {
    let model = argument(path);
    for more in [&[][..], &["--json"]] {
        run(&[&["generate", "abc", "--model", model], more].concat())
            .fails_with(1, &[pieces, &[model]].concat());
    }
}

#[test]
fn parameters_are_counted_in_total_and_per_token() {
    for (form, architecture) in [
        ("llama4", "llama4"),
        ("phimoe", "phimoe"),
        ("qwen35moe", "qwen35moe"),
        ("granitehybrid", "granitehybrid"),
        ("granitehybrid_moe", "granitehybrid"),
        ("nemotron_h_moe", "nemotron_h_moe"),
    ] {
        let form = Form::new(form);
        let model = form.model();
        let document = run(&["inspect", "--json", argument(&model)]).json();
        let number = |value: &Value| value.as_u64().unwrap();
        let elements =
            |tensor: &Value| tensor["shape"].as_array().unwrap().iter().map(number).product::<u64>();
        let tensors = document["tensors"].as_array().unwrap();
        let is_of_experts = |tensor: &&Value| tensor["name"].as_str().unwrap().contains("_exps.");
        let total: u64 = tensors.iter().map(elements).sum();
        let of_experts: u64 = tensors.iter().filter(is_of_experts).map(elements).sum();
        let of_key = |key: &str| document["metadata"][format!("{architecture}.{key}")].as_u64();
        let idle = match (of_key("expert_count"), of_key("expert_used_count")) {
            (Some(count), Some(used)) if count > 0 => of_experts / count * (count - used),
            _ => 0,
        };
        assert_eq!(idle > 0, of_experts > 0, "{architecture}");
        let expected = json!({"total": total, "active": total - idle});
        assert_eq!(document["parameters"], expected, "{architecture}");

        let document = run(&["doctor", "--json", "--model", argument(&model)]).json();
        let found = &document["model"];
        assert_eq!(found["architecture"], architecture);
        assert_eq!(
            [&found["parameters"], &found["active_parameters"]],
            [&expected["total"], &expected["active"]]
        );
        let text = run(&["doctor", "--model", argument(&model)]);
        assert_eq!(text.text().contains("active per token"), idle > 0, "{}", text.text());
    }
}

#[test]
fn experts_that_disagree_with_the_tensors_are_named() {
    let form = Form::new("qwen3moe");
    let file = form.changed(|metadata, _| drop(metadata.insert("qwen3moe.expert_count", 7_u32)));
    refused(&file, &["`blk.0.ffn_gate_exps.weight` has shape [32, 24, 8], expected [32, 24, 7]"]);
    let file = form.changed(|metadata, _| drop(metadata.insert("qwen3moe.expert_used_count", 9_u32)));
    refused(&file, &["`qwen3moe.expert_used_count` is 9, expected a whole number from 1 to 8"]);
    form.configure("num_experts", json!(7));
    refused(&form.model(), &["model.layers.0.mlp.gate.weight", "[32, 8], expected [32, 7]"]);
}

#[test]
fn missing_experts_are_named() {
    let form = Form::new("qwen3moe");
    for name in ["blk.1.ffn_up_exps.weight", "blk.0.ffn_gate_inp.weight"] {
        let file = form.changed(|_, tensors| tensors.retain(|(info, _)| info.name != name));
        refused(&file, &[&format!("tensor `{name}` is missing")]);
    }
    form.configure("num_experts", json!(9));
    refused(&form.model(), &["model.layers.0.mlp."]);
}

#[test]
fn a_router_without_finite_logits_ends_a_run_in_one_line() {
    let form = Form::new("qwen3moe");
    let file = form.changed(|_, tensors| {
        let router = tensors.iter_mut().find(|(info, _)| info.name == "blk.1.ffn_gate_inp.weight");
        router.unwrap().1[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    for more in [&[][..], &["--json"]] {
        run(&[&["generate", "abc", "-n", "4", "--model", argument(&file)], more].concat())
            .fails_with(1, &["layer 1 cannot choose experts", "its router gives NaN", "the model file"]);
    }
}

#[test]
fn unknown_methods_of_quantization_are_named_beside_those_that_are_read() {
    let form = Form::new("qwen3moe");
    for (method, shown) in [(json!("hqq"), "\"hqq\""), (json!("bitsandbytes"), "bitsandbytes")] {
        form.configure("quantization_config", json!({"quant_method": method, "bits": 4}));
        refused(&form.model(), &["config.json: `quantization_config.quant_method`", shown, "`gptq`", "GGUF"]);
    }
    form.configure("quantization_config", json!({"bits": 4}));
    refused(&form.model(), &["quantization_config", "quant_method"]);
}

/// Blocks and states of another model under the names of this one.
#[test]
fn states_of_another_model_in_the_prefix_store_are_computed_again() {
    let (own, other) = (Form::new("qwen35"), Form::new("qwen35"));
    let path = other.model().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 2;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    let prompt = "abcdefghijklmnopqrstuvwxyz".repeat(5);
    let folder = |form: &Form| form.folder.path().join("prefixes");
    let generate = |form: &Form| {
        let (model, folder) = (form.model(), folder(form));
        let arguments = ["generate", "--temperature", "0", "-n", "8", "--json", "--model", argument(&model)];
        let prefixes = ["--prefix-cache", "on", "--prefix-dir", argument(&folder), prompt.as_str()];
        run(&[&arguments[..], &prefixes].concat())
    };
    let entries = |form: &Form| {
        let mut paths: Vec<PathBuf> =
            fs::read_dir(folder(form)).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    };
    let truth = generate(&own).json();
    assert_eq!(truth["cached_tokens"], 0);
    assert!(generate(&own).json()["cached_tokens"].as_u64().unwrap() > 0, "states are used again");
    generate(&other).json();
    let (names, others) = (entries(&own), entries(&other));
    assert!(
        !others.is_empty()
            && names.iter().all(|name| !others.iter().any(|path| { path.file_name() == name.file_name() }))
    );
    for (name, path) in names.iter().zip(others.iter().cycle()) {
        fs::copy(path, name).unwrap();
    }
    let run = generate(&own);
    let (document, warnings) = run.json_and_warnings();
    assert!(warnings.starts_with("warning: ignored"), "{warnings}");
    assert_eq!((&document["cached_tokens"], &document["tokens"]), (&json!(0), &truth["tokens"]));
}
