//! Folders that are damaged, incomplete or of other models: one clear error each.

use std::fs;

use ruvllm_models::{Checkpoint, Error};
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::support::{Copy, Weight};

/// The error of opening a folder, with its causes, as one text.
#[track_caller]
fn refused(copy: &Copy) -> String {
    describe(&copy.open().map(|_| ()).expect_err("refused"))
}

fn describe(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(describe).map_or_else(String::new, |cause| format!(": {cause}"));
    format!("{error}{cause}")
}

#[track_caller]
fn assert_mentions(message: &str, pieces: &[&str]) {
    assert!(pieces.iter().all(|piece| message.contains(piece)), "{message}");
}

#[test]
fn a_folder_without_configuration_or_weights() {
    let copy = Copy::of("qwen2");
    copy.remove("config.json");
    assert_mentions(&refused(&copy), &["holds no model", "it has no config.json"]);
    let copy = Copy::of("qwen2");
    copy.remove("model.safetensors");
    assert_mentions(&refused(&copy), &["holds no model", "model.safetensors.index.json"]);
}

#[test]
fn a_configuration_that_is_no_json() {
    let copy = Copy::of("qwen2");
    for json in ["", "{", "[]", "\u{feff}{}", "{\"a\": NaN}", &"[".repeat(100_000)] {
        fs::write(copy.path("config.json"), json).expect("written");
        assert_mentions(&refused(&copy), &["config.json is no valid JSON object"]);
    }
    fs::write(copy.path("config.json"), [0x7B, 0xFF, 0x7D]).expect("written");
    assert_mentions(&refused(&copy), &["config.json is no valid JSON object"]);
}

#[test]
fn models_that_cannot_be_run() {
    let copy = Copy::of("qwen2");
    copy.set("architectures", json!(["MambaForCausalLM"]));
    assert_mentions(&refused(&copy), &["`MambaForCausalLM` is not supported", "qwen{2,2moe,3,"]);
    copy.edit("config.json", |config| {
        drop(config.remove("architectures"));
        drop(config.remove("model_type"));
    });
    assert_mentions(&refused(&copy), &["`architectures` is missing", "LlamaForCausalLM"]);

    for (model, key, value, pieces) in [
        ("qwen2", "quantization_config", json!({"quant_method": "hqq"}), ["quantization_config", "hqq"]),
        ("qwen2", "hidden_act", json!("relu"), ["hidden_act", "silu"]),
        ("llama", "rope_scaling", json!({"rope_type": "mrope", "factor": 2.0}), ["rope_type", "mrope"]),
        ("gemma2", "layer_types", json!(["full_attention"]), ["layer_types", "each of 4 layers"]),
        ("gemma2", "layer_types", json!(vec!["chunked_attention"; 4]), ["layer_types", "sliding_attention"]),
        ("llama", "layer_types", json!(vec!["sliding_attention"; 3]), ["layer_types", "that of the family"]),
        (
            "gemma3",
            "use_bidirectional_attention",
            json!(true),
            ["use_bidirectional_attention", "left to right"],
        ),
        (
            "llama",
            "rope_scaling",
            json!({"rope_type": "yarn", "factor": 2.0, "llama_4_scaling_beta": 0.1}),
            ["llama_4_scaling_beta", "Mistral 3"],
        ),
        ("gemma3", "sliding_window_pattern", json!(0), ["sliding_window_pattern", "1"]),
        (
            "phi3",
            "rope_scaling",
            json!({"type": "longrope", "long_factor": [1.0]}),
            ["long_factor", "8 numbers"],
        ),
    ] {
        let copy = Copy::of(model);
        copy.set(key, value);
        assert_mentions(&refused(&copy), &pieces);
    }
}

#[test]
fn hyperparameters_out_of_range() {
    for (key, value) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-64)),
        ("hidden_size", json!("64")),
        ("hidden_size", json!(1e300)),
        ("num_hidden_layers", json!(4_294_967_296_u64)),
        ("num_attention_heads", json!(6)),
        ("num_key_value_heads", json!(3)),
        ("rms_norm_eps", json!(-1)),
        ("rope_theta", json!([])),
        ("vocab_size", json!({})),
        ("architectures", json!("Qwen2ForCausalLM")),
        ("text_config", json!(5)),
    ] {
        let copy = Copy::of("qwen2");
        copy.set(key, value);
        assert_mentions(&refused(&copy), &["config.json", key]);
    }
    for key in ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"] {
        let copy = Copy::of("qwen2");
        copy.edit("config.json", |config| drop(config.remove(key)));
        assert_mentions(&refused(&copy), &["config.json", key, "is missing"]);
    }
}

