//! Rerankers that answer `yes` or `no` against transformers in float64 (`tests/data/rerank/qwen3`),
//! as folders and as llama.cpp's converter writes them, and folders that are none.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, Metadata, TensorType};
use ruvllm_kernels::ThreadPool;
use ruvllm_models::quantize::{QuantizeOptions, Recipe, convert, quantize};
use ruvllm_models::{
    Checkpoint, Compute, Error, HfFolder, KvFormat, LogitsRows, Model, PagePool, Segment, Workspace,
    rerank_template,
};
use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::{PromptPart, Tokenizer};
use serde_json::{Value, json};

use crate::support::{Copy, Weight, assert_same_tensors, tiny};

/// Logits are of the order of 1; two layers and products of 32 values in f32.
const TOLERANCE: f64 = 1e-5;

/// Most tokens of a prompt in the reference.
const LIMIT: usize = 320;

const SCORES: &str = "cls.output.weight";

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/rerank/qwen3")
}

fn folder() -> HfFolder {
    HfFolder::open(data()).expect("the folder opens")
}

fn converted() -> Gguf {
    Gguf::open(data().join("converted.gguf")).expect("the file opens")
}

/// A copy of the folder in the form of a language model, with another card.
fn language_model(card: &str) -> Copy {
    let copy = Copy::of_folder(&data());
    copy.remove("modules.json");
    copy.remove("chat_template.jinja");
    fs::write(copy.path("README.md"), card).expect("written");
    copy
}

fn cases() -> Vec<Value> {
    let bytes = fs::read(data().join("expected.json")).expect("expected.json");
    serde_json::from_slice(&bytes).expect("a list")
}

fn ids(case: &Value) -> Vec<TokenId> {
    let ids = case["ids"].as_array().expect("ids").iter();
    ids.map(|id| id.as_u64().expect("an id") as TokenId).collect()
}

/// Logits of the reference's prompts.
fn logits(checkpoint: &dyn Checkpoint) -> Vec<f32> {
    let model = Model::load(checkpoint, &mut |_| ()).expect("it loads");
    let head = model.rank_head().expect("a head");
    let compute = Compute::new(1).expect("kernels");
    let pool = PagePool::new(ruvllm_memory::PoolConfig::new(32 << 20)).expect("a pool");
    let store = model.kv_store(&KvFormat::F32.into(), &pool).expect("a store");
    let mut workspace = Workspace::new();
    let mut logit = |case: &Value| {
        let mut cache = model.new_sequence(&store, LIMIT).expect("a cache");
        let ids = ids(case);
        let segment = Segment::new(&compute, &ids, &mut cache, LogitsRows::Last).expect("room");
        head.logit(model.hidden_states(&compute, &mut workspace, [segment]).expect("a state"))
    };
    cases().iter().map(&mut logit).collect()
}

#[track_caller]
fn assert_scores(checkpoint: &dyn Checkpoint) {
    for (found, case) in logits(checkpoint).into_iter().zip(cases()) {
        let expected = case["logit"].as_f64().expect("a logit");
        assert!((f64::from(found) - expected).abs() < TOLERANCE, "{found} {case}");
        let score = 1.0 / (1.0 + f64::exp(-f64::from(found)));
        assert!((score - case["score"].as_f64().expect("a score")).abs() < TOLERANCE, "{score} {case}");
    }
}

/// Keys by which llama.cpp knows a reranker.
fn keys(metadata: &Metadata) -> (u64, Vec<String>, Vec<String>, String) {
    let names = |key: &str| metadata.get_strings(key).expect("names").expect("the key").to_vec();
    (
        metadata.get_u64("qwen3.pooling_type").expect("a number").expect("the key"),
        names("qwen3.classifier.output_labels"),
        names("tokenizer.chat_templates"),
        metadata.get_str("tokenizer.chat_template.rerank").expect("a text").expect("the key").to_owned(),
    )
}

#[track_caller]
fn refused(copy: &Copy) -> String {
    copy.open().map(|_| ()).expect_err("refused").to_string()
}

#[test]
fn scores_are_those_of_transformers() {
    assert_scores(&folder());
}

#[test]
fn a_file_of_llama_cpp_is_the_folder() {
    let (folder, file) = (folder(), converted());
    assert_same_tensors(&folder, &file);
    assert_eq!(keys(folder.metadata()), keys(file.metadata()));
    assert_eq!(rerank_template(folder.metadata()).ok(), rerank_template(&Metadata::new()).ok());
    assert_scores(&file);
}

