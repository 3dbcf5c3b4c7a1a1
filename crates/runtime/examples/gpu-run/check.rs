//! Comparison with the engine on the same file.

use std::ops::ControlFlow;

use ruvllm::{Engine, EngineOptions, GpuBackend, InferenceBackend, Recipe, TokenId};
use serde_json::json;

use crate::Failure;
use crate::args::Args;
use crate::figures::Figures;

/// Compared prompt tokens and greedy tokens.
const PROMPT: usize = 40;
const GREEDY: usize = 24;

/// Tokens of the longest comparison.
pub(crate) const CHECK_CONTEXT: usize = PROMPT + GREEDY + 300;

/// Tolerated error of the GPU, as a multiple of the engine's. Reference of both: the engine with
/// the same weights in F32, whose products do not round activations. The maximum over some hundred
/// thousand logits scatters more than the root mean square.
const MAX_FACTOR: f64 = 2.0;
const RMS_FACTOR: f64 = 1.25;

/// Tolerated absolute error: rounding of probabilities and sums on the GPU. The float64 goldens of
/// the families hold within it.
const FLOOR: Difference = Difference { max: 2e-3, rms: 5e-4 };

/// Difference of logits as a share of the largest logit.
#[derive(Debug, Clone, Copy)]
struct Difference {
    max: f64,
    rms: f64,
}

/// Compares logits after prompts of several lengths, then greedy tokens. A different token fails
/// only if the engine's margin between its two best logits exceeds the difference of engine and
/// GPU.
pub(crate) fn compare(args: &Args, backend: &GpuBackend, figures: &mut Figures) -> Result<bool, Failure> {
    let context = CHECK_CONTEXT;
    // F16 as on the device.
    let kv = Some("f16".parse()?);
    let options = EngineOptions::default().with_threads(args.threads).with_context(context).with_kv(kv);
    let load = |options: &EngineOptions| Engine::load(&args.model.clone().into(), options, &mut |_| ());
    let engine = load(&options)?;
    let exact = load(&options.clone().with_quantize(Recipe::from_name("F32")))?;
    let prompt = tokens(backend, context - GREEDY);
    let (mut worst, mut within) = (0.0_f64, true);
    for n in [1, PROMPT, prompt.len()] {
        let logits = |backend: &dyn InferenceBackend| -> Result<Vec<f32>, Failure> {
            Ok(backend.session(n)?.forward(&prompt[..n])?.to_vec())
        };
        let (expected, cpu, gpu) = (logits(&exact)?, logits(&engine)?, logits(backend)?);
        println!("logits after {n} prompt tokens, as shares of the largest:");
        let own = difference("  engine and F32", &cpu, &expected);
        let found = difference("  GPU and F32", &gpu, &expected);
        within &=
            found.max <= MAX_FACTOR * own.max + FLOOR.max && found.rms <= RMS_FACTOR * own.rms + FLOOR.rms;
        let both = difference("  GPU and engine", &gpu, &cpu);
        worst = worst.max(both.max);
        figures.set(
            &format!("difference at {n}"),
            json!({
                "engine": { "max": own.max, "rms": own.rms },
                "gpu": { "max": found.max, "rms": found.rms },
                "between": { "max": both.max, "rms": both.rms },
            }),
        );
    }
    drop(exact);
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
    let agrees = within && (differ.is_none() || close);
    println!(
        "the GPU's error is {} {MAX_FACTOR} times the engine's ({RMS_FACTOR} times in the mean square); {}",
        if within { "within" } else { "beyond" },
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

/// Computes and prints a difference.
fn difference(name: &str, found: &[f32], expected: &[f32]) -> Difference {
    let largest = expected.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
    let errors = || found.iter().zip(expected).map(|(a, b)| f64::from(a - b) / f64::from(largest));
    let max = errors().fold(0.0, |a: f64, e| if e.is_nan() { f64::INFINITY } else { a.max(e.abs()) });
    let rms = (errors().map(|e| e * e).sum::<f64>() / found.len() as f64).sqrt();
    println!("{name}: at most {max:.2e}, rms {rms:.2e}");
    Difference { max, rms }
}

/// The largest logit and its margin, as a share of the largest magnitude.
fn best(logits: &[f32]) -> (TokenId, f64) {
    let top = (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
    let others = logits.iter().enumerate().filter(|(i, _)| *i != top);
    let second = others.fold(f32::NEG_INFINITY, |a, (_, &b)| a.max(b));
    let largest = logits.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
    (top as TokenId, f64::from((logits[top] - second) / largest))
}