#[test]
fn rotary_parameters_without_meaning() {
    for value in [json!(1e-300), json!(0), json!(1e300), json!(-2), json!(1e-30), json!(1e38)] {
        for key in ["rope_theta", "rope_local_base_freq"] {
            let copy = Copy::of("gemma3");
            copy.set(key, value.clone());
            assert_mentions(&refused(&copy), &["config.json", key, "above 1 and at most 1e15"]);
        }
        for (kind, key) in [
            ("linear", "factor"),
            ("yarn", "factor"),
            ("yarn", "beta_fast"),
            ("yarn", "beta_slow"),
            ("yarn", "attention_factor"),
            ("yarn", "mscale"),
            ("yarn", "mscale_all_dim"),
            ("llama3", "factor"),
            ("llama3", "low_freq_factor"),
            ("llama3", "high_freq_factor"),
        ] {
            let copy = Copy::of("llama");
            let mut scaling = json!({"rope_type": kind, "factor": 4, "original_max_position_embeddings": 64});
            scaling[key] = value.clone();
            copy.set("rope_scaling", scaling);
            assert_mentions(&refused(&copy), &["config.json", key, "a number from 0.001 to"]);
        }
        for key in ["short_factor", "long_factor"] {
            let mut scaling =
                json!({"type": "longrope", "short_factor": vec![1.0; 8], "long_factor": vec![1.0; 8]});
            scaling[key][3] = value.clone();
            let copy = Copy::of("phi3");
            copy.set("rope_scaling", scaling);
            assert_mentions(&refused(&copy), &["config.json", key, "8 numbers", "each a number from 0.001"]);
        }
    }
}

/// Changes the weights of a copy of a tiny model.
fn with_weights(name: &str, change: impl FnOnce(&mut Vec<Weight>)) -> Copy {
    let copy = Copy::of(name);
    let mut weights = copy.weights();
    change(&mut weights);
    copy.write("model.safetensors", &weights);
    copy
}

fn position(weights: &[Weight], name: &str) -> usize {
    weights.iter().position(|weight| weight.name == name).expect("the tensor")
}

#[test]
fn tensors_that_are_missing_left_over_or_of_another_shape() {
    for name in [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.2.mlp.up_proj.weight",
        "model.layers.0.self_attn.k_proj.bias",
    ] {
        let copy = with_weights("qwen2", |weights| drop(weights.remove(position(weights, name))));
        assert_mentions(&refused(&copy), &[name, "is missing"]);
    }
    let copy = with_weights("llama", |weights| drop(weights.remove(position(weights, "lm_head.weight"))));
    assert_mentions(&refused(&copy), &["lm_head.weight", "is missing"]);

    for name in ["model.layers.3.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.scale", "other.weight"] {
        let copy = with_weights("qwen2", |weights| weights[1].name = name.to_owned());
        assert_mentions(&refused(&copy), &[name, "not part of a `qwen2` model"]);
    }
    let copy = with_weights("qwen2", |weights| {
        let at = position(weights, "model.layers.0.mlp.up_proj.weight");
        weights[at].shape.reverse();
    });
    assert_mentions(
        &refused(&copy),
        &["model.layers.0.mlp.up_proj.weight", "shape", "[192, 64]", "[64, 192]"],
    );
    let copy = with_weights("qwen2", |weights| {
        weights[0].dtype = Dtype::I32;
    });
    assert_mentions(&refused(&copy), &["I32", "F32, F16, BF16"]);
    let copy = with_weights("qwen2", |weights| {
        let mut again = weights[0].clone();
        again.name = again.name.replacen("model.", "", 1);
        weights.push(again);
    });
    assert_mentions(&refused(&copy), &["is there twice"]);
}

#[test]
fn more_layers_than_tensors() {
    let copy = Copy::of("qwen2");
    copy.edit("config.json", |config| {
        drop(config.insert("num_hidden_layers".into(), json!(60_000)));
        drop(config.remove("layer_types"));
    });
    assert_mentions(&refused(&copy), &["is missing"]);
}

#[test]
fn weight_files_that_broke_off() {
    let copy = Copy::of("qwen2");
    let whole = fs::read(copy.path("model.safetensors")).expect("the weights");
    for length in [0, 4, 8, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(copy.path("model.safetensors"), &whole[..length]).expect("written");
        assert_mentions(&refused(&copy), &["model.safetensors is damaged or incomplete"]);
    }
    let mut longer = whole.clone();
    longer.push(0);
    fs::write(copy.path("model.safetensors"), longer).expect("written");
    assert_mentions(&refused(&copy), &["model.safetensors is damaged or incomplete"]);
}

