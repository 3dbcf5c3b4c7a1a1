//! Encoders with rotary positions - `ModernBERT`, `EmbeddingGemma`, Nomic-BERT - against
//! transformers in float64 (`tests/data/embed`), as folders and as GGUF files, and models that are
//! none.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, Metadata, Value as MetadataValue, Writer};
use ruvllm_kernels::{Kernels, ThreadPool};
use ruvllm_models::quantize::{InSitu, Recipe, convert};
use ruvllm_models::{
    Checkpoint, Compute, EmbeddingDefaults, Encoder, EncoderConfig, EncoderWorkspace, Error, HfFolder, Model,
    Pooling, is_encoder,
};
use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::{Value, json};

use crate::support::{Copy, Weight};

/// Values of vectors of length 1, behind up to six layers of sums of up to 40 products in f32.
const TOLERANCE: f64 = 2e-6;

const MODELS: [(&str, &str); 3] =
    [("modernbert", "modern-bert"), ("gemma", "gemma-embedding"), ("nomic", "nomic-bert")];

fn data(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/embed").join(file)
}

fn folder(name: &str) -> HfFolder {
    HfFolder::open(data(name)).expect("the folder opens")
}

fn copy(name: &str) -> Copy {
    Copy::of_folder(&data(name))
}

fn converted(name: &str) -> Gguf {
    Gguf::open(data(name).join("converted.gguf")).expect("the file opens")
}

fn load(checkpoint: &dyn Checkpoint) -> Encoder {
    Encoder::load(checkpoint, &mut |_| ()).expect("it loads")
}

/// A text, its ids and its vector.
struct Case {
    text: String,
    ids: Vec<TokenId>,
    vector: Vec<f64>,
}

fn cases(name: &str) -> Vec<Case> {
    let bytes = std::fs::read(data(name).join("expected.json")).expect("expected.json");
    let json: Value = serde_json::from_slice(&bytes).expect("valid JSON");
    let numbers = |value: &Value| -> Vec<f64> {
        value.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number")).collect()
    };
    let case = |case: &Value| Case {
        text: case["text"].as_str().expect("a text").to_owned(),
        ids: numbers(&case["ids"]).into_iter().map(|id| id as TokenId).collect(),
        vector: numbers(&case["vector"]),
    };
    json.as_array().expect("cases").iter().map(case).collect()
}

/// Largest difference to the reference, of all texts in one pass.
fn largest_error(checkpoint: &dyn Checkpoint, name: &str) -> f64 {
    let (encoder, cases) = (load(checkpoint), cases(name));
    let compute = Compute::new(1).expect("kernels");
    let defaults = EmbeddingDefaults::from_metadata(checkpoint.metadata()).expect("defaults");
    let texts: Vec<&[TokenId]> = cases.iter().map(|case| case.ids.as_slice()).collect();
    let mut workspace = EncoderWorkspace::new();
    let mut rest = encoder.forward(&compute, &mut workspace, &texts).expect("states");
    let (width, mut pooled) = (encoder.config().model_dim, Vec::new());
    for text in texts {
        let (states, later) = rest.split_at(text.len() * width);
        match defaults.pooling {
            Some(Pooling::Cls) => pooled.extend_from_slice(&states[..width]),
            Some(Pooling::Mean) => pooled.extend((0..width).map(|column| {
                let values = states.iter().skip(column).step_by(width).map(|&value| f64::from(value));
                (values.sum::<f64>() / text.len() as f64) as f32
            })),
            other => panic!("{name}: {other:?}"),
        }
        rest = later;
    }
    let vectors = encoder.project(&compute, pooled);
    let dim = encoder.config().embedding_dim();
    assert_eq!(vectors.len(), cases.len() * dim, "{name}");
    let error = |(vector, case): (&[f32], &Case)| {
        assert_eq!(vector.len(), case.vector.len(), "{name}");
        let values: Vec<f64> = vector.iter().map(|&value| f64::from(value)).collect();
        let length = values.iter().map(|value| value * value).sum::<f64>().sqrt();
        let errors =
            values.iter().zip(&case.vector).map(|(value, expected)| (value / length - expected).abs());
        errors.inspect(|error| assert!(!error.is_nan(), "{name}")).fold(0.0, f64::max)
    };
    vectors.chunks_exact(dim).zip(&cases).map(error).fold(0.0, f64::max)
}

