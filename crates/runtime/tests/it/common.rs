//! Shared models, loaded once.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use gguf_rs_lite::{Gguf, Metadata, Writer};
use ruvllm::crates::adapters::GateConfig;
use ruvllm::{
    Adapter, AdapterGate, CancelToken, Completion, Engine, EngineOptions, GenerateRequest, KvPolicy,
    ModelSource, Prompt, SamplingParams, ScaledAdapter,
};
use ruvllm_testkit::{Random, builtin_model, model_data};

/// A tiny Llama with random weights; the README in its folder tells its origin.
pub(crate) fn tiny_path() -> PathBuf {
    family_path("llama")
}

/// A tiny model of another family.
pub(crate) fn family_path(name: &str) -> PathBuf {
    model_data("tiny").join(name).join("model-F16.gguf")
}

pub(crate) fn load(path: PathBuf, options: &EngineOptions) -> Engine {
    Engine::load(&ModelSource::Path(path), options, &mut |_| ()).expect("the model loads")
}

/// Options of the tiny model: few threads, F32 keys and values.
pub(crate) fn tiny_options() -> EngineOptions {
    EngineOptions::default().with_threads(2).with_kv("f32".parse::<KvPolicy>().expect("a policy"))
}

/// Source of the tiny model with changed metadata.
pub(crate) fn tiny_source(change: impl FnOnce(&mut Metadata)) -> ModelSource {
    changed_source(tiny_path(), change)
}

/// Source of a GGUF file with changed metadata.
pub(crate) fn changed_source(path: PathBuf, change: impl FnOnce(&mut Metadata)) -> ModelSource {
    let gguf = Gguf::open(path).expect("the model is there");
    let mut metadata = gguf.metadata().clone();
    change(&mut metadata);
    let mut writer =
        Writer::new(Vec::new(), &metadata, gguf.tensors().cloned()).expect("the model can be written");
    for tensor in gguf.tensors() {
        let data = gguf.data(tensor).expect("the tensor is there");
        writer.write_tensor(tensor, data.as_ref()).expect("the tensor can be written");
    }
    let bytes = writer.finish().expect("every tensor was written").leak();
    ModelSource::Static { name: "changed".to_owned(), bytes }
}

/// The tiny model with changed metadata.
pub(crate) fn tiny_with(change: impl FnOnce(&mut Metadata)) -> Engine {
    Engine::load(&tiny_source(change), &tiny_options(), &mut |_| ()).expect("the model loads")
}

pub(crate) fn tiny() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| load(tiny_path(), &tiny_options()))
}

/// The tiny model, which exchanges prefixes.
pub(crate) fn tiny_transfers() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| load(tiny_path(), &tiny_options().with_prefix_transfers(true)))
}

pub(crate) fn base() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| load(builtin_model(), &EngineOptions::default().with_threads(2)))
}

/// A greedy request of a few tokens.
pub(crate) fn greedy(prompt: impl Into<Prompt>, max_tokens: usize) -> GenerateRequest {
    GenerateRequest::new(prompt).with_max_tokens(max_tokens).with_sampling(SamplingParams::greedy())
}

/// Pieces of text and completion of a request without cancellation.
pub(crate) fn run(engine: &Engine, request: &GenerateRequest) -> (Vec<String>, Completion) {
    let mut pieces = Vec::new();
    let completion = engine
        .generate_with(request, &CancelToken::new(), &mut |text| {
            pieces.push(text.to_owned());
            ControlFlow::Continue(())
        })
        .expect("the request succeeds");
    assert_eq!(pieces.concat(), completion.text, "the pieces are the text");
    assert!(pieces.iter().all(|piece| !piece.is_empty()), "no empty piece is shown");
    (pieces, completion)
}

/// Adapters with a gate of drawn weights, which selects `top_k` of them for each token.
pub(crate) fn gated(
    engine: &Engine,
    adapters: &[&Arc<Adapter>],
    top_k: Option<usize>,
    seed: u64,
) -> Vec<ScaledAdapter> {
    let (base, n_adapters) = (engine.adapter_base(), adapters.len());
    let mut random = Random::new(seed);
    let mut drawn = |n: usize| (0..n).map(|_| 0.3 * random.normal()).collect();
    let weights = drawn(base.n_layers * n_adapters * base.model_dim);
    let biases = drawn(base.n_layers * n_adapters);
    let config = GateConfig { n_adapters, temperature: 0.5, top_k };
    let gate = Arc::new(AdapterGate::new(base, config, weights, biases).expect("a gate"));
    let adapters = adapters.iter().map(|&adapter| Arc::clone(adapter).into()).collect();
    gate.over(adapters).expect("its adapters")
}

/// Only the completion.
pub(crate) fn complete(engine: &Engine, request: &GenerateRequest) -> Completion {
    run(engine, request).1
}