#[test]
fn indexes_that_lie() {
    let copy = Copy::of("qwen2");
    let names: Vec<String> = copy.weights().into_iter().map(|weight| weight.name).collect();
    let index = |file: &str, more: &[(&str, &str)]| {
        let mut map: serde_json::Map<String, Value> =
            names.iter().map(|name| (name.clone(), Value::from(file))).collect();
        map.extend(more.iter().map(|&(name, file)| (name.to_owned(), Value::from(file))));
        let index = json!({"weight_map": map});
        fs::write(copy.path("model.safetensors.index.json"), index.to_string()).expect("written");
    };
    index("model.safetensors", &[]);
    assert!(copy.open().is_ok(), "an index of one file");
    index("model-00001-of-00001.safetensors", &[]);
    assert_mentions(
        &refused(&copy),
        &["index.json names model-00001-of-00001.safetensors, which is not there"],
    );
    index("model.safetensors", &[("model.layers.9.more.weight", "model.safetensors")]);
    assert_mentions(&refused(&copy), &["`model.layers.9.more.weight` is in model.safetensors"]);
    for path in ["../model.safetensors", "/model.safetensors", "a/model.safetensors", "model.bin", ""] {
        index(path, &[]);
        assert_mentions(&refused(&copy), &["weight_map", "in the same folder"]);
    }
    fs::write(copy.path("model.safetensors.index.json"), "{}").expect("written");
    assert_mentions(&refused(&copy), &["`weight_map` is missing"]);
    fs::write(copy.path("model.safetensors.index.json"), r#"{"weight_map": {}}"#).expect("written");
    assert_mentions(&refused(&copy), &["weight_map"]);
}

#[test]
fn a_shard_that_is_a_folder() {
    let copy = Copy::of("qwen2");
    copy.remove("model.safetensors");
    fs::create_dir(copy.path("model.safetensors")).expect("a folder");
    assert_mentions(&refused(&copy), &["model.safetensors"]);
}

#[test]
fn tokenizers_of_other_models() {
    // More ordinary tokens than rows.
    let copy = Copy::of("qwen2");
    copy.edit("tokenizer.json", |definition| {
        let vocab = definition["model"]["vocab"].as_object_mut().expect("a vocabulary");
        vocab.insert("surplus".into(), json!(700));
    });
    let opened = copy.open().expect("it opens");
    assert!(matches!(opened.tokenizer(), Err(Error::VocabularySize { tokenizer: 701, embedding: 600 })));
    assert!(matches!(opened.file_metadata(), Err(Error::VocabularySize { tokenizer: 701, embedding: 600 })));

    // Markers may be more: some models share a tokenizer with larger relatives.
    let copy = Copy::of("qwen2");
    copy.edit("tokenizer.json", |definition| {
        let added = definition["added_tokens"].as_array_mut().expect("a list");
        for id in 594..=600 {
            let mut more = added[0].clone();
            more["id"] = json!(id);
            more["content"] = json!(format!("<|image-{id}|>"));
            added.push(more);
        }
    });
    let opened = copy.open().expect("it opens");
    assert!(opened.tokenizer().is_ok() && opened.file_metadata().is_ok());
}

#[test]
fn tokenizers_that_are_absent_damaged_or_not_expressible() {
    let copy = Copy::of("qwen2");
    copy.remove("tokenizer.json");
    let opened = copy.open().expect("weights need no tokenizer");
    let message = |error: Error| describe(&error);
    let error = opened.file_metadata().map(|_| ()).map_err(message).expect_err("refused");
    assert_mentions(&error, &["neither tokenizer.json nor tokenizer.model"]);
    let error = opened.tokenizer().map(|_| ()).map_err(message).expect_err("refused");
    assert_mentions(&error, &["neither tokenizer.json nor tokenizer.model"]);

    for (key, value, piece) in [
        ("normalizer", json!({"type": "Lowercase"}), "Lowercase"),
        (
            "pre_tokenizer",
            json!({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true, "trim_offsets": true}),
            "pre-tokenizer",
        ),
        ("model", json!({"type": "WordLevel", "vocab": {}}), "WordLevel"),
        // The rest of the definition is not that of BERT.
        ("model", json!({"type": "WordPiece", "vocab": {}}), "normalizer"),
        ("added_tokens", json!([{"content": "x"}]), "added_tokens"),
    ] {
        let copy = Copy::of("qwen2");
        copy.edit("tokenizer.json", |definition| drop(definition.insert(key.into(), value)));
        let error =
            copy.open().expect("it opens").file_metadata().map(|_| ()).map_err(message).expect_err("refused");
        assert_mentions(&error, &[piece]);
    }
    let copy = Copy::of("phi3");
    let whole = fs::read(copy.path("tokenizer.model")).expect("the vocabulary");
    for bytes in [&whole[..whole.len() / 2 + 1], &b"<unk> 0\n"[..], &[]] {
        fs::write(copy.path("tokenizer.model"), bytes).expect("written");
        let error =
            copy.open().expect("it opens").file_metadata().map(|_| ()).map_err(message).expect_err("refused");
        assert_mentions(&error, &["tokenizer.model is damaged"]);
    }
}
