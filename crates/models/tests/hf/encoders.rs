//! Encoders of the BERT family against an independent implementation in float64
//! (`tests/data/encoder`), as other families of the same form, as GGUF files, and folders that are
//! none.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, Metadata, Writer};
use ruvllm_kernels::{Kernels, ThreadPool};
use ruvllm_models::quantize::{InSitu, Recipe, convert};
use ruvllm_models::{
    Checkpoint, Compute, EmbeddingDefaults, Encoder, EncoderWorkspace, Error, HfFolder, Model, ModelConfig,
    Pooling, is_encoder,
};
use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::EncodeOptions;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::support::{Copy, Weight};

fn data(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/encoder").join(file)
}

fn bert() -> HfFolder {
    HfFolder::open(data("bert")).expect("the folder opens")
}

fn bert_copy() -> Copy {
    Copy::of_folder(&data("bert"))
}

/// A text, its ids, those that count, and the hidden states of these.
struct Case {
    name: String,
    text: String,
    ids: Vec<TokenId>,
    kept: Vec<TokenId>,
    states: Vec<f64>,
}

fn cases() -> Vec<Case> {
    let json: Value = serde_json::from_slice(&std::fs::read(data("expected.json")).expect("expected.json"))
        .expect("valid JSON");
    let bytes = std::fs::read(data("expected.safetensors")).expect("the states");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let limit = json["max_tokens"].as_u64().expect("a number") as usize;
    let case = |case: &Value| {
        let name = case["name"].as_str().expect("a name");
        let view = file.tensor(name).expect("its states");
        assert_eq!(view.dtype(), Dtype::F64);
        let ids: Vec<TokenId> = case["ids"]
            .as_array()
            .expect("ids")
            .iter()
            .map(|id| id.as_u64().expect("an id") as TokenId)
            .collect();
        let mut kept = ids.clone();
        if ids.len() > limit {
            kept.truncate(limit - 1);
            kept.extend(ids.last());
        }
        Case {
            name: name.to_owned(),
            text: case["text"].as_str().expect("a text").to_owned(),
            ids,
            kept,
            states: view.data().as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect(),
        }
    };
    json["cases"].as_array().expect("cases").iter().map(case).collect()
}

fn load(checkpoint: &dyn Checkpoint) -> Encoder {
    Encoder::load(checkpoint, &mut |_| ()).expect("it loads")
}

fn states(encoder: &Encoder, compute: &Compute, texts: &[&[TokenId]]) -> Vec<f32> {
    let mut workspace = EncoderWorkspace::new();
    encoder.forward(compute, &mut workspace, texts).expect("a pass").to_vec()
}

/// Largest difference to the reference over all cases.
fn largest_error(encoder: &Encoder) -> f64 {
    let compute = Compute::new(1).expect("kernels");
    let mut largest = 0.0_f64;
    for case in cases() {
        let found = states(encoder, &compute, &[&case.kept]);
        assert_eq!(found.len(), case.states.len(), "{}", case.name);
        for (found, expected) in found.iter().zip(&case.states) {
            let error = (f64::from(*found) - expected).abs();
            assert!(!error.is_nan(), "{}", case.name);
            largest = largest.max(error);
        }
    }
    largest
}

/// States are of the order of 1; two layers of sums of up to 40 products in f32.
const TOLERANCE: f64 = 1e-5;

#[test]
fn hidden_states_are_those_of_the_reference() {
    let error = largest_error(&load(&bert()));
    assert!(error < TOLERANCE, "{error}");
}

#[test]
fn ids_are_those_of_the_reference_and_long_texts_lose_their_end() {
    let tokenizer = bert().tokenizer().expect("a tokenizer");
    assert_eq!(tokenizer.tokens_around(), 2);
    for case in cases() {
        assert_eq!(tokenizer.encode(&case.text, EncodeOptions::default()).expect("ids"), case.ids);
        let limit = case.kept.len();
        let cut = tokenizer.encode_at_most(&case.text, limit).expect("ids");
        assert_eq!(cut, (case.kept.clone(), case.kept != case.ids), "{}", case.name);
    }
}

#[test]
fn neither_company_nor_threads_nor_instruction_set_changes_a_bit() {
    let encoder = load(&bert());
    let cases = cases();
    let texts: Vec<&[TokenId]> = cases.iter().map(|case| case.kept.as_slice()).collect();
    let bits = |states: &[f32]| states.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let one = Compute::new(1).expect("kernels");
    let alone: Vec<u32> = texts.iter().flat_map(|&text| bits(&states(&encoder, &one, &[text]))).collect();
    for kernels in Kernels::available() {
        for threads in 1..=3 {
            let compute = Compute::with(kernels, ThreadPool::new(threads).expect("threads"));
            assert!(bits(&states(&encoder, &compute, &texts)) == alone, "{kernels:?}, {threads} threads");
        }
    }
    // A workspace that has seen more leaves nothing behind.
    let mut workspace = EncoderWorkspace::new();
    encoder.forward(&one, &mut workspace, &texts).expect("a pass");
    let again = encoder.forward(&one, &mut workspace, &texts[..1]).expect("a pass");
    assert!(bits(again) == alone[..again.len()]);
}

