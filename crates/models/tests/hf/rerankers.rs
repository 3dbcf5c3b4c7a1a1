//! Rerankers against transformers in float64 (`tests/data/rerank`), as folders and as llama.cpp's
//! converter writes them, and models that are none.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, Metadata, TensorType, Writer};
use ruvllm_kernels::{Kernels, ThreadPool};
use ruvllm_models::quantize::{InSitu, Recipe, convert};
use ruvllm_models::{
    Checkpoint, Compute, EmbeddingDefaults, Encoder, EncoderText, EncoderWorkspace, Error, HfFolder,
};
use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::support::{Copy, Weight};

/// Logits are of the order of 1; two layers and a head of sums of up to 40 products in f32.
const TOLERANCE: f64 = 1e-5;

/// Most tokens of a pair in the reference.
const LIMIT: usize = 40;

const MODELS: [&str; 2] = ["bert", "xlm_roberta"];

fn data(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/rerank").join(file)
}

fn folder(name: &str) -> HfFolder {
    HfFolder::open(data(name)).expect("the folder opens")
}

fn converted(name: &str) -> Gguf {
    Gguf::open(data(name).join("converted.gguf")).expect("the file opens")
}

fn load(checkpoint: &dyn Checkpoint) -> Encoder {
    Encoder::load(checkpoint, &mut |_| ()).expect("it loads")
}

/// A pair of texts, its ids with their types, and its logit.
struct Case {
    query: String,
    document: String,
    ids: Vec<TokenId>,
    second_type: usize,
    truncated: bool,
    logit: f64,
}

fn cases(name: &str) -> Vec<Case> {
    let bytes = std::fs::read(data(name).join("expected.json")).expect("expected.json");
    let json: Value = serde_json::from_slice(&bytes).expect("valid JSON");
    let numbers = |value: &Value| -> Vec<u64> {
        value.as_array().expect("a list").iter().map(|number| number.as_u64().expect("a number")).collect()
    };
    let case = |case: &Value| {
        let (ids, types) = (numbers(&case["ids"]), numbers(&case["types"]));
        let second_type = types.iter().position(|&kind| kind == 1).unwrap_or(types.len());
        assert!(types[second_type..].iter().all(|&kind| kind == 1));
        Case {
            query: case["query"].as_str().expect("a query").to_owned(),
            document: case["document"].as_str().expect("a document").to_owned(),
            ids: ids.into_iter().map(|id| id as TokenId).collect(),
            second_type,
            truncated: case["truncated"].as_bool().expect("a flag"),
            logit: case["logit"].as_f64().expect("a logit"),
        }
    };
    json.as_array().expect("cases").iter().map(case).collect()
}

fn texts(cases: &[Case]) -> Vec<EncoderText<'_>> {
    cases.iter().map(|case| EncoderText { tokens: &case.ids, second_type: case.second_type }).collect()
}

