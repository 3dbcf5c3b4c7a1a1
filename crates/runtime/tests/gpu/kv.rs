//! Keys and values in 8 bits.

use std::ops::ControlFlow;
use std::path::PathBuf;

use ruvllm::{
    CancelToken, Engine, EngineOptions, Error, GenerateRequest, GpuBackend, GpuOptions, InferenceBackend,
    KvPolicy, ModelSource, Prompt, TokenId,
};
use ruvllm_testkit::{builtin_model, workspace};

use crate::families::{Case, prompts};
use crate::support::{chain, error, gpu_with, options, prompt_logits, tiny, try_load};

/// Largest difference of the perplexity in 8 bits from that in F16, as a share.
const PERPLEXITY: f64 = 5e-3;

fn policy(name: &str) -> KvPolicy {
    name.parse().expect("a policy")
}

fn with_kv(name: &str) -> GpuOptions {
    GpuOptions { kv: policy(name), ..options() }
}

fn engine(path: PathBuf, kv: &str) -> Engine {
    let options = EngineOptions::default().with_threads(2).with_kv(policy(kv)).with_context(512);
    Engine::load(&ModelSource::Path(path), &options, &mut |_| ()).expect("the engine loads it")
}

/// Errors against float64 are those of the engine with the same format: plain heads, norms of
/// heads, a soft cap, windows.
#[test]
fn logits_in_8_bits_are_as_close_as_the_engines() {
    for name in ["mistral", "qwen3", "gemma2", "gemma3"] {
        let path = tiny(name, "model-F16.gguf");
        let Some(backend) = gpu_with(path.clone(), &with_kv("q8")) else { return };
        assert_eq!(backend.kv_policy(), policy("q8"));
        let (engine, exact) = (engine(path.clone(), "q8"), gpu_with(path, &with_kv("f16")).expect("a GPU"));
        let vocab = backend.config().vocab_size;
        let (mut found, mut expected, mut other) = (0.0_f64, 0.0_f64, 0.0_f64);
        for Case { tokens, logits, .. } in prompts(name) {
            let last = &logits[logits.len() - vocab..];
            let of = |backend: &dyn InferenceBackend| prompt_logits(backend, &tokens, 512);
            let own = of(&backend);
            found = found.max(error(&own, last));
            expected = expected.max(error(&of(&engine), last));
            other = other.max(error(&own, &of(&exact).into_iter().map(f64::from).collect::<Vec<_>>()));
        }
        println!("{name}: GPU {found:.1e}, engine {expected:.1e}, 8 bits and F16 on the GPU {other:.1e}");
        assert!(found <= 1.5 * expected + 1e-3, "{name}: errors {found}, of the engine {expected}");
        assert!(other > 0.0, "{name}: 8 bits change nothing");
    }
}

/// Scores the beginning of a text in windows of 96 tokens, each computed as in decode.
#[test]
fn perplexity_in_8_bits_is_that_of_f16() {
    let text = std::fs::read_to_string(workspace("LICENSE-APACHE")).expect("a text");
    let perplexity = |kv: &str| {
        let backend = gpu_with(builtin_model(), &with_kv(kv))?;
        let tokens = backend.codec().encode_prompt(&text.as_str().into()).expect("tokens");
        let go_on = &mut |_, _| ControlFlow::Continue(());
        let found = backend.perplexity(&tokens, 96, Some(192), go_on).expect("a value");
        Some((found.perplexity, backend.kv_bytes()))
    };
    let (Some((f16, f16_bytes)), Some((q8, q8_bytes))) = (perplexity("f16"), perplexity("q8")) else {
        return;
    };
    let bytes = q8_bytes as f64 / f16_bytes as f64;
    println!("perplexity {f16} in f16, {q8} in q8, bytes {bytes:.3}");
    assert!((q8 / f16 - 1.0).abs() <= PERPLEXITY && q8 != f16, "{f16} in f16, {q8} in q8");
    assert!((0.53..0.54).contains(&bytes), "{bytes} of the bytes");
}

fn request(seed: usize, prompt: usize, new: usize) -> GenerateRequest {
    let tokens = (0..prompt).map(|i| ((i * 37 + seed * 101) % 500 + 3) as TokenId).collect();
    GenerateRequest::new(Prompt::Tokens(tokens))
        .with_max_tokens(new)
        .with_seed(seed as u64)
        .with_ignore_eos(true)
        .with_logprobs(2)
}

/// Compares texts alone, beside others, and behind a stored prefix.
#[test]
fn texts_in_8_bits_do_not_depend_on_others_or_on_stored_prefixes() {
    let options = GpuOptions { kv_tokens: Some(2048), sequences: 4, ..with_kv("q8") };
    let Some(backend) = gpu_with(tiny("mistral", "model-F16.gguf"), &options) else { return };
    let requests: Vec<_> = [70, 3, 300, 40].into_iter().enumerate().map(|(i, n)| request(i, n, 9)).collect();
    let run = |backend: &GpuBackend, request: &GenerateRequest| {
        let text = backend.generate_with(request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()));
        text.unwrap_or_else(|error| panic!("{}", chain(&error)))
    };
    let apart: Vec<_> = requests.iter().map(|request| request.clone().with_cache_prefix(false)).collect();
    let alone: Vec<_> = apart.iter().map(|request| run(&backend, request)).collect();
    let go_on = &mut |_: usize, _: &str| ControlFlow::Continue(());
    let together = backend.generate_many(&apart, &CancelToken::new(), go_on).expect("texts");
    // Each stores its prompt, and finds it.
    let again: Vec<_> = requests.iter().map(|r| [run(&backend, r), run(&backend, r)]).collect();
    assert_eq!(again[2][1].cached_tokens, 288);
    for ((alone, together), [first, second]) in alone.iter().zip(&together).zip(&again) {
        let together = together.as_ref().expect("a text");
        for other in [together, first, second] {
            assert_eq!((&alone.tokens, &alone.logprobs), (&other.tokens, &other.logprobs));
        }
    }
}

#[test]
fn bytes_hold_nearly_twice_the_tokens_in_8_bits() {
    let tokens = |kv: &str| {
        let options = GpuOptions { kv_bytes: Some(1 << 20), context: None, ..with_kv(kv) };
        let backend = gpu_with(tiny("mistral", "model-F16.gguf"), &options)?;
        assert!(backend.kv_bytes() <= 1 << 20 && backend.kv_bytes() > (1 << 20) * 9 / 10);
        Some(backend.kv_room())
    };
    let (Some(f16), Some(q8)) = (tokens("f16"), tokens("q8")) else { return };
    // A head of 32 values has one scale, and room for two.
    assert!(q8 * 16 >= f16 * 27 && q8 < f16 * 2, "{f16} and {q8} tokens");
}

#[test]
fn other_formats_and_other_heads_are_refused() {
    for kv in ["q4", "kivi4", "bf16", "q8+f16", "q8:rotate=on", "tiered"] {
        let Some(result) = try_load(tiny("mistral", "model-F16.gguf").into(), &with_kv(kv)) else { return };
        let error = result.expect_err("it is refused");
        assert!(matches!(error, Error::UnsupportedByBackend { .. }), "{error:?}");
        assert!(chain(&error).contains("f16 or q8, not"), "{}", chain(&error));
    }
    let Some(result) = try_load(tiny("llama", "model-F16.gguf").into(), &with_kv("q8")) else { return };
    let message = chain(&result.expect_err("its heads have 16 values"));
    assert!(message.contains("16 values") && message.contains("multiples of 32"), "{message}");
}
