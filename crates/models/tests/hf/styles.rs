//! The forms in which the same model can be written: shards, other types, nested and newer
//! configurations.

use std::fs;

use ruvllm_models::{Checkpoint, HfFolder};
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::support::{Copy, Weight, assert_same_tensors, folder, tensors};

/// Hyperparameters agree, names of the folders aside.
#[track_caller]
fn assert_same_metadata(found: &HfFolder, expected: &HfFolder) {
    let pairs = |folder: &HfFolder| {
        let mut pairs: Vec<(String, String)> = folder
            .metadata()
            .iter()
            .filter(|(key, _)| *key != "general.name")
            .map(|(key, value)| (key.to_owned(), format!("{value:?}")))
            .collect();
        pairs.sort();
        pairs
    };
    assert_eq!(pairs(found), pairs(expected));
}

#[test]
fn shards_are_one_model() {
    let copy = Copy::of("qwen2");
    let weights = copy.weights();
    let (first, second) = weights.split_at(weights.len() / 3);
    let files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    copy.write(files[0], first);
    copy.write(files[1], second);
    let entry = |file: &'static str| move |weight: &Weight| (weight.name.clone(), Value::from(file));
    let map: serde_json::Map<String, Value> =
        first.iter().map(entry(files[0])).chain(second.iter().map(entry(files[1]))).collect();
    let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
    fs::write(copy.path("model.safetensors.index.json"), index.to_string()).expect("written");
    copy.remove("model.safetensors");

    let opened = copy.open().expect("it opens");
    assert_eq!(opened.shards(), 2);
    assert_same_tensors(&opened, &folder("qwen2"));
    assert_same_metadata(&opened, &folder("qwen2"));
}

/// The weights with every value rounded to 16 bits, as raw halves of their f32 bits.
fn to_bf16(weights: &[Weight]) -> Vec<Weight> {
    let narrow = |weight: &Weight| Weight {
        dtype: Dtype::BF16,
        data: weight.data.as_chunks::<4>().0.iter().flat_map(|bytes| [bytes[2], bytes[3]]).collect(),
        ..weight.clone()
    };
    weights.iter().map(narrow).collect()
}

#[test]
fn folders_in_bf16_keep_their_matrices() {
    for name in ["llama", "gemma3"] {
        let copy = Copy::of(name);
        let narrow = to_bf16(&copy.weights());
        copy.write("model.safetensors", &narrow);
        let halves = copy.open().expect("it opens");
        // The same values in single precision.
        let widen = |weight: &Weight| Weight {
            dtype: Dtype::F32,
            data: weight.data.as_chunks::<2>().0.iter().flat_map(|b| [0, 0, b[0], b[1]]).collect(),
            ..weight.clone()
        };
        let wide = Copy::of(name);
        wide.write("model.safetensors", &narrow.iter().map(widen).collect::<Vec<_>>());
        let wide = wide.open().expect("it opens");
        for ((found, data), (expected, reference)) in tensors(&halves).into_iter().zip(tensors(&wide)) {
            assert_eq!((&found.name, &found.dims), (&expected.name, &expected.dims));
            if found.dims.len() == 1 {
                assert!(data == reference, "{name} {}", found.name);
            } else {
                assert_eq!(found.tensor_type, gguf_rs_lite::TensorType::BF16);
                let high: Vec<u8> = reference.as_chunks::<4>().0.iter().flat_map(|b| [b[2], b[3]]).collect();
                assert!(data == high, "{name} {}", found.name);
            }
        }
        assert_eq!(halves.metadata().get_u64("general.file_type").expect("a number"), Some(32));
    }
}