fn scores(encoder: &Encoder, compute: &Compute, texts: &[EncoderText<'_>]) -> Vec<f32> {
    encoder.scores(compute, &mut EncoderWorkspace::new(), texts).expect("scores")
}

/// Largest difference to the reference over all cases.
fn largest_error(encoder: &Encoder, name: &str) -> f64 {
    let compute = Compute::new(1).expect("kernels");
    let cases = cases(name);
    let found = scores(encoder, &compute, &texts(&cases));
    assert_eq!(found.len(), cases.len());
    let errors = found.iter().zip(&cases).map(|(&found, case)| (f64::from(found) - case.logit).abs());
    errors.inspect(|error| assert!(!error.is_nan())).fold(0.0, f64::max)
}

#[track_caller]
fn assert_encodes(tokenizer: &Tokenizer, name: &str) {
    for case in cases(name) {
        let pair = tokenizer.pair_encoder(&case.query).expect("ids");
        let pair = pair.encode(&case.document, LIMIT).expect("ids");
        assert_eq!(pair.tokens, case.ids, "{name} {:?}", case.document);
        assert_eq!((pair.second_type, pair.truncated), (case.second_type, case.truncated), "{name}");
    }
}

#[test]
fn logits_are_those_of_transformers() {
    for name in MODELS {
        let encoder = load(&folder(name));
        assert!(encoder.has_head());
        let error = largest_error(&encoder, name);
        assert!(error < TOLERANCE, "{name}: {error}");
    }
}

#[test]
fn pairs_are_encoded_as_by_the_tokenizers_library() {
    for name in MODELS {
        let tokenizer = folder(name).tokenizer().expect("a tokenizer");
        assert_encodes(&tokenizer, name);
        let pair = tokenizer.pair_encoder("cat").expect("ids");
        // No room: the document alone is truncated.
        let shortest = pair.encode("the cat sat", 0).expect("ids");
        assert_eq!((shortest.tokens.len(), shortest.truncated), (pair.tokens_around(), true));
    }
}

#[test]
fn a_file_of_llama_cpp_ranks_as_its_folder() {
    let file = converted("xlm_roberta");
    let error = largest_error(&load(&file), "xlm_roberta");
    assert!(error < TOLERANCE, "{error}");
    assert_encodes(&Checkpoint::tokenizer(&file).expect("a tokenizer"), "xlm_roberta");
    // The converter leaves out the pooler of BERT, without which scores are others.
    let file = converted("bert");
    assert!(matches!(Encoder::load(&file, &mut |_| ()), Err(Error::HeadWithoutHidden)));
    assert_encodes(&Checkpoint::tokenizer(&file).expect("a tokenizer"), "bert");
}

#[test]
fn a_converted_reranker_computes_and_encodes_the_same() {
    let folder = folder("bert");
    let output = tempfile::tempdir().expect("a folder");
    let path = output.path().join("bert.gguf");
    let pool = ThreadPool::new(1).expect("threads");
    convert(&folder, &path, None, &pool, &mut |_| ControlFlow::Continue(())).expect("written");
    let file = Gguf::open(path).expect("a valid file");
    assert_eq!(file.metadata().get_u64("bert.pooling_type").ok(), Some(Some(4)));
    // llama.cpp adds this row as it is, and knows no sum with halves.
    let types = file.tensor("token_types.weight").map(|tensor| tensor.tensor_type);
    assert_eq!(types, Some(TensorType::F32));
    assert!(EmbeddingDefaults::from_metadata(file.metadata()).is_ok_and(|read| read.pooling.is_none()));
    assert!(largest_error(&load(&file), "bert") < TOLERANCE);
    assert_encodes(&Checkpoint::tokenizer(&file).expect("a tokenizer"), "bert");
    let q8 = Recipe::from_name("q8_0").expect("a recipe");
    let error = largest_error(&load(&InSitu::new(&folder, q8, &pool).expect("a checkpoint")), "bert");
    assert!((TOLERANCE..0.1).contains(&error), "{error}");
}

#[test]
fn neither_company_nor_threads_nor_instruction_set_changes_a_bit() {
    let bits = |scores: Vec<f32>| scores.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    for name in MODELS {
        let (encoder, cases) = (load(&folder(name)), cases(name));
        let texts = texts(&cases);
        let one = Compute::new(1).expect("kernels");
        let alone: Vec<u32> = texts.iter().flat_map(|&text| bits(scores(&encoder, &one, &[text]))).collect();
        for kernels in Kernels::available() {
            for threads in 1..=3 {
                let compute = Compute::with(kernels, ThreadPool::new(threads).expect("threads"));
                assert!(bits(scores(&encoder, &compute, &texts)) == alone, "{name} {kernels:?} {threads}");
            }
        }
    }
}

#[test]
fn the_type_of_the_second_text_counts_where_there_are_two() {
    for (name, changes) in [("bert", true), ("xlm_roberta", false)] {
        let (encoder, cases) = (load(&folder(name)), cases(name));
        let compute = Compute::new(1).expect("kernels");
        let typed = scores(&encoder, &compute, &[EncoderText { tokens: &cases[0].ids, second_type: 5 }]);
        let untyped = scores(&encoder, &compute, &[EncoderText::new(&cases[0].ids)]);
        assert_eq!(typed != untyped, changes, "{name}");
    }
}

#[test]
fn classifiers_and_damaged_heads_are_refused() {
    for (key, value, piece) in [
        ("id2label", json!({"0": "no", "1": "yes"}), "one label"),
        ("id2label", json!(null), "`id2label` is missing"),
        ("id2label", json!("LABEL_0"), "an object"),
    ] {
        let copy = Copy::of_folder(&data("bert"));
        copy.set(key, value);
        let error = copy.open().map(|_| ()).map_err(|error| error.to_string());
        assert!(error.as_ref().is_err_and(|error| error.contains(piece)), "{error:?}");
    }
    // Without names the number counts.
    let copy = Copy::of_folder(&data("bert"));
    copy.set("id2label", json!(null));
    copy.set("num_labels", json!(1));
    assert!(copy.open().is_ok());
    let change = |name: &str, change: &dyn Fn(&mut Vec<Weight>)| {
        let copy = Copy::of_folder(&data(name));
        let mut weights = copy.weights();
        change(&mut weights);
        copy.write("model.safetensors", &weights);
        copy.open().map(|_| ()).expect_err("refused").to_string()
    };
    for (model, name) in [
        ("bert", "bert.pooler.dense.weight"),
        ("bert", "classifier.weight"),
        ("xlm_roberta", "classifier.dense.bias"),
        ("xlm_roberta", "classifier.out_proj.weight"),
    ] {
        let shown = name.strip_prefix("bert.").unwrap_or(name);
        let error = change(model, &|weights| weights.retain(|weight| weight.name != name));
        assert!(error.contains(shown) && error.contains("is missing"), "{error}");
        let error = change(model, &|weights| {
            let weight = weights.iter_mut().find(|weight| weight.name == name).expect("the tensor");
            weight.shape = vec![2, weight.shape.iter().product::<usize>() / 2];
        });
        assert!(error.contains(shown) && error.contains("shape"), "{error}");
    }
}

#[test]
fn a_model_without_a_head_gives_no_scores() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/encoder/bert");
    let encoder = load(&HfFolder::open(path).expect("the folder opens"));
    let text = EncoderText::new(&[2, 3]);
    let found = encoder.scores(&Compute::new(1).expect("kernels"), &mut EncoderWorkspace::new(), &[text]);
    assert!(matches!(found, Err(Error::NoHead)) && !encoder.has_head());
}

