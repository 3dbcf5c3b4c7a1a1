//! Model sources behind features: the built-in model, names of the model store.

use std::error::Error as _;
use std::fs;

use ruvllm::{Engine, EngineOptions, Error, GenerateRequest, ModelSource, SamplingParams, Store};
use ruvllm_testkit::model_data;

#[test]
fn builtin_model_generates() {
    let engine = Engine::builtin().expect("the model loads");
    let request = GenerateRequest::new("Once upon a time").with_max_tokens(4);
    let completion = engine.generate(request.with_sampling(SamplingParams::greedy())).expect("text");
    assert_eq!(completion.tokens.len(), 4);
    assert_eq!(ModelSource::builtin().to_string(), "base-q8_0");
}

#[test]
fn names_of_the_store_are_sources() {
    let home = tempfile::tempdir().expect("a folder");
    let store = Store::new(home.path());
    let error = ModelSource::from_store(&store, "small").expect_err("the store is empty");
    assert!(matches!(&error, Error::Store { name, .. } if name == "small"), "{error:?}");
    assert!(error.source().is_some_and(|source| source.to_string().contains("small")));

    // The layout of a pulled model: a manifest and its file.
    let folder = home.path().join("files/o--r/c0ffee");
    fs::create_dir_all(&folder).expect("a folder");
    fs::copy(model_data("tiny").join("llama/model-F16.gguf"), folder.join("m.gguf")).expect("a copy");
    fs::create_dir(home.path().join("manifests")).expect("a folder");
    let manifest = r#"{"version": 1, "name": "small", "source": "hf://o/r/m.gguf",
        "endpoint": "https://huggingface.co", "commit": "c0ffee", "model": "m.gguf", "pulled_unix": 0,
        "files": [{"path": "m.gguf", "bytes": 1, "sha256": null}]}"#;
    fs::write(home.path().join("manifests/small.json"), manifest).expect("a manifest");
    let source = ModelSource::from_store(&store, "small").expect("a stored model");
    let options = EngineOptions::default().with_threads(1);
    assert!(Engine::open_with(source, &options).is_ok());
}
