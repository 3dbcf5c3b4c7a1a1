//! `convert`, and Hugging Face folders wherever a model is named.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

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

/// A tensor's name, type, shape and bytes.
type NamedTensor = (String, Dtype, Vec<usize>, Vec<u8>);

/// The folder with its layers' matrices in FP8, and the same values as floats.
fn quantized_folders(output: &Path) -> [PathBuf; 2] {
    const SCALE: f32 = 1.0 / 256.0;
    // Cut to four bits; numbers below the normal range become 0.
    let byte = |value: f32| {
        let bits = (value / SCALE).clamp(-448.0, 448.0).to_bits();
        let (sign, exponent) = ((bits >> 24) as u8 & 0x80, (bits >> 23 & 0xff) as i32 - 127 + 7);
        if exponent < 1 { sign } else { sign | (exponent as u8) << 3 | (bits >> 20) as u8 & 7 }
    };
    let value = |byte: u8| {
        let magnitude = f32::from_bits((u32::from(byte >> 3 & 15) + 120) << 23 | u32::from(byte & 7) << 20);
        let magnitude = if byte & 127 == 0 { 0.0 } else { SCALE * magnitude };
        if byte & 0x80 == 0 { magnitude } else { -magnitude }
    };
    let bytes = fs::read(folder().join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut lists: [Vec<NamedTensor>; 2] = Default::default();
    for (name, view) in file.iter() {
        let (shape, data) = (view.shape().to_vec(), view.data().to_vec());
        if !name.ends_with("_proj.weight") {
            lists
                .iter_mut()
                .for_each(|list| list.push((name.to_owned(), view.dtype(), shape.clone(), data.clone())));
            continue;
        }
        let values = data.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
        let quants: Vec<u8> = values.map(byte).collect();
        let floats = quants.iter().flat_map(|&quant| value(quant).to_le_bytes()).collect();
        lists[0].push((name.to_owned(), Dtype::F8_E4M3, shape.clone(), quants));
        lists[0].push((format!("{name}_scale_inv"), Dtype::F32, vec![1], SCALE.to_le_bytes().to_vec()));
        lists[1].push((name.to_owned(), Dtype::F32, shape, floats));
    }
    let folders = [output.join("fp8"), output.join("floats")];
    for (to, list) in folders.iter().zip(&lists) {
        fs::create_dir(to).unwrap();
        for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
            fs::copy(folder().join(file), to.join(file)).unwrap();
        }
        let views = list.iter().map(|(name, dtype, shape, data)| {
            (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap())
        });
        fs::write(to.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    }
    quantized_as(&folders[0], json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": null}));
    folders
}

fn quantized_as(folder: &Path, quantization: Value) {
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["quantization_config"] = quantization;
    fs::write(path, config.to_string()).unwrap();
}

#[test]
fn quantized_folders_are_models_and_files() {
    let output = tempfile::tempdir().unwrap();
    let [fp8, floats] = quantized_folders(output.path());
    let inspected = run(&["inspect", argument(&fp8)]);
    let text = inspected.text();
    assert!(text.contains("general.source.quantization") && text.contains("fp8 (e4m3)"), "{text}");
    let generate = |model: &Path, more: &[&str]| {
        let arguments = [
            "generate",
            "Hello world",
            "--model",
            argument(model),
            "--max-tokens",
            "6",
            "--temperature",
            "0",
        ];
        run(&[&arguments, more, &["--json"]].concat()).json()["tokens"].clone()
    };
    let expected = generate(&floats, &[]);
    assert_eq!(generate(&fp8, &[]), expected);
    let file = output.path().join("fp8.gguf");
    run(&["convert", argument(&fp8), argument(&file)]).text();
    assert_eq!(generate(&file, &[]), expected);
    let document = run(&["inspect", "--json", argument(&file)]).json();
    assert_eq!(document["metadata"]["general.source.quantization"], "fp8 (e4m3)");
    let tensors = document["tensors"].as_array().unwrap();
    let key = tensors.iter().find(|tensor| tensor["name"] == "blk.0.attn_k.weight").unwrap();
    assert_eq!(key["type"], "BF16");
    let small = output.path().join("q8.gguf");
    run(&["quantize", argument(&fp8), argument(&small), "Q8_0"]).text();
    assert_eq!(generate(&fp8, &["--quantize", "q8_0"]), generate(&small, &[]));
}

#[test]
fn quantization_methods_without_support_are_refused_in_one_line() {
    let output = tempfile::tempdir().unwrap();
    let [fp8, _] = quantized_folders(output.path());
    let out = output.path().join("out.gguf");
    for (quantization, pieces) in [
        (
            json!({"quant_method": "bitsandbytes", "load_in_4bit": true}),
            ["\"bitsandbytes\"", "`awq`", "GGUF file"],
        ),
        (json!({"quant_method": "gptq", "bits": 3, "group_size": 128}), ["bits", "3", "4 or 8"]),
        (json!({"quant_method": "awq", "version": "gemv", "bits": 4}), ["version", "\"gemv\"", "gemm"]),
    ] {
        quantized_as(&fp8, quantization);
        for arguments in [&["inspect", argument(&fp8)][..], &["convert", argument(&fp8), argument(&out)]] {
            run(arguments).fails_with(1, &pieces);
        }
    }
    assert!(!out.exists());
}