/// The vocabulary of the converted BERT with other metadata.
fn tokenizer_with(change: impl FnOnce(&mut Metadata)) -> Tokenizer {
    let mut metadata = converted("bert").metadata().clone();
    change(&mut metadata);
    let writer = Writer::new(Vec::new(), &metadata, []).expect("a header");
    let file = Gguf::from_owner(writer.finish().expect("complete")).expect("a valid file");
    Checkpoint::tokenizer(&file).expect("a tokenizer")
}

#[test]
fn the_separator_behind_a_text_does_not_depend_on_the_flag_of_pairs() {
    const KEY: &str = "tokenizer.ggml.add_sep_token";
    let ids = |tokenizer: &Tokenizer| tokenizer.encode_at_most("the cat", 10).expect("ids").0;
    assert_eq!(converted("bert").metadata().get_bool(KEY).ok(), Some(Some(false)));
    let expected = ids(&folder("bert").tokenizer().expect("a tokenizer"));
    assert_eq!(expected.len(), 4);
    for flag in [Some(false), Some(true), None] {
        let tokenizer = tokenizer_with(|metadata| match flag {
            Some(flag) => drop(metadata.insert(KEY, flag)),
            None => drop(metadata.remove(KEY)),
        });
        assert_eq!(ids(&tokenizer), expected, "{flag:?}");
        assert_encodes(&tokenizer, "bert");
    }
}
