//! Quantized models against float64 and the engine.

use std::ops::ControlFlow;

use ruvllm::{CancelToken, GenerateRequest, InferenceBackend, Recipe, SamplingParams, TokenId};
use ruvllm_testkit::{builtin_model, model_data};

use crate::support::{
    cpu, doubles, error, gpu, gpu_with, greedy_on_device, ids, options, prompt_logits, read_json,
};

/// Root mean square error of a logit from rounding activations to 8 bits: the CPU's bound.
const RMS: f64 = 0.08;

/// All formats with GPU kernels but `IQ4_NL`, and three that are stored as F16.
#[test]
fn mixes_are_within_the_rounding_of_activations() {
    let tensors = doubles(model_data("quant").join("expected.safetensors"));
    let expected = read_json(model_data("quant").join("expected.json"));
    for (mix, converted) in [
        ("Q8_0", false),
        ("Q4_0", false),
        ("Q4_K_M", false),
        ("Q5_K_M", false),
        ("IQ4_XS", true),
        ("Q3_K_M", true),
        ("Q2_K", true),
    ] {
        let Some(backend) = gpu(model_data("quant").join(format!("llama-{mix}.gguf"))) else { return };
        assert_eq!(!backend.converted().is_empty(), converted, "{mix}: {:?}", backend.converted());
        for prompt in expected["prompts"].as_array().expect("prompts") {
            let name = prompt["name"].as_str().expect("a name");
            let reference = &tensors[&format!("{mix}.{name}.last_logits_f64")];
            let found = prompt_logits(&backend, &ids(&prompt["ids"]), 512);
            let squares = found.iter().zip(reference).map(|(&f, &e)| (f64::from(f) - e).powi(2));
            let rms = (squares.sum::<f64>() / found.len() as f64).sqrt();
            println!("{mix} {name}: rms {rms:.4}");
            assert!(rms <= RMS, "{mix} {name}: rms error {rms}");
        }
    }
}

const TEXT: &str = "The borrow checker refuses this function because";

/// The built-in model: errors from 8-bit activations as large as the engine's, its greedy tokens,
/// its text. Rounding to 8 bits makes any small difference a large one, so that two ways to compute
/// the same model differ from each other as both do from exact products.
#[test]
fn the_built_in_model_writes_what_the_engine_writes() {
    let options = ruvllm::GpuOptions { context: Some(512), ..options() };
    let Some(backend) = gpu_with(builtin_model(), &options) else { return };
    let engine = cpu(builtin_model(), None);
    let prompt = engine.encode_prompt(&TEXT.into()).expect("tokens");
    let logits = |backend: &dyn InferenceBackend| prompt_logits(backend, &prompt, 512);
    // The same weights in F32, whose products do not round activations.
    let exact = logits(&cpu(builtin_model(), Recipe::from_name("F32")));
    let exact: Vec<f64> = exact.into_iter().map(f64::from).collect();
    let (expected, found) = (error(&logits(&engine), &exact), error(&logits(&backend), &exact));
    println!("built-in model beside exact products: engine {expected:.1e}, GPU {found:.1e}");
    assert!(found <= 2.0 * expected, "logits differ by {found}, the engine's by {expected}");

    // Tokens must agree where the engine's margin exceeds the rounding error.
    let (greedy, margins) = greedy_with_margins(&engine, &prompt, 32);
    let differ = greedy_on_device(&backend, &prompt, 32).iter().zip(&greedy).position(|(a, b)| a != b);
    assert!(differ.is_none_or(|at| margins[at] <= 2.0 * expected), "{differ:?}, margins {margins:?}");
    if differ.is_some() {
        return;
    }
    let request = GenerateRequest::new(TEXT).with_max_tokens(24).with_sampling(SamplingParams::greedy());
    let text = |backend: &dyn InferenceBackend| {
        let go_on = &mut |_: &str| ControlFlow::Continue(());
        backend.generate_with(&request, &CancelToken::new(), go_on).expect("text").text
    };
    assert_eq!(text(&backend), text(&engine));
}

/// Greedy tokens, each with its margin to the second best as a share of the largest magnitude.
fn greedy_with_margins(
    backend: &dyn InferenceBackend,
    prompt: &[TokenId],
    n: usize,
) -> (Vec<TokenId>, Vec<f64>) {
    let mut session = backend.session(prompt.len() + n).expect("a sequence");
    let (mut tokens, mut margins, mut next) = (Vec::new(), Vec::new(), prompt.to_vec());
    while tokens.len() < n {
        let logits = session.forward(&next).expect("logits");
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let largest = logits.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
        margins.push(f64::from((logits[order[0]] - logits[order[1]]) / largest));
        tokens.push(order[0] as TokenId);
        next = vec![order[0] as TokenId];
    }
    (tokens, margins)
}