#[test]
fn configurations_of_transformers_5_say_the_same() {
    for name in ["llama", "llama_yarn", "qwen2", "phi3", "mistral"] {
        let copy = Copy::of(name);
        copy.edit("config.json", |config| {
            let theta = config.remove("rope_theta").expect("a base");
            let scaling = config.remove("rope_scaling").filter(|scaling| !scaling.is_null());
            let mut rope = scaling.unwrap_or_else(|| json!({"rope_type": "default"}));
            rope["rope_theta"] = theta;
            if let Some(kind) = rope.as_object_mut().and_then(|rope| rope.remove("type")) {
                rope["rope_type"] = kind;
            }
            config.insert("rope_parameters".into(), rope);
        });
        assert_same_metadata(&copy.open().expect("it opens"), &folder(name));
    }
    // Gemma 3 has one object per kind of layer.
    let copy = Copy::of("gemma3");
    copy.edit("config.json", |config| {
        let theta = config.remove("rope_theta").expect("a base");
        let local = config.remove("rope_local_base_freq").expect("a base");
        let mut full = config.remove("rope_scaling").expect("a scaling");
        full["rope_theta"] = theta;
        let sliding = json!({"rope_type": "default", "rope_theta": local});
        config
            .insert("rope_parameters".into(), json!({"full_attention": full, "sliding_attention": sliding}));
    });
    assert_same_metadata(&copy.open().expect("it opens"), &folder("gemma3"));
}

#[test]
fn the_text_part_of_a_larger_model_is_a_model() {
    for prefix in ["language_model.", "model.language_model."] {
        let copy = Copy::of("gemma3");
        copy.edit("config.json", |config| {
            let text = std::mem::take(config);
            config.insert("architectures".into(), json!(["Gemma3ForConditionalGeneration"]));
            config.insert("model_type".into(), "gemma3".into());
            config.insert("text_config".into(), text.into());
            config.insert("vision_config".into(), json!({"hidden_size": 7}));
        });
        let mut weights = copy.weights();
        for weight in &mut weights {
            let inner = weight.name.strip_prefix("model.").expect("the usual names").to_owned();
            weight.name = match prefix {
                "language_model." => format!("language_model.model.{inner}"),
                _ => format!("{prefix}{inner}"),
            };
        }
        weights.push(Weight { name: "vision_tower.weight".into(), ..weights[0].clone() });
        copy.write("model.safetensors", &weights);
        let opened = copy.open().expect("it opens");
        assert_same_tensors(&opened, &folder("gemma3"));
        assert_same_metadata(&opened, &folder("gemma3"));
    }
}

#[test]
fn a_tied_output_matrix_is_left_out() {
    let copy = Copy::of("qwen2");
    let mut weights = copy.weights();
    let embedding =
        weights.iter().find(|weight| weight.name == "model.embed_tokens.weight").expect("it").clone();
    weights.push(Weight { name: "lm_head.weight".into(), ..embedding });
    copy.write("model.safetensors", &weights);
    assert_same_tensors(&copy.open().expect("it opens"), &folder("qwen2"));
    copy.set("tie_word_embeddings", false.into());
    assert!(copy.open().expect("it opens").tensor("output.weight").is_some());
}

#[test]
fn a_vocabulary_without_its_sentencepiece_file_encodes_alike() {
    let texts = [
        "Hello world, it's 12345 o'clock.",
        "  two  spaces\n\n\ttabs ",
        "naïve café — “quoted” 東京 🚀",
        "the string of the function that returns a reference to the struct",
    ];
    for name in ["phi3", "gemma2", "gemma3"] {
        let copy = Copy::of(name);
        let tokenizer = |folder: &HfFolder| {
            Tokenizer::from_gguf(&folder.file_metadata().expect("metadata")).expect("a tokenizer")
        };
        let with = tokenizer(&copy.open().expect("it opens"));
        copy.remove("tokenizer.model");
        let without = tokenizer(&copy.open().expect("it opens"));
        for text in texts {
            let options = EncodeOptions::default();
            assert_eq!(
                without.encode(text, options).ok(),
                with.encode(text, options).ok(),
                "{name} {text:?}"
            );
        }
        // And the other way round: only the file of SentencePiece.
        let copy = Copy::of(name);
        copy.remove("tokenizer.json");
        let alone = copy.open().expect("it opens").tokenizer().expect("a tokenizer");
        for text in texts {
            let options = EncodeOptions::default();
            assert_eq!(alone.encode(text, options).ok(), with.encode(text, options).ok(), "{name} {text:?}");
        }
    }
}