#[track_caller]
fn assert_encodes(tokenizer: &Tokenizer, name: &str) {
    for case in cases(name) {
        let ids = tokenizer.encode(&case.text, EncodeOptions::default()).expect("ids");
        assert_eq!(ids, case.ids, "{name} {:?}", case.text);
    }
}

#[test]
fn vectors_are_those_of_transformers() {
    for (name, architecture) in MODELS {
        let folder = folder(name);
        assert!(is_encoder(folder.metadata()));
        assert_eq!(
            EncoderConfig::from_checkpoint(&folder).expect("a configuration").architecture,
            architecture
        );
        let error = largest_error(&folder, name);
        assert!(error < TOLERANCE, "{name}: {error}");
        assert_encodes(&folder.tokenizer().expect("a tokenizer"), name);
        assert!(matches!(Model::load(&folder, &mut |_| ()), Err(Error::IsEncoder { .. })));
    }
}

#[test]
fn files_of_llama_cpp_give_the_same_vectors() {
    for (name, _) in MODELS {
        let file = converted(name);
        let error = largest_error(&file, name);
        assert!(error < TOLERANCE, "{name}: {error}");
        assert_encodes(&Checkpoint::tokenizer(&file).expect("a tokenizer"), name);
    }
}

#[test]
fn converted_folders_have_the_names_and_keys_of_llama_cpp() {
    for (name, architecture) in MODELS {
        let folder = folder(name);
        let output = tempfile::tempdir().expect("a folder");
        let (path, pool) = (output.path().join("model.gguf"), ThreadPool::new(1).expect("threads"));
        convert(&folder, &path, None, &pool, &mut |_| ControlFlow::Continue(())).expect("written");
        let (file, reference) = (Gguf::open(path).expect("a valid file"), converted(name));
        let shapes = |checkpoint: &dyn Checkpoint| {
            let mut shapes: Vec<_> =
                checkpoint.tensors().map(|info| (info.name.clone(), info.dims.clone())).collect();
            shapes.sort();
            shapes
        };
        assert_eq!(shapes(&file), shapes(&reference), "{name}");
        for (key, value) in reference.metadata().iter() {
            // That of RMS norms beside that of layer norms counts for no reader.
            let is_beside = name == "modernbert" && key.ends_with("layer_norm_rms_epsilon");
            if key.starts_with(&format!("{architecture}.")) && !is_beside {
                assert_eq!(file.metadata().get(key), Some(value), "{key}");
            }
        }
        let error = largest_error(&file, name);
        assert!(error < TOLERANCE, "{name}: {error}");
        assert_encodes(&Checkpoint::tokenizer(&file).expect("a tokenizer"), name);
        let q8 = Recipe::from_name("q8_0").expect("a recipe");
        let error = largest_error(&InSitu::new(&folder, q8, &pool).expect("a checkpoint"), name);
        assert!(error < 0.1, "{name}: {error}");
    }
}

#[test]
fn neither_company_nor_threads_nor_instruction_set_changes_a_bit() {
    for (name, _) in MODELS {
        let (encoder, cases) = (load(&folder(name)), cases(name));
        let texts: Vec<&[TokenId]> = cases.iter().map(|case| case.ids.as_slice()).collect();
        let bits = |compute: &Compute, texts: &[&[TokenId]]| -> Vec<u32> {
            let mut workspace = EncoderWorkspace::new();
            let states = encoder.forward(compute, &mut workspace, texts).expect("states");
            states.iter().map(|value| value.to_bits()).collect()
        };
        let one = Compute::new(1).expect("kernels");
        let alone: Vec<u32> = texts.iter().flat_map(|&text| bits(&one, &[text])).collect();
        for kernels in Kernels::available() {
            for threads in 1..=3 {
                let compute = Compute::with(kernels, ThreadPool::new(threads).expect("threads"));
                assert!(bits(&compute, &texts) == alone, "{name} {kernels:?} {threads}");
            }
        }
    }
}

