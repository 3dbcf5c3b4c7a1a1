//! Comparison with the engine on the same file.

use std::ops::ControlFlow;

use ruvllm::{Engine, EngineOptions, GpuBackend, InferenceBackend, Recipe, TokenId};
use serde_json::json;

use crate::Failure;
use crate::args::Args;
use crate::figures::Figures;

/// Prompt tokens and greedy tokens that are compared.
const PROMPT: usize = 40;
const GREEDY: usize = 24;

/// Tokens of the longest comparison.
pub(crate) const CHECK_CONTEXT: usize = PROMPT + GREEDY + 300;

/// Largest difference of a logit, as a share of the largest logit, that passes. Tokens bind where
/// the engine's margin between the two best logits exceeds the difference.
const TOLERANCE: f64 = 0.05;

/// Compares logits after prompts of several lengths, then greedy tokens.
pub(crate) fn compare(args: &Args, backend: &GpuBackend, figures: &mut Figures) -> Result<bool, Failure> {
    let context = CHECK_CONTEXT;
    // Keys and values are rounded as on the device.
    let kv = Some("f16".parse()?);
    let options = EngineOptions::default().with_threads(args.threads).with_context(context).with_kv(kv);
    let engine = Engine::load(&args.model.clone().into(), &options, &mut |_| ())?;
    let prompt = tokens(backend, context - GREEDY);
    if args.exact {
        let options = options.with_quantize(Recipe::from_name("F32"));
        let exact = Engine::load(&args.model.clone().into(), &options, &mut |_| ())?;
        let logits = |backend: &dyn InferenceBackend| -> Result<Vec<f32>, Failure> {
            Ok(backend.session(PROMPT)?.forward(&prompt[..PROMPT])?.to_vec())
        };
        let expected = logits(&exact)?;
        for (name, found) in [("engine", logits(&engine)?), ("gpu", logits(backend)?)] {
            let difference = difference(&format!("{PROMPT} prompt tokens, {name}, exact"), &found, &expected);
            figures.set(&format!("{name}_difference_from_exact"), json!(difference));
        }
    }
    let mut worst = 0.0_f64;
    for n in [1, PROMPT, prompt.len()] {
        let mut cpu = InferenceBackend::session(&engine, n)?;
        let mut gpu = backend.gpu_session(n)?;
        let expected = cpu.forward(&prompt[..n])?;
        let found = ruvllm::BackendSession::forward(&mut gpu, &prompt[..n])?;
        worst = worst.max(difference(&format!("{n} prompt tokens"), found, expected));
    }
    let prompt = &prompt[..PROMPT];
    let mut cpu = InferenceBackend::session(&engine, PROMPT + GREEDY)?;
    let (mut expected, mut margins) = (Vec::new(), Vec::new());
    let mut next = prompt.to_vec();
    while expected.len() < GREEDY {
        let (token, margin) = best(cpu.forward(&next)?);
        expected.push(token);
        margins.push(margin);
        next = vec![token];
    }
    let mut found = Vec::new();
    backend.gpu_session(PROMPT + GREEDY)?.greedy(prompt, GREEDY, &mut |token| {
        found.push(token);
        ControlFlow::Continue(())
    })?;
    let differ = expected.iter().zip(&found).position(|(a, b)| a != b);
    let close = differ.is_some_and(|at| margins[at] <= 2.0 * worst);
    println!("greedy tokens of the engine: {expected:?}");
    println!("greedy tokens of the GPU:    {found:?}");
    match differ {
        None => println!("all {GREEDY} greedy tokens are equal"),
        Some(at) => println!(
            "token {at} differs; the engine's margin there is {:.1e} of the largest logit ({})",
            margins[at],
            if close { "a closer call than the rounding" } else { "WRONG" }
        ),
    }
    let agrees = worst <= TOLERANCE && (differ.is_none() || close);
    println!(
        "largest difference: {worst:.2e} of the largest logit; {}",
        if agrees { "ok" } else { "FAILED" }
    );
    figures.set("logits_max_difference", json!(worst));
    figures.set("greedy_tokens_equal", json!(differ.unwrap_or(GREEDY)));
    figures.set("agrees", json!(agrees));
    Ok(agrees)
}

/// Ids spread over the vocabulary.
pub(crate) fn tokens(backend: &GpuBackend, n: usize) -> Vec<TokenId> {
    let ids = backend.config().vocab_size as u64;
    (0..n as u64).map(|i| ((i * 2_654_435_761 + 12_345) % ids) as TokenId).collect()
}

/// Largest difference as a share of the largest logit; also prints the root mean square.
fn difference(name: &str, found: &[f32], expected: &[f32]) -> f64 {
    let largest = expected.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
    let errors = || found.iter().zip(expected).map(|(a, b)| f64::from(a - b) / f64::from(largest));
    let worst = errors().fold(0.0, |a: f64, e| if e.is_nan() { f64::INFINITY } else { a.max(e.abs()) });
    let rms = (errors().map(|e| e * e).sum::<f64>() / found.len() as f64).sqrt();
    println!(
        "logits after {name}: largest difference {worst:.2e}, rms {rms:.2e} of the largest logit {largest:.2}"
    );
    worst
}

/// The largest logit and its margin, as a share of the largest magnitude.
fn best(logits: &[f32]) -> (TokenId, f64) {
    let top = (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
    let others = logits.iter().enumerate().filter(|(i, _)| *i != top);
    let second = others.fold(f32::NEG_INFINITY, |a, (_, &b)| a.max(b));
    let largest = logits.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
    (top as TokenId, f64::from((logits[top] - second) / largest))
}