#[test]
fn a_converted_reranker_is_one_for_llama_cpp() {
    let output = tempfile::tempdir().expect("a folder");
    let (path, small) = (output.path().join("a.gguf"), output.path().join("b.gguf"));
    let pool = ThreadPool::new(1).expect("threads");
    convert(&folder(), &path, None, &pool, &mut |_| ControlFlow::Continue(())).expect("written");
    let file = Gguf::open(path).expect("a valid file");
    assert_eq!(keys(file.metadata()), keys(converted().metadata()));
    assert_same_tensors(&file, &converted());
    let bits = |logits: Vec<f32>| logits.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(logits(&file)), bits(logits(&folder())));
    // Rows that decide every score keep their type.
    let (recipe, options) = (Recipe::from_name("Q4_0").expect("a recipe"), QuantizeOptions::default());
    quantize(&file, &small, recipe, &options, &pool, &mut |_| ControlFlow::Continue(())).expect("written");
    let small = Gguf::open(small).expect("a valid file");
    let type_of = |name: &str| small.tensor(name).map(|tensor| tensor.tensor_type);
    assert_eq!(type_of(SCORES), Some(TensorType::F16));
    assert_eq!(type_of("blk.0.attn_q.weight"), Some(TensorType::Q4_0));
}

/// Ids of a prompt as a request has them.
fn encoded(tokenizer: &Tokenizer, case: &Value) -> (Vec<TokenId>, bool) {
    use PromptPart::{Template, Text};
    let folder = folder();
    let template = rerank_template(folder.metadata()).expect("a prompt");
    let (before, rest) = template.split_once("{query}").expect("a query");
    let (between, after) = rest.split_once("{document}").expect("a document");
    let usual = "Given a web search query, retrieve relevant passages that answer the query";
    let (system, line) = before.split_once(usual).expect("an instruction");
    let text = |key: &str| case[key].as_str().unwrap_or(usual);
    let parts =
        [Template(system), Text(text("instruction")), Template(line), Text(text("query")), Template(between)];
    let encoder = tokenizer.prompt_encoder(&parts, after).expect("ids");
    let pair = encoder.encode(text("document"), LIMIT).expect("ids");
    assert!(pair.tokens.ends_with(encoder.tail()) && pair.second_type == pair.tokens.len());
    let shortest = encoder.encode(text("document"), 0).expect("ids").tokens.len();
    assert_eq!(shortest, encoder.tokens_around(), "{case}");
    (pair.tokens, pair.truncated)
}

#[test]
fn prompts_are_encoded_as_by_the_tokenizers_library() {
    let tokenizers = [
        folder().tokenizer().expect("a tokenizer"),
        Checkpoint::tokenizer(&converted()).expect("a tokenizer"),
    ];
    for tokenizer in &tokenizers {
        for case in cases() {
            assert_eq!(encoded(tokenizer, &case), (ids(&case), case["truncated"] == true), "{case}");
        }
        // Tokens of such an end would depend on the document.
        let open = tokenizer.prompt_encoder(&[PromptPart::Template("q")], "\nanswer<|im_end|>");
        assert!(open.is_err_and(|error| error.to_string().contains("answer<|im_end|>")));
    }
}

#[test]
fn language_models_that_are_called_rerankers_are() {
    // The card behind its metadata, the name of the folder, that of its repository in a store.
    let copy = language_model("---\nlicense: apache-2.0\n---\n# Qwen3-Reranker-0.6B\n\nText.\n");
    assert_scores(&copy.open().expect("it opens"));
    assert_eq!(keys(copy.open().expect("it opens").metadata()), keys(converted().metadata()));
    let copy = language_model("# Another\nText of Qwen3-Reranker.\n");
    assert!(copy.open().expect("it opens").tensor(SCORES).is_none());
    let root = tempfile::tempdir().expect("a folder");
    for (path, ranks) in [
        ("my-qwen3-reranker", true),
        ("files/Qwen--Qwen3-Reranker-0.6B/0a1b2c", true),
        ("models--Qwen--Qwen3-Reranker-0.6B/snapshots/0a1b2c", true),
        ("about Qwen3-Reranker/0a1b2c", false),
        ("Qwen3-Embedding-0.6B", false),
    ] {
        let path = root.path().join(path);
        fs::create_dir_all(&path).expect("a folder");
        for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
            fs::copy(copy.path(file), path.join(file)).expect("a copy");
        }
        let folder = HfFolder::open(&path).expect("it opens");
        assert_eq!(folder.tensor(SCORES).is_some(), ranks, "{}", path.display());
    }
    // The chat template of a language model is no prompt of a reranker.
    let chat = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}";
    fs::write(copy.path("chat_template.jinja"), chat).expect("written");
    copy.set("_name_or_path", json!("Qwen/Qwen3-Reranker-4B"));
    assert_eq!(keys(copy.open().expect("it opens").metadata()), keys(converted().metadata()));
    assert_scores(&copy.open().expect("it opens"));
    // Of another family, and an embedding model in its folder.
    let llama = Copy::of("llama");
    fs::write(llama.path("README.md"), "# Qwen3-Reranker").expect("written");
    assert!(llama.open().expect("it opens").tensor(SCORES).is_none());
    let copy = Copy::of_folder(&tiny("../embed/qwen3"));
    fs::write(copy.path("README.md"), "# Qwen3-Reranker").expect("written");
    assert!(copy.open().expect("it opens").tensor(SCORES).is_none());
}