/// The folder as another family names and lays out the same model.
fn renamed(config: &[(&str, Value)], gone: &[&str], rename: impl Fn(&mut Weight) -> bool) -> Copy {
    let copy = bert_copy();
    copy.edit("config.json", |map| {
        gone.iter().for_each(|key| drop(map.remove(*key)));
        map.extend(config.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    });
    let mut weights = copy.weights();
    weights.retain_mut(|weight| rename(weight));
    copy.write("model.safetensors", &weights);
    copy
}

#[test]
fn first_published_names_and_heads_make_no_difference() {
    let copy = renamed(&[("architectures", json!(["BertForPreTraining"]))], &[], |weight| {
        weight.name = match weight.name.strip_prefix("pooler.") {
            Some(rest) => format!("cls.seq_relationship.{rest}"),
            None => format!("bert.{}", weight.name),
        };
        if weight.name.contains("LayerNorm") {
            weight.name = weight.name.replace(".weight", ".gamma").replace(".bias", ".beta");
        }
        true
    });
    assert!(largest_error(&load(&copy.open().expect("it opens"))) < TOLERANCE);
}

#[test]
fn roberta_counts_positions_behind_the_padding_token() {
    let config = [
        ("architectures", json!(["XLMRobertaModel"])),
        ("model_type", json!("xlm-roberta")),
        ("pad_token_id", json!(1)),
        ("max_position_embeddings", json!(34)),
    ];
    let copy = renamed(&config, &[], |weight| {
        weight.name = format!("roberta.{}", weight.name);
        if weight.name.contains("position_embeddings") {
            // Two rows that no token has.
            weight.data.splice(..0, vec![0xff; 2 * 32 * 4]);
            weight.shape[0] += 2;
        }
        true
    });
    let folder = copy.open().expect("it opens");
    assert_eq!(load(&folder).config().context_length, 32);
    assert!(largest_error(&load(&folder)) < TOLERANCE);
}

#[test]
fn distilbert_has_other_names_and_no_token_types() {
    let first_type: Vec<f32> = bert_copy()
        .weights()
        .iter()
        .filter(|weight| weight.name.contains("token_type"))
        .flat_map(|weight| floats(&weight.data[..32 * 4]))
        .collect();
    let config = [
        ("architectures", json!(["DistilBertForMaskedLM"])),
        ("model_type", json!("distilbert")),
        ("activation", json!("gelu")),
        ("dim", json!(32)),
        ("hidden_dim", json!(40)),
        ("n_layers", json!(2)),
        ("n_heads", json!(4)),
    ];
    let gone = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act"];
    let names = [
        ("encoder.layer.", "transformer.layer."),
        ("attention.output.dense", "attention.out_lin"),
        ("attention.output.LayerNorm", "sa_layer_norm"),
        ("attention.self.query", "attention.q_lin"),
        ("attention.self.key", "attention.k_lin"),
        ("attention.self.value", "attention.v_lin"),
        ("intermediate.dense", "ffn.lin1"),
        ("output.dense", "ffn.lin2"),
        ("output.LayerNorm", "output_layer_norm"),
        ("pooler.dense", "vocab_transform"),
    ];
    let copy = renamed(&config, &gone, |weight| {
        for (from, to) in names {
            weight.name = weight.name.replace(from, to);
        }
        if weight.name.contains("position_embeddings") {
            // The type's embedding is the same for every token, so the positions can hold it.
            let sums = floats(&weight.data).zip(first_type.iter().cycle()).map(|(a, b)| a + b);
            weight.data = sums.flat_map(f32::to_le_bytes).collect();
        }
        !weight.name.contains("token_type")
    });
    let folder = copy.open().expect("it opens");
    assert_eq!(load(&folder).config().n_token_types, 0);
    assert!(largest_error(&load(&folder)) < TOLERANCE);
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

#[test]
fn a_converted_encoder_computes_and_encodes_the_same() {
    let folder = bert();
    let output = tempfile::tempdir().expect("a folder");
    let path = output.path().join("bert.gguf");
    let pool = ThreadPool::new(1).expect("threads");
    convert(&folder, &path, None, &pool, &mut |_| ControlFlow::Continue(())).expect("written");
    let file = Gguf::open(path).expect("a valid file");
    assert!(is_encoder(file.metadata()) && largest_error(&load(&file)) < TOLERANCE);
    let defaults = EmbeddingDefaults::from_metadata(file.metadata()).expect("defaults");
    assert_eq!(Some(defaults), EmbeddingDefaults::from_metadata(folder.metadata()).ok());
    let id =
        |name: &str| file.metadata().get_u64(&format!("tokenizer.ggml.{name}_token_id")).expect("a number");
    assert!(id("bos").is_some() && id("bos") == id("cls"));
    assert!(id("eos").is_some() && id("eos") == id("seperator"));
    let tokenizer = Checkpoint::tokenizer(&file).expect("a tokenizer");
    for case in cases() {
        let ids = tokenizer.encode(&case.text, EncodeOptions::default()).expect("ids");
        assert_eq!(ids, case.ids, "{}", case.name);
    }
}

#[test]
fn quantized_weights_stay_close() {
    let (folder, pool) = (bert(), ThreadPool::new(1).expect("threads"));
    let q8 = Recipe::from_name("q8_0").expect("a recipe");
    let error = largest_error(&load(&InSitu::new(&folder, q8, &pool).expect("a checkpoint")));
    // Eight bits of weights and of activations, in states of the order of 1.
    assert!((TOLERANCE..0.1).contains(&error), "{error}");
}

#[test]
fn sentence_files_give_the_defaults() {
    let read =
        |copy: &Copy| copy.open().and_then(|folder| EmbeddingDefaults::from_metadata(folder.metadata()));
    let copy = bert_copy();
    let defaults = read(&copy).expect("defaults");
    assert_eq!(
        (defaults.pooling, defaults.normalize, defaults.max_tokens),
        (Some(Pooling::Mean), Some(true), Some(24))
    );
    let pooling = |fields: Value| {
        std::fs::write(copy.path("1_Pooling/config.json"), fields.to_string()).expect("written");
        read(&copy).map(|defaults| defaults.pooling).map_err(|error| error.to_string())
    };
    assert_eq!(pooling(json!({"pooling_mode_cls_token": true})), Ok(Some(Pooling::Cls)));
    assert_eq!(
        pooling(json!({"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": false})),
        Ok(Some(Pooling::Last))
    );
    assert_eq!(pooling(json!({"pooling_mode": "lasttoken"})), Ok(Some(Pooling::Last)));
    for (fields, piece) in [
        (json!({"pooling_mode_max_tokens": true}), "pooling_mode_max_tokens"),
        (json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}), "one kind of pooling"),
        (json!({"pooling_mode": "max"}), "one of mean, cls, lasttoken"),
        (json!({}), "`pooling_mode` is missing"),
    ] {
        let error = pooling(fields.clone());
        assert!(error.as_ref().is_err_and(|error| error.contains(piece)), "{fields}: {error:?}");
    }
    copy.remove("modules.json");
    assert_eq!(read(&copy).expect("none"), EmbeddingDefaults::default());
}

