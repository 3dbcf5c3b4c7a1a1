//! Logits and greedy tokens of all families against float64 transformers.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use ruvllm::{Engine, EngineOptions, GpuOptions, InferenceBackend, KvPolicy, TokenId};
use ruvllm_testkit::model_data;
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::support::{
    doubles, error, gpu, gpu_with, greedy_on_device, greedy_on_host, has_matrix_instructions, ids, leaves,
    options, prompt_logits, read_json, tiny, tolerance,
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
            assert!(error <= tolerance(), "{name}: logits at {position} of {}: {error}", tokens.len());
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
                assert!(error <= tolerance(), "{name}: logits at {position}: {error}");
            }
        }
        let mut session = backend.session(tokens.len() + greedy.len()).expect("a sequence");
        assert_eq!(greedy_on_host(&mut *session, &tokens, greedy.len()), greedy, "{name}");
    }
}

/// Forms of published configurations that the kernels have.
const FORMS: [&str; 51] = [
    "deepseek2",
    "deepseek3",
    "exaone4",
    "exaone4_full",
    "falcon_h1",
    "falcon_h1_normed",
    "gemma",
    "gemma2_without_caps",
    "gemma3_every_third",
    "gemma3_transformers5",
    "gemma3n",
    "gemma3n_widths",
    "gemma4_alike",
    "gemma4_keys",
    "gemma4_moe",
    "gemma4_shared",
    "glm4",
    "glm4moe",
    "glm4moe_plain",
    "gpt_oss",
    "granite",
    "granitehybrid",
    "granitehybrid_attention",
    "granitehybrid_moe",
    "granitemoe",
    "granitemoeshared",
    "lfm2",
    "llama4",
    "llama4_dense",
    "llama_biases",
    "llama_dynamic",
    "ministral3",
    "mistral3",
    "mistral4",
    "mixtral",
    "nemotron_h",
    "nemotron_h_moe",
    "olmo2",
    "olmo3",
    "olmoe",
    "phi3_partial",
    "phimoe",
    "qwen2_windows_above",
    "qwen2moe",
    "qwen35",
    "qwen35moe",
    "qwen3_listed_windows",
    "qwen3moe",
    "qwen3moe_fused",
    "qwen3next",
    "smollm3",
];

/// A form whose products round their inputs to 8 bits, on the GPU as in the engine.
const ROUNDED: &str = "gpt_oss_mxfp4";

/// Forms with single positions of larger errors on devices with matrix instructions (2.1e-2 at one
/// of eight, 1e-3 beside it), as where activations in F16 make a router choose another expert; in
/// times of the tolerance.
const AMPLIFIED: [(&str, f64); 1] = [("qwen3next", 6.0)];

/// Forms with larger errors by keys and values in F16 alone: 1.0e-2 at one position of Gemma 3n on
/// the CPU, from which the GPU differs by 1.4e-3 at most (`differing.rs`); in times of the
/// tolerance.
const KEYS_AMPLIFIED: [(&str, f64); 1] = [("gemma3n", 6.0)];

pub(crate) fn form(name: &str) -> PathBuf {
    model_data("forms").join(name)
}

/// Options for folders, which have no tokenizer: their tokens are numbers.
pub(crate) fn form_options(folder: &Path) -> GpuOptions {
    let tokenizer = folder.join("tokenizer.json");
    let model = json!({ "type": "WordLevel", "vocab": { "a": 0, "b": 1 }, "unk_token": "a" });
    let text = json!({ "version": "1.0", "added_tokens": [], "model": model }).to_string();
    fs::write(&tokenizer, text).expect("written");
    GpuOptions { context: None, tokenizer: Some(tokenizer), ..options() }
}

/// Logits behind prompts of every fifth length, and greedy tokens.
#[test]
fn forms() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = form_options(folder.path());
    let mut beyond = Vec::new();
    for name in FORMS {
        let Some(backend) = gpu_with(form(name), &options) else { return };
        let Form { tokens, logits, greedy } = Form::read(name);
        let vocab = backend.config().vocab_size;
        let mut largest = 0.0_f64;
        for (row, expected) in logits.chunks_exact(vocab).enumerate() {
            // The capacity selects the frequencies of LongRoPE.
            let mut session = backend.session(tokens.len()).expect("a sequence");
            let go_on = &mut || ControlFlow::Continue(());
            let found = session.prefill(&tokens[..=row * 5], 7, go_on).expect("logits");
            largest = largest.max(error(found.expect("not cancelled"), expected));
        }
        println!("{name}: largest error {largest:.1e} of the largest logit");
        let times =
            AMPLIFIED.iter().find(|(amplified, _)| *amplified == name).map_or(1.0, |(_, times)| *times);
        let by_keys = KEYS_AMPLIFIED.iter().find(|(amplified, _)| *amplified == name);
        let tolerance = by_keys.map_or(1.0, |(_, times)| *times) * tolerance();
        let tolerance = if has_matrix_instructions() { times * tolerance } else { tolerance };
        if largest > tolerance {
            beyond.push(format!("{name}: {largest:.1e}"));
        }
        if has_matrix_instructions() && backend.config().decoder.experts.is_some() {
            // Where a router chooses another expert, later tokens are others.
            continue;
        }
        let mut session = backend.session(tokens.len() + greedy.len()).expect("a sequence");
        let margin = if has_matrix_instructions() { 2.0 * tolerance } else { 0.0 };
        if let Some(at) = leaves(&mut *session, &tokens, &greedy, margin) {
            beyond.push(format!("{name}: greedy token {at}"));
        }
    }
    assert!(beyond.is_empty(), "{beyond:?}");
}

