//! A program with `ruvllm` as its only dependency: all types, of lower crates too, are reachable.

use ruvllm::crates::kernels::ThreadPool;
use ruvllm::serde_json::{Value, json};
use ruvllm::{
    CancelToken, Checkpoint, Embedder, EmbeddingRequest, Engine, EngineOptions, Error, FinishReason,
    GenerateRequest, InferenceBackend, KvPolicy, KvShape, KvStore, Message, Model, ModelConfig, ModelSource,
    PagePool, Plan, PrefixCaching, PressurePolicy, Prompt, Quota, SamplingParams, TokenId, Tokenizer,
};

use crate::common::tiny_path;

/// Functions that name every type returned by the engine.
type Getters = (
    fn(&Engine) -> &ModelConfig,
    fn(&Engine) -> &Model,
    fn(&Engine) -> &Tokenizer,
    fn(&Engine) -> &KvPolicy,
    fn(&Engine) -> &KvStore,
    fn(&Engine) -> &Plan,
    fn(&KvStore) -> &PagePool,
    fn(&KvStore) -> KvShape,
);

#[test]
fn everything_is_reached_through_one_crate() -> Result<(), Box<dyn std::error::Error>> {
    let _getters: Getters = (
        Engine::config,
        Engine::model,
        Engine::tokenizer,
        Engine::kv_policy,
        Engine::kv_store,
        Engine::plan,
        KvStore::pool,
        KvStore::shape,
    );
    let _checkpoint: Option<&dyn Checkpoint> = None;
    let options = EngineOptions::default()
        .with_threads(1)
        .with_kv("f32".parse::<KvPolicy>()?)
        .with_prefixes(PrefixCaching::Memory);
    let engine = Engine::open_with(ModelSource::Path(tiny_path()), &options)?;
    let team = engine.kv_store().pool().tenant("acme/search")?;
    engine.kv_store().pool().set_quota(&team, Quota { hard_pages: 8, soft_pages: 4 })?;
    let request = GenerateRequest::new(Prompt::Tokens(vec![1, 2, 3]))
        .with_max_tokens(4)
        .with_sampling(SamplingParams::default().with_temperature(0.5))
        .with_seed(7)
        .with_stop(["never"])
        .with_ignore_eos(true)
        .with_tenant(team)
        .with_pressure(PressurePolicy::default());
    let completion = engine.generate(&request)?;
    assert_eq!((completion.tokens.len(), completion.finish_reason), (4, FinishReason::Length));
    let text = engine.stream(&request)?.map(|chunk| chunk.map(|chunk| chunk.text));
    assert_eq!(text.collect::<Result<String, Error>>()?, completion.text);
    let backend: &dyn InferenceBackend = &engine;
    let ids: Vec<TokenId> = backend.codec().encode_prompt(&request.prompt)?;
    assert_eq!(ids, [1, 2, 3]);
    let cancel = CancelToken::new();
    cancel.cancel();
    let cancelled = engine.generate_with(&request, &cancel, &mut |_| std::ops::ControlFlow::Continue(()))?;
    assert_eq!(cancelled.finish_reason, FinishReason::Cancelled);

    // JSON of messages and tools, through the re-export.
    let messages: Vec<Message> = ruvllm::serde_json::from_value(json!([{"role": "user", "content": "Hi"}]))?;
    let tools: Value = json!([{"type": "function", "function": {"name": "now"}}]);
    assert!(matches!(Prompt::chat_with_tools(messages, tools), Prompt::Chat { tools: Some(_), .. }));

    let embedder = Embedder::open(tiny_path())?;
    assert_eq!(embedder.embed(&EmbeddingRequest::new(["a"]).with_normalize(true))?.embeddings.len(), 1);

    // Sources of errors are nameable.
    let error = Engine::open("absent.gguf").expect_err("there is no such file");
    let Error::Open { source, .. } = error else { panic!("another error: {error:?}") };
    let _: ruvllm::crates::models::Error = source;
    ThreadPool::new(1)?;
    Ok(())
}
