//! Logits and greedy tokens of all families against float64 transformers.

use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;

use ruvllm::{GpuOptions, InferenceBackend, TokenId};
use ruvllm_testkit::model_data;
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::support::{
    TOLERANCE, doubles, error, gpu, gpu_with, greedy_on_device, greedy_on_host, ids, options, read_json, tiny,
};

/// A prompt with its expected outputs.
pub(crate) struct Case {
    pub(crate) tokens: Vec<TokenId>,
    /// Positions with logits.
    positions: Vec<usize>,
    /// `[positions, vocab_size]`.
    pub(crate) logits: Vec<f64>,
    greedy: Vec<TokenId>,
}

/// A tiny model's prompts with the reference of its file in F16.
pub(crate) fn prompts(name: &str) -> Vec<Case> {
    let expected = read_json(tiny(name, "expected.json"));
    let tensors = doubles(tiny(name, "expected.safetensors"));
    let variant = expected["gguf_variant"]["model-F16.gguf"].as_str().expect("a variant");
    let prompt = |prompt: &Value| {
        let reference = &prompt["variants"][variant];
        let logits = reference["logits_f64_tensor"].as_str().expect("a name");
        Case {
            tokens: ids(&prompt["ids"]),
            positions: ids(&prompt["positions"]).into_iter().map(|p| p as usize).collect(),
            logits: tensors[logits].clone(),
            greedy: ids(&reference["greedy"]),
        }
    };
    expected["prompts"].as_array().expect("prompts").iter().map(prompt).collect()
}

/// Compares logits at positions of prompts, and greedy tokens decoded on the device.
fn family(name: &str) {
    let options = GpuOptions { context: None, ..options() };
    let Some(backend) = gpu_with(tiny(name, "model-F16.gguf"), &options) else { return };
    assert!(backend.converted().is_empty());
    let vocab = backend.config().vocab_size;
    let mut largest = 0.0_f64;
    for Case { tokens, positions, logits, greedy } in prompts(name) {
        for (&position, expected) in positions.iter().zip(logits.chunks_exact(vocab)) {
            // The capacity selects the frequencies of LongRoPE.
            let mut session = backend.gpu_session(tokens.len() + greedy.len()).expect("a sequence");
            let found = ruvllm::BackendSession::forward(&mut session, &tokens[..=position]).expect("logits");
            let error = error(found, expected);
            largest = largest.max(error);
            assert!(error <= TOLERANCE, "{name}: logits at {position} of {}: {error}", tokens.len());
        }
        let found = greedy_on_device(&backend, &tokens, greedy.len());
        assert_eq!(found, greedy, "{name}, {} tokens", tokens.len());
    }
    println!("{name}: largest error {largest:.1e} of the largest logit");
}

#[test]
fn llama() {
    family("llama");
}

#[test]
fn llama_yarn() {
    family("llama_yarn");
}

#[test]
fn mistral() {
    family("mistral");
}

#[test]
fn qwen2() {
    family("qwen2");
}

#[test]
fn qwen3() {
    family("qwen3");
}

#[test]
fn phi3() {
    family("phi3");
}

#[test]
fn gemma2() {
    family("gemma2");
}

#[test]
fn gemma3() {
    family("gemma3");
}

/// Token by token, as decode computes them.
#[test]
fn decoded_tokens_have_the_logits_of_prompts() {
    for name in ["llama", "gemma2", "qwen3"] {
        let Some(backend) = gpu(tiny(name, "model-F16.gguf")) else { return };
        let vocab = backend.config().vocab_size;
        let Case { tokens, positions, logits, greedy } = prompts(name).swap_remove(1);
        let mut session = backend.session(tokens.len()).expect("a sequence");
        for (position, &token) in tokens.iter().enumerate() {
            let found = session.forward(&[token]).expect("logits");
            if let Some(at) = positions.iter().position(|&p| p == position) {
                let error = error(found, &logits[at * vocab..][..vocab]);
                assert!(error <= TOLERANCE, "{name}: logits at {position}: {error}");
            }
        }
        let mut session = backend.session(tokens.len() + greedy.len()).expect("a sequence");
        assert_eq!(greedy_on_host(&mut *session, &tokens, greedy.len()), greedy, "{name}");
    }
}

/// Forms of published configurations, read from folders.
#[test]
fn forms() {
    let form = |name: &str| -> PathBuf { model_data("forms").join(name) };
    // The folders have no tokenizer, and their tokens are numbers.
    let folder = tempfile::tempdir().expect("a folder");
    let tokenizer = folder.path().join("tokenizer.json");
    let model = json!({ "type": "WordLevel", "vocab": { "a": 0, "b": 1 }, "unk_token": "a" });
    let text = json!({ "version": "1.0", "added_tokens": [], "model": model }).to_string();
    fs::write(&tokenizer, text).expect("written");
    let mut seen = 0;
    for entry in fs::read_dir(form("")).expect("the forms") {
        let path = entry.expect("an entry").path();
        if !path.is_dir() {
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let options = GpuOptions { context: None, tokenizer: Some(tokenizer.clone()), ..options() };
        let Some(result) = crate::support::try_load(path.clone().into(), &options) else { return };
        let backend = result.unwrap_or_else(|error| panic!("{name}: {}", crate::support::chain(&error)));
        let (tokens, expected) = form_reference(&path);
        let vocab = backend.config().vocab_size;
        for (row, expected) in expected.chunks_exact(vocab).enumerate() {
            if row * 5 >= backend.context_length() {
                println!("{name}: the context ends at {}", backend.context_length());
                break;
            }
            // The capacity selects the frequencies of LongRoPE.
            let capacity = tokens.len().min(backend.context_length());
            let mut session = backend.session(capacity).expect("a sequence");
            let go_on = &mut || ControlFlow::Continue(());
            let found = session.prefill(&tokens[..=row * 5], 7, go_on).expect("logits");
            let error = error(found.expect("not cancelled"), expected);
            assert!(error <= TOLERANCE, "{name}: logits at {}: {error}", row * 5);
        }
        seen += 1;
    }
    assert_eq!(seen, 11, "forms");
}

/// The prompt of a form, and the logits at every fifth position.
fn form_reference(path: &std::path::Path) -> (Vec<TokenId>, Vec<f64>) {
    let bytes = fs::read(path.join("expected.safetensors")).expect("the logits");
    let file = SafeTensors::deserialize(&bytes).expect("a valid file");
    let data = file.tensor("ids").expect("the ids").data();
    let tokens = data.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect();
    (tokens, doubles(path.join("expected.safetensors")).remove("logits").expect("the logits"))
}
