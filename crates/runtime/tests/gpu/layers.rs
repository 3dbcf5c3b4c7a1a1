//! Layers whose weights lie in memory of the host.

use std::ops::ControlFlow;

use ruvllm::{
    CancelToken, GenerateRequest, GpuBackend, GpuOptions, InferenceBackend, Prompt, SamplingParams, TokenId,
};
use ruvllm_testkit::model_data;

use crate::support::{chain, gpu_with, greedy_on_device, options, prompt_logits, tiny, try_load};

fn prompt(len: usize) -> Vec<TokenId> {
    (0..len).map(|i| ((i * 37) % 500 + 3) as TokenId).collect()
}

/// Greedy and sampled texts of requests that run at once.
fn texts(backend: &GpuBackend) -> Vec<Vec<TokenId>> {
    let request = |index: usize| {
        let is_greedy = index.is_multiple_of(2);
        let sampling = if is_greedy { SamplingParams::greedy() } else { SamplingParams::default() };
        let request = GenerateRequest::new(Prompt::Tokens(prompt(5 + 9 * index))).with_max_tokens(12);
        request.with_sampling(sampling).with_seed(index as u64).with_ignore_eos(true)
    };
    let requests: Vec<_> = (0..11).map(request).collect();
    let results = backend
        .generate_many(&requests, &CancelToken::new(), &mut |_, _| ControlFlow::Continue(()))
        .expect("they run");
    results.into_iter().map(|result| result.unwrap_or_else(|e| panic!("{}", chain(&e))).tokens).collect()
}

/// Prompts, whose products copy the weights, batches and single sequences, which read them where
/// they are.
#[test]
fn layers_in_memory_of_the_host_give_the_same_bits() {
    let (quantized, biased) =
        (model_data("quant").join("llama-Q4_K_M.gguf"), tiny("qwen2", "model-F16.gguf"));
    for (model, path) in [("llama", quantized), ("qwen2", biased)] {
        let options = GpuOptions { sequences: 11, context: Some(256), ..options() };
        let Some(whole) = gpu_with(path.clone(), &options) else { return };
        assert_eq!((whole.host_layers(), whole.host_weight_bytes()), (0, 0));
        let layers = whole.config().n_layers;
        let logits = |backend: &GpuBackend| prompt_logits(backend, &prompt(70), 64);
        let greedy = |backend: &GpuBackend| greedy_on_device(backend, &prompt(20), 12);
        let expected = (logits(&whole), greedy(&whole), texts(&whole));
        for on_device in [0, 1, layers, layers + 90] {
            let options = GpuOptions { layers: Some(on_device), ..options.clone() };
            let Some(backend) = gpu_with(path.clone(), &options) else { return };
            assert_eq!(backend.host_layers(), layers.saturating_sub(on_device), "{model}");
            let all = backend.weight_bytes() + backend.host_weight_bytes();
            assert_eq!(all, whole.weight_bytes(), "{model}, {on_device} layers");
            assert_eq!(backend.host_weight_bytes() > 0, on_device < layers);
            assert!(
                (logits(&backend), greedy(&backend), texts(&backend)) == expected,
                "{model}, {on_device}"
            );
        }
    }
}

#[test]
fn experts_in_memory_of_the_host_give_the_same_bits() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = crate::families::form_options(folder.path());
    let prompt = |len: usize| (0..len).map(|i| (i * 37 % 70) as TokenId).collect::<Vec<_>>();
    // With a gate and without, beside networks and in layers of one part.
    for name in ["qwen3moe", "nemotron_h", "nemotron_h_moe"] {
        let path = model_data("forms").join(name);
        let Some(whole) = gpu_with(path.clone(), &options) else { return };
        let expected = (prompt_logits(&whole, &prompt(40), 32), greedy_on_device(&whole, &prompt(4), 8));
        let host = GpuOptions { layers: Some(0), ..options.clone() };
        let Some(backend) = gpu_with(path, &host) else { return };
        assert_eq!(backend.host_layers(), whole.config().n_layers);
        let found = (prompt_logits(&backend, &prompt(40), 32), greedy_on_device(&backend, &prompt(4), 8));
        assert!(found == expected, "{name}");
    }
}

/// Greedy tokens behind a prompt, or the reason that there are none.
fn texts_of(backend: &GpuBackend, prompt_len: usize, n: usize) -> Result<Vec<TokenId>, String> {
    let mut session = backend.gpu_session(prompt_len + n).map_err(|error| chain(&error))?;
    let mut tokens = Vec::new();
    let on_token = &mut |token| {
        tokens.push(token);
        ControlFlow::Continue(())
    };
    session.greedy(&prompt(prompt_len), n, on_token).map_err(|error| chain(&error))?;
    Ok(tokens)
}

/// Smaller and smaller budgets move layers to memory of the host, until not even the rest fits.
#[test]
fn a_budget_decides_on_the_layers_that_fit() {
    let path = tiny("llama", "model-F16.gguf");
    let Some(whole) = gpu_with(path.clone(), &options()) else { return };
    let (expected, layers) = (greedy_on_device(&whole, &prompt(300), 4), whole.config().n_layers);
    let (mut budget, weights) = (whole.device_bytes(), whole.weight_bytes());
    drop(whole);
    let mut on_host = vec![0];
    loop {
        let tight = GpuOptions { budget: Some(budget), ..options() };
        let Some(result) = try_load(path.clone().into(), &tight) else { return };
        let backend = match result {
            Ok(backend) => backend,
            Err(error) => {
                assert!(chain(&error).contains("GPU memory budget is full"), "{}", chain(&error));
                break;
            }
        };
        if backend.host_layers() > on_host[on_host.len() - 1] {
            on_host.push(backend.host_layers());
            match texts_of(&backend, 300, 4) {
                Ok(found) => assert_eq!(found, expected, "{on_host:?}"),
                // The longest prompts have no room beside no layer at all.
                Err(error) => {
                    assert!(error.contains("GPU memory budget is full"), "{error}");
                    assert_eq!(backend.host_layers(), layers, "{error}");
                }
            }
            let memory = backend.device_memory().expect("a device");
            assert!(memory.used <= budget && memory.weights == backend.weight_bytes(), "{memory:?}");
            assert_eq!(backend.weight_bytes() + backend.host_weight_bytes(), weights);
            let all = GpuOptions { layers: Some(layers), ..tight };
            // All layers leave no room for the largest pass, or none for themselves.
            if let Some(Err(error)) = try_load(path.clone().into(), &all) {
                assert!(chain(&error).contains("GPU memory budget is full"), "{}", chain(&error));
            }
        }
        budget -= weights / 6;
    }
    assert!(on_host.len() > 1 && on_host.is_sorted(), "{on_host:?} of {layers}");
}