#[test]
fn modules_that_are_not_implemented_are_refused() {
    let module = |kind: &str, path: &str| json!({"type": format!("a.b.{kind}"), "path": path});
    for (modules, piece) in [
        (json!([module("Transformer", ""), module("Dense", "2_Dense")]), "Dense"),
        (json!([module("Pooling", "../1_Pooling")]), "a list of modules"),
        (json!([module("Pooling", "/etc")]), "a list of modules"),
        (json!([{"path": ""}]), "a list of modules"),
        (json!({}), "a list"),
        (json!(null), "a list of modules"),
    ] {
        let copy = bert_copy();
        std::fs::write(copy.path("modules.json"), modules.to_string()).expect("written");
        let error = copy.open().map(|_| ()).map_err(|error| error.to_string());
        assert!(error.as_ref().is_err_and(|error| error.contains(piece)), "{modules}: {error:?}");
    }
    let copy = bert_copy();
    std::fs::write(copy.path("modules.json"), "[").expect("written");
    assert!(matches!(copy.open(), Err(Error::InvalidJson { .. })));
}

#[test]
fn encoders_that_cannot_be_run_are_refused() {
    for (key, value) in [
        ("hidden_act", json!("gelu_new")),
        ("position_embedding_type", json!("relative_key")),
        ("is_decoder", json!(true)),
        ("num_attention_heads", json!(5)),
        ("hidden_size", json!(0)),
        ("max_position_embeddings", json!(-1)),
        ("type_vocab_size", json!(0)),
        ("layer_norm_eps", json!(-1.0)),
    ] {
        let copy = bert_copy();
        copy.set(key, value);
        let error = copy.open().map(|_| ()).map_err(|error| error.to_string());
        assert!(error.as_ref().is_err_and(|error| error.contains(key)), "{key}: {error:?}");
    }
    let change = |change: &dyn Fn(&mut Vec<Weight>)| {
        let copy = bert_copy();
        let mut weights = copy.weights();
        change(&mut weights);
        copy.write("model.safetensors", &weights);
        copy.open().map(|_| ()).expect_err("refused").to_string()
    };
    for name in [
        "embeddings.word_embeddings.weight",
        "embeddings.token_type_embeddings.weight",
        "embeddings.LayerNorm.bias",
        "encoder.layer.1.attention.self.key.bias",
        "encoder.layer.0.output.LayerNorm.weight",
    ] {
        let error = change(&|weights| weights.retain(|weight| weight.name != name));
        assert!(error.contains(name) && error.contains("is missing"), "{error}");
        let error = change(&|weights| {
            let weight = weights.iter_mut().find(|weight| weight.name == name).expect("the tensor");
            weight.shape.insert(0, 1);
        });
        assert!(error.contains(name) && error.contains("shape"), "{error}");
    }
    let error = change(&|weights| weights[0].name = "encoder.layer.0.output.extra.weight".to_owned());
    assert!(error.contains("is not part of a `bert` model"), "{error}");
}