#[test]
fn answers_are_rows_of_the_matrix_that_makes_the_logits() {
    let copy = Copy::of_folder(&data());
    let mut weights = copy.weights();
    let mut head: Weight =
        weights.iter().find(|weight| weight.name.contains("embed_tokens")).expect("it is there").clone();
    head.name = "lm_head.weight".to_owned();
    head.data.reverse();
    let row = |id: usize| head.data[id * 64..(id + 1) * 64].to_vec();
    let expected = [row(512), row(513)].concat();
    weights.push(head);
    copy.write("model.safetensors", &weights);
    copy.set("tie_word_embeddings", json!(false));
    let folder = copy.open().expect("it opens");
    let info = folder.tensor(SCORES).expect("it is there");
    assert_eq!(info.dims, [32, 2]);
    assert!(folder.data(info).expect("rows").as_ref() == expected);
}

#[test]
fn a_module_names_its_answers() {
    const FILE: &str = "1_LogitScore/config.json";
    let set = |key: &str, value: Value| {
        let copy = Copy::of_folder(&data());
        copy.edit(FILE, |map| drop(map.insert(key.to_owned(), value)));
        copy
    };
    let rows = |copy: &Copy| {
        let folder = copy.open().expect("it opens");
        folder.data(folder.tensor(SCORES).expect("it is there")).expect("rows").as_ref().to_vec()
    };
    let usual = rows(&Copy::of_folder(&data()));
    assert_eq!(rows(&set("false_token_id", json!(7)))[..64], usual[..64]);
    assert_ne!(rows(&set("false_token_id", json!(7)))[64..], usual[64..]);
    for (key, value, piece) in [
        ("false_token_id", json!(null), "compare two answers"),
        ("true_token_id", json!("yes"), "true_token_id"),
        ("true_token_id", json!(520), "520 tokens of the model"),
    ] {
        let error = refused(&set(key, value));
        assert!(error.contains(FILE) && error.contains(piece), "{error}");
    }
    // Answers of its own need a prompt that asks for them.
    let copy = set("true_token_id", json!(7));
    fs::write(copy.path("chat_template.jinja"), "{{ messages[0].content }}").expect("written");
    assert!(refused(&copy).contains("roles `query` and `document`"));
    let copy = Copy::of_folder(&data());
    copy.remove("chat_template.jinja");
    assert_scores(&copy.open().expect("it opens"));
}

#[test]
fn a_template_of_roles_is_the_prompt() {
    let copy = Copy::of_folder(&data());
    let template = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}?";
    fs::write(copy.path("chat_template.jinja"), template).expect("written");
    let expected = "<|im_start|>query {query}<|im_end|><|im_start|>document {document}<|im_end|>?";
    assert_eq!(rerank_template(copy.open().expect("it opens").metadata()).ok(), Some(expected));
}

#[test]
fn folders_without_the_answers_are_refused() {
    for token in ["yes", "no"] {
        let copy = language_model("# Qwen3-Reranker-0.6B");
        copy.edit("tokenizer.json", |map| {
            let model = map["model"].as_object_mut().expect("a model");
            let vocab = model["vocab"].as_object_mut().expect("a vocabulary");
            let id = vocab.remove(token).expect("the token");
            vocab.insert("zzz".to_owned(), id);
            model["merges"].as_array_mut().expect("merges").retain(|merge| {
                let halves: Vec<&str> = match merge {
                    Value::String(merge) => merge.split(' ').collect(),
                    merge => merge.as_array().expect("two").iter().filter_map(Value::as_str).collect(),
                };
                halves.concat() != token
            });
        });
        let error = copy.open().map(|_| ()).expect_err("refused");
        assert!(matches!(error, Error::NoAnswerToken { token: found } if found == token), "{error}");
    }
    let copy = Copy::of("llama");
    fs::copy(data().join("modules.json"), copy.path("modules.json")).expect("a copy");
    assert!(refused(&copy).contains("LogitScore of a Qwen 3"));
}
