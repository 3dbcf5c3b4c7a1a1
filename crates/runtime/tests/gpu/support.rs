//! Backends, engines and expected outputs of the fixtures.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::LazyLock;

use ruvllm::{
    BackendSession, Engine, EngineOptions, Error, GpuBackend, GpuOptions, InferenceBackend, KvPolicy,
    ModelSource, Recipe, TokenId, gpu_adapters, gpu_choose,
};
use ruvllm_testkit::model_data;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// Largest error of a logit as a share of the largest logit's magnitude: rounding of keys and
/// values to F16 alone gives up to 1.6e-3 on the CPU.
const TOLERANCE: f64 = 2e-3;

/// The same on devices with matrix instructions, whose products round the activations of prompts to
/// F16 as well (ADR-0048): up to 4.3e-3 on an H200, of forms with F16 weights.
const MATRIX_TOLERANCE: f64 = 5e-3;

/// Largest error of a logit on the device of the tests, as a share of the largest logit's
/// magnitude.
pub(crate) fn tolerance() -> f64 {
    if has_matrix_instructions() { MATRIX_TOLERANCE } else { TOLERANCE }
}

/// True if the device of the tests computes prompts with matrix instructions.
pub(crate) fn has_matrix_instructions() -> bool {
    static FOUND: LazyLock<bool> = LazyLock::new(|| {
        let all = gpu_adapters();
        let chosen = gpu_choose(&all, &options()).ok().and_then(|index| all.get(index));
        chosen.is_some_and(|adapter| adapter.matrix_side().is_some())
    });
    *FOUND
}

pub(crate) fn options() -> GpuOptions {
    GpuOptions { software: true, context: Some(512), ..GpuOptions::default() }
}

/// A backend, or `None` (with a line on standard error) where there is no adapter.
pub(crate) fn try_load(source: ModelSource, options: &GpuOptions) -> Option<Result<GpuBackend, Error>> {
    match GpuBackend::load(&source, options) {
        Err(error @ Error::Backend { .. })
            if no_adapter(&error) && std::env::var_os("RUVLLM_GPU_REQUIRED").is_none() =>
        {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            // Bypasses the capture of test output, so that a skipped test is visible.
            let _ = writeln!(std::io::stderr(), "SKIPPED {name}: {}", chain(&error));
            None
        }
        result => Some(result),
    }
}

fn no_adapter(error: &Error) -> bool {
    chain(error).contains("no GPU found")
}

/// An error with its sources.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

pub(crate) fn gpu_with(path: PathBuf, options: &GpuOptions) -> Option<GpuBackend> {
    try_load(path.into(), options).map(|result| result.unwrap_or_else(|error| panic!("{}", chain(&error))))
}

pub(crate) fn gpu(path: PathBuf) -> Option<GpuBackend> {
    gpu_with(path, &options())
}

/// The engine with keys and values in F32, its weights converted by a recipe.
pub(crate) fn cpu(path: PathBuf, quantize: Option<Recipe>) -> Engine {
    let options = EngineOptions::default()
        .with_threads(2)
        .with_kv("f32".parse::<KvPolicy>().expect("a policy"))
        .with_context(512)
        .with_quantize(quantize);
    Engine::load(&ModelSource::Path(path), &options, &mut |_| ()).expect("the engine loads it")
}

pub(crate) fn tiny(name: &str, file: &str) -> PathBuf {
    model_data("tiny").join(name).join(file)
}

/// Tensors in float64 of a file.
pub(crate) fn doubles(path: PathBuf) -> BTreeMap<String, Vec<f64>> {
    let bytes = fs::read(path).expect("the tensors");
    let file = SafeTensors::deserialize(&bytes).expect("a valid file");
    let doubles = file.iter().filter(|(_, view)| view.dtype() == Dtype::F64);
    let values = |data: &[u8]| data.as_chunks::<8>().0.iter().map(|&b| f64::from_le_bytes(b)).collect();
    doubles.map(|(name, view)| (name.to_owned(), values(view.data()))).collect()
}

pub(crate) fn read_json(path: PathBuf) -> Value {
    serde_json::from_slice(&fs::read(path).expect("the file")).expect("JSON")
}

pub(crate) fn ids(list: &Value) -> Vec<TokenId> {
    list.as_array().expect("a list").iter().map(|id| id.as_u64().expect("an id") as TokenId).collect()
}

/// Largest error as a share of the largest magnitude; NaN counts as infinite.
pub(crate) fn error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0_f64, |a, b| a.max(b.abs()));
    let errors = found.iter().zip(expected).map(|(&f, &e)| (f64::from(f) - e).abs() / largest);
    errors.fold(0.0, |max, error| if error.is_nan() { f64::INFINITY } else { max.max(error) })
}

/// Logits after a prompt.
pub(crate) fn prompt_logits(backend: &dyn InferenceBackend, tokens: &[TokenId], chunk: usize) -> Vec<f32> {
    let mut session = backend.session(tokens.len()).expect("a sequence");
    let go_on = &mut || ControlFlow::Continue(());
    session.prefill(tokens, chunk, go_on).expect("logits").expect("not cancelled").to_vec()
}

/// `n` greedy tokens after a prompt, the largest logit found on the host.
pub(crate) fn greedy_on_host(session: &mut dyn BackendSession, prompt: &[TokenId], n: usize) -> Vec<TokenId> {
    let mut tokens = Vec::new();
    let mut next = prompt.to_vec();
    while tokens.len() < n {
        let logits = session.forward(&next).expect("logits");
        let best = (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
        tokens.push(best as TokenId);
        next = vec![best as TokenId];
    }
    tokens
}

/// Index of the first of the tokens that a greedy text would not have behind a prompt and those
/// before, not even if logits had an error of half the margin, a share of the largest magnitude.
pub(crate) fn leaves(
    session: &mut dyn BackendSession,
    prompt: &[TokenId],
    greedy: &[TokenId],
    margin: f64,
) -> Option<usize> {
    let mut before = prompt.to_vec();
    greedy.iter().position(|&token| {
        let logits = session.forward(&before).expect("logits");
        let largest = logits.iter().fold(0.0_f32, |largest, logit| largest.max(logit.abs()));
        let best = logits.iter().fold(f32::NEG_INFINITY, |best, &logit| best.max(logit));
        before = vec![token];
        f64::from(best - logits[token as usize]) > margin * f64::from(largest)
    })
}

/// `n` greedy tokens after a prompt, the largest logit found on the device.
pub(crate) fn greedy_on_device(backend: &GpuBackend, prompt: &[TokenId], n: usize) -> Vec<TokenId> {
    let mut session = backend.gpu_session(prompt.len() + n).expect("a sequence");
    let mut tokens = Vec::new();
    let mut on_token = |token| {
        tokens.push(token);
        ControlFlow::Continue(())
    };
    session.greedy(prompt, n, &mut on_token).expect("tokens");
    assert_eq!(session.len(), prompt.len() + n - 1);
    tokens
}