#[test]
fn configurations_of_transformers_5_say_the_same() {
    let copy = copy("modernbert");
    copy.edit("config.json", |map| {
        for key in ["global_rope_theta", "local_rope_theta", "global_attn_every_n_layers", "layer_norm_eps"] {
            map.remove(key);
        }
        let types = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"];
        map.insert("layer_types".into(), json!(types));
        let parameters = |base: f64| json!({"rope_type": "default", "rope_theta": base});
        map.insert(
            "rope_parameters".into(),
            json!({"full_attention": parameters(160_000.0), "sliding_attention": parameters(10_000.0)}),
        );
    });
    assert!(largest_error(&copy.open().expect("it opens"), "modernbert") < TOLERANCE);
    // Layers without a period are listed in the file.
    copy.set(
        "layer_types",
        json!(["sliding_attention", "full_attention", "full_attention", "sliding_attention"]),
    );
    let config = EncoderConfig::from_checkpoint(&copy.open().expect("it opens")).expect("a configuration");
    assert_eq!(config.spec.reach, [Some(5), None, None, Some(5)]);

    let copy = self::copy("nomic");
    let vocab_size = load(&folder("nomic")).config().vocab_size;
    let config = json!({
        "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "hidden_size": 32, "hidden_act": "silu",
        "intermediate_size": 40, "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-12, "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        "type_vocab_size": 2, "vocab_size": vocab_size,
    });
    std::fs::write(copy.path("config.json"), config.to_string()).expect("written");
    assert!(largest_error(&copy.open().expect("it opens"), "nomic") < TOLERANCE);
}

#[test]
fn biases_are_used_where_a_modernbert_has_them() {
    let copy = copy("modernbert");
    let mut weights = copy.weights();
    let norm = weights.iter().find(|weight| weight.name == "final_norm.weight").expect("the norm").clone();
    // The norm adds its own weights.
    weights.push(Weight { name: "final_norm.bias".to_owned(), ..norm });
    copy.write("model.safetensors", &weights);
    assert!(largest_error(&copy.open().expect("it opens"), "modernbert") > 0.01);
}

#[test]
fn configurations_that_cannot_be_run_are_refused() {
    for (name, key, value) in [
        ("modernbert", "hidden_activation", json!("relu")),
        ("modernbert", "local_attention", json!(0)),
        ("modernbert", "global_rope_theta", json!(1.0)),
        ("modernbert", "layer_types", json!(["full_attention"])),
        ("modernbert", "rope_scaling", json!({"type": "linear", "factor": 2.0})),
        ("nomic", "activation_function", json!("gelu")),
        ("nomic", "rotary_emb_interleaved", json!(true)),
        ("nomic", "rotary_emb_fraction", json!(0.5)),
        ("nomic", "prenorm", json!(true)),
        ("nomic", "n_inner", json!(null)),
        ("gemma", "hidden_activation", json!("relu")),
        ("gemma", "num_key_value_heads", json!(3)),
    ] {
        let copy = copy(name);
        copy.set(key, value);
        let error = copy.open().map(|_| ()).map_err(|error| error.to_string());
        assert!(error.as_ref().is_err_and(|error| error.contains(key)), "{key}: {error:?}");
    }
    let copy = copy("nomic");
    copy.set("moe_every_n_layers", json!(2));
    let error = copy.open().map(|_| ()).expect_err("refused").to_string();
    assert!(error.contains("nomic-bert-moe"), "{error}");
    for (name, key, value) in [
        ("modernbert", "architectures", json!(["ModernBertForSequenceClassification"])),
        ("gemma", "use_bidirectional_attention", json!(false)),
    ] {
        let copy = self::copy(name);
        copy.set(key, value);
        assert!(matches!(copy.open(), Err(Error::UnsupportedArchitecture { .. })), "{key}");
    }
    for (name, missing) in [
        ("modernbert", "layers.1.attn_norm.weight"),
        ("gemma", "layers.5.self_attn.q_norm.weight"),
        ("nomic", "encoder.layers.0.norm1.bias"),
    ] {
        let copy = self::copy(name);
        let mut weights = copy.weights();
        weights.retain(|weight| weight.name != missing);
        copy.write("model.safetensors", &weights);
        let error = copy.open().map(|_| ()).expect_err("refused").to_string();
        assert!(error.contains(missing) && error.contains("is missing"), "{error}");
    }
}