/// Token by token, as decode computes them.
#[test]
fn decoded_tokens_of_forms_have_the_logits_of_prompts() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = form_options(folder.path());
    let mixtures = [
        "deepseek3",
        "glm4moe",
        "gpt_oss",
        "granitemoeshared",
        "llama4",
        "mistral4",
        "olmoe",
        "phimoe",
        "qwen2moe",
        "qwen3moe",
    ];
    let with_states = [
        "falcon_h1",
        "granitehybrid",
        "granitehybrid_moe",
        "lfm2",
        "nemotron_h",
        "nemotron_h_moe",
        "qwen35",
        "qwen3next",
    ];
    let differing = ["gemma3n", "gemma4_moe", "gemma4_shared"];
    for name in mixtures.into_iter().chain(with_states).chain(differing) {
        let Some(backend) = gpu_with(form(name), &options) else { return };
        let Form { tokens, logits, .. } = Form::read(name);
        let vocab = backend.config().vocab_size;
        let mut session = backend.session(tokens.len()).expect("a sequence");
        for (position, &token) in tokens.iter().enumerate() {
            let found = session.forward(&[token]).expect("logits");
            if position % 5 == 0 {
                let error = error(found, &logits[position / 5 * vocab..][..vocab]);
                let by_keys = KEYS_AMPLIFIED.iter().find(|(amplified, _)| *amplified == name);
                let tolerance = by_keys.map_or(1.0, |(_, times)| *times) * tolerance();
                assert!(error <= tolerance, "{name}: logits at {position}: {error}");
            }
        }
    }
}

/// Weights in MXFP4: beside the float64 values of the same weights the GPU has at most twice the
/// error of the engine, which rounds the same inputs.
#[test]
fn experts_in_mxfp4_have_the_error_of_the_engine() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = form_options(folder.path());
    let Some(backend) = gpu_with(form(ROUNDED), &options) else { return };
    assert!(!backend.converted().iter().any(|name| name.contains("exps")), "{:?}", backend.converted());
    let engine = EngineOptions::default()
        .with_threads(2)
        .with_kv("f32".parse::<KvPolicy>().expect("a policy"))
        .with_tokenizer(options.tokenizer.clone());
    let engine = Engine::load(&form(ROUNDED).into(), &engine, &mut |_| ()).expect("the engine loads it");
    let Form { tokens, logits, .. } = Form::read(ROUNDED);
    let vocab = backend.config().vocab_size;
    let largest = |backend: &dyn InferenceBackend| {
        let errors = logits
            .chunks_exact(vocab)
            .enumerate()
            .map(|(row, expected)| error(&prompt_logits(backend, &tokens[..=row * 5], 7), expected));
        errors.fold(0.0, f64::max)
    };
    let (found, usual) = (largest(&backend), largest(&engine));
    println!("{ROUNDED}: largest error {found:.1e}, of the engine {usual:.1e}");
    assert!(usual > tolerance() && found <= 2.0 * usual + tolerance(), "{found} {usual}");
}

#[test]
fn every_form_is_in_a_list() {
    let known: Vec<&str> = FORMS.into_iter().chain([ROUNDED]).collect();
    for entry in fs::read_dir(form("")).expect("the forms") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(!entry.path().is_dir() || known.contains(&name.as_str()), "{name} is in no list");
    }
}

/// The prompt of a form, the logits at every fifth position, and the greedy tokens behind it, of
/// which some references have none.
struct Form {
    tokens: Vec<TokenId>,
    logits: Vec<f64>,
    greedy: Vec<TokenId>,
}

impl Form {
    fn read(name: &str) -> Self {
        let path = form(name).join("expected.safetensors");
        let bytes = fs::read(&path).expect("the logits");
        let file = SafeTensors::deserialize(&bytes).expect("a valid file");
        let ids = |name: &str| {
            let data = file.tensor(name).map_or(&[][..], |tensor| tensor.data());
            data.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect::<Vec<_>>()
        };
        let logits = doubles(path).remove("logits").expect("the logits");
        let (tokens, greedy) = (ids("ids"), ids("greedy"));
        assert!(!tokens.is_empty() && (!greedy.is_empty() || name == "gpt_oss_mxfp4"), "{name}");
        Self { tokens, logits, greedy }
    }
}