#[test]
fn chat_templates_are_found_wherever_folders_keep_them() {
    let copy = Copy::of("qwen2");
    let template = |folder: &HfFolder| {
        folder.metadata().get_str("tokenizer.chat_template").expect("a text").map(str::to_owned)
    };
    let field = template(&copy.open().expect("it opens")).expect("a template");
    copy.edit("tokenizer_config.json", |config| drop(config.remove("chat_template")));
    assert_eq!(template(&copy.open().expect("it opens")), None);
    fs::write(copy.path("chat_template.json"), json!({"chat_template": field}).to_string()).expect("written");
    assert_eq!(template(&copy.open().expect("it opens")).as_ref(), Some(&field));
    fs::write(copy.path("chat_template.jinja"), "{{ bos_token }}").expect("written");
    assert_eq!(template(&copy.open().expect("it opens")).as_deref(), Some("{{ bos_token }}"));
    copy.remove("chat_template.jinja");
    copy.remove("chat_template.json");
    copy.edit("tokenizer_config.json", |config| {
        let named = json!([{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]);
        drop(config.insert("chat_template".into(), named));
    });
    let opened = copy.open().expect("it opens");
    assert_eq!(template(&opened).as_deref(), Some("a"));
    assert_eq!(opened.metadata().get_str("tokenizer.chat_template.tool_use").ok(), Some(Some("b")));
}

#[test]
fn all_ends_of_an_answer_are_known() {
    let copy = Copy::of("llama");
    fs::write(copy.path("generation_config.json"), r#"{"eos_token_id": [563, 70, 99999]}"#).expect("written");
    let opened = copy.open().expect("it opens");
    let tokenizer = opened.tokenizer().expect("a tokenizer");
    assert!(tokenizer.is_end_of_generation(563) && tokenizer.is_end_of_generation(70));
    assert!(!tokenizer.is_end_of_generation(99999));
    let metadata = opened.file_metadata().expect("metadata");
    assert_eq!(metadata.get_u64("tokenizer.ggml.eot_token_id").ok(), Some(Some(70)));
    assert!(Tokenizer::from_gguf(&metadata).is_ok_and(|written| written.is_end_of_generation(70)));
}

/// Stored tensors as other readers see them: text-model names, rows and values as in the files.
#[test]
fn stored_tensors_are_those_of_the_files_whatever_the_larger_model() {
    for name in ["llama", "gemma2"] {
        let copy = Copy::of(name);
        let weights = copy.weights();
        let prefixed = weights.iter().cloned().map(|mut weight| {
            weight.name = format!("language_model.{}", weight.name);
            weight
        });
        copy.write("model.safetensors", &prefixed.collect::<Vec<_>>());
        for folder in [folder(name), copy.open().expect("it opens")] {
            let mut stored: Vec<_> = folder.stored_tensors().collect();
            stored.sort_by(|a, b| a.name.cmp(&b.name));
            let mut expected: Vec<&Weight> = weights.iter().collect();
            expected.sort_by(|a, b| a.name.cmp(&b.name));
            assert_eq!(stored.len(), expected.len(), "{name}");
            for (stored, expected) in stored.iter().zip(expected) {
                assert_eq!((&stored.name, &stored.shape), (&expected.name, &expected.shape), "{name}");
                assert!(stored.data.as_bytes() == expected.data, "{name}: {}", stored.name);
            }
        }
    }
    assert_eq!(folder("llama").config().get("num_hidden_layers"), Some(&json!(3)));
}