#[test]
fn texts_that_do_not_fit_are_refused() {
    let encoder = load(&bert());
    let compute = Compute::new(1).expect("kernels");
    let refused = |texts: &[&[TokenId]]| {
        let mut workspace = EncoderWorkspace::new();
        encoder.forward(&compute, &mut workspace, texts).map(|_| ()).expect_err("refused")
    };
    assert!(matches!(refused(&[]), Error::EmptyBatch));
    assert!(matches!(refused(&[&[2], &[]]), Error::EmptySegment { segment: 1 }));
    assert!(matches!(
        refused(&[&[2; 33]]),
        Error::TextOfTokens { segment: 0, tokens: 33, context_length: 32 }
    ));
    assert!(matches!(
        refused(&[&[2, 199]]),
        Error::TokenOutOfRange { segment: 0, index: 1, token: 199, vocab_size: 199 }
    ));
}

#[test]
fn an_encoder_is_no_decoder_and_a_decoder_no_encoder() {
    assert!(matches!(Model::load(&bert(), &mut |_| ()), Err(Error::IsEncoder { .. })));
    assert!(matches!(ModelConfig::from_checkpoint(&bert()), Err(Error::IsEncoder { .. })));
    let decoder = crate::support::folder("qwen2");
    assert!(!is_encoder(decoder.metadata()));
    assert!(matches!(Encoder::load(&decoder, &mut |_| ()), Err(Error::UnsupportedArchitecture { .. })));
}

/// The encoder as a GGUF file with other metadata.
fn file_with(change: impl FnOnce(&mut Metadata)) -> Gguf {
    let folder = bert();
    let mut metadata = folder.file_metadata().expect("metadata");
    change(&mut metadata);
    let mut writer = Writer::new(Vec::new(), &metadata, folder.tensors().cloned()).expect("a header");
    for info in folder.tensors() {
        writer.write_tensor(info, folder.data(info).expect("its data").as_ref()).expect("written");
    }
    Gguf::from_owner(writer.finish().expect("complete")).expect("a valid file")
}

#[test]
fn damaged_keys_of_a_file_are_refused() {
    assert!(Encoder::load(&file_with(|_| ()), &mut |_| ()).is_ok());
    for (suffix, value) in [
        ("embedding_length", 64),
        ("attention.head_count", 3),
        ("block_count", 1000),
        ("block_count", 3),
        ("feed_forward_length", 0),
        ("context_length", 4_000_000_000_u32),
    ] {
        let file = file_with(|metadata| drop(metadata.insert(format!("bert.{suffix}"), value)));
        let error = Encoder::load(&file, &mut |_| ()).map(|_| ());
        let is_clear = matches!(
            error,
            Err(Error::InvalidKey { .. } | Error::TensorShape { .. } | Error::MissingTensor { .. })
        );
        assert!(is_clear, "{suffix}: {error:?}");
    }
    let file = file_with(|metadata| drop(metadata.insert("bert.block_count", 1_u32)));
    assert!(matches!(Encoder::load(&file, &mut |_| ()), Err(Error::UnexpectedTensor { .. })));
    let file = file_with(|metadata| drop(metadata.insert("bert.attention.causal", true)));
    assert!(matches!(Encoder::load(&file, &mut |_| ()), Err(Error::InvalidKey { .. })));
    let file = file_with(|metadata| drop(metadata.remove("bert.attention.layer_norm_epsilon")));
    assert!(matches!(Encoder::load(&file, &mut |_| ()), Err(Error::MissingKey { .. })));
}