#[test]
fn matrices_behind_the_pooling_that_cannot_be_computed_are_refused() {
    const CONFIG: &str = "2_Dense/config.json";
    for (key, value, piece) in [
        ("in_features", json!(8), "16, the width of what comes before"),
        ("out_features", json!(16), "shape"),
        ("bias", json!(true), "matrices alone"),
        ("bias", json!(null), "is missing"),
        ("activation_function", json!("torch.nn.modules.activation.Tanh"), "Identity"),
        ("activation_function", json!(null), "is missing"),
    ] {
        let copy = copy("gemma");
        copy.edit(CONFIG, |map| drop(map.insert(key.to_owned(), value)));
        let error = copy.open().map(|_| ()).expect_err("refused").to_string();
        assert!(error.contains("2_Dense") && error.contains(piece), "{key}: {error}");
    }
    let copy = copy("gemma");
    copy.remove("3_Dense/model.safetensors");
    let error = copy.open().map(|_| ()).expect_err("refused").to_string();
    assert!(error.contains("3_Dense") && error.contains("it has no model.safetensors"), "{error}");
    let module = |kind: &str, path: &str| json!({"type": format!("a.b.{kind}"), "path": path});
    let dense = || module("Dense", "2_Dense");
    for modules in [
        json!([module("Pooling", "1_Pooling"), module("Normalize", ""), dense()]),
        json!([module("Pooling", "1_Pooling"), dense(), dense(), dense()]),
    ] {
        std::fs::write(copy.path("modules.json"), modules.to_string()).expect("written");
        let error = copy.open().map(|_| ()).expect_err("refused").to_string();
        assert!(error.contains("up to two of Dense"), "{error}");
    }
}

/// The file with other metadata.
fn file_with(name: &str, change: impl FnOnce(&mut Metadata)) -> Gguf {
    let file = converted(name);
    let mut metadata = file.metadata().clone();
    change(&mut metadata);
    let mut writer =
        Writer::new(Vec::new(), &metadata, Checkpoint::tensors(&file).cloned()).expect("a header");
    for info in Checkpoint::tensors(&file) {
        writer
            .write_tensor(info, Checkpoint::data(&file, info).expect("its data").as_ref())
            .expect("written");
    }
    Gguf::from_owner(writer.finish().expect("complete")).expect("a valid file")
}

#[test]
fn damaged_keys_of_a_file_are_refused() {
    let refused = |name: &str, change: &dyn Fn(&mut Metadata)| {
        Encoder::load(&file_with(name, change), &mut |_| ()).map(|_| ()).expect_err("refused")
    };
    let with = |name: &str, key: &str, value: u32| {
        refused(name, &|metadata| drop(metadata.insert(key.to_owned(), value)))
    };
    let missing =
        refused("gemma", &|metadata| drop(metadata.remove("gemma-embedding.attention.sliding_window")));
    assert!(matches!(missing, Error::MissingKey { .. }), "{missing}");
    for (name, key, value) in [
        ("gemma", "gemma-embedding.dense_2_feat_in", 8),
        ("gemma", "gemma-embedding.attention.head_count_kv", 3),
        ("gemma", "gemma-embedding.attention.key_length", 7),
        ("gemma", "gemma-embedding.attention.sliding_window_pattern", 0),
        ("nomic", "nomic-bert.context_length", 0),
    ] {
        let error = with(name, key, value);
        assert!(matches!(error, Error::InvalidKey { .. }), "{key}: {error}");
    }
    for (name, key, value) in [
        ("gemma", "gemma-embedding.dense_3_feat_out", 8),
        ("nomic", "nomic-bert.feed_forward_length", 48),
        ("modernbert", "modern-bert.feed_forward_length", 64),
    ] {
        let error = with(name, key, value);
        assert!(matches!(error, Error::TensorShape { .. }), "{key}: {error}");
    }
    for (key, value) in [
        ("rope.freq_base", MetadataValue::F32(1.0)),
        ("rope.scaling.factor", MetadataValue::F32(2.0)),
        ("rope.scaling.type", MetadataValue::String("yarn".into())),
        ("attention.causal", MetadataValue::Bool(true)),
    ] {
        let error =
            refused("nomic", &|metadata| drop(metadata.insert(format!("nomic-bert.{key}"), value.clone())));
        assert!(matches!(error, Error::InvalidKey { .. }), "{key}: {error}");
    }
    let mixture =
        file_with("nomic", |metadata| drop(metadata.insert("general.architecture", "nomic-bert-moe")));
    assert!(!is_encoder(mixture.metadata()));
    let error = Model::load(&mixture, &mut |_| ()).map(|_| ());
    assert!(matches!(error, Err(Error::UnsupportedArchitecture { found, .. }) if found == "nomic-bert-moe"));
}
