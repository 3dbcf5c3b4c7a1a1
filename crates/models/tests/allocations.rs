//! Bounds on allocations, counted by the allocator: none in a warm decode step, and nothing out of
//! proportion when a file lies about its sizes. A binary of its own, with one test, because the
//! counters see every thread.

use std::sync::Arc;

use gguf_rs_lite::{Gguf, Metadata, TensorInfo, Writer};
use ruvllm_adapters::{AdapterGate, FactorFormat, GateConfig, LoraFile, Part, ScaledAdapter};
use ruvllm_memory::{PagePool, PoolConfig, Request};
use ruvllm_models::{Compute, KvFormat, LogitsRows, Model, Segment, Workspace, open_checkpoint};
use ruvllm_testkit::allocator::{Counting, calls, count_calls, peak_bytes};
use ruvllm_testkit::model_data;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn allocations_are_bounded() {
    count_calls();
    for threads in [1, 2] {
        warm_migrations_allocate_nothing(threads);
    }
    let files = [
        "tiny/llama/model-F32.gguf",
        "tiny/llama/model-F16.gguf",
        "tiny/phi3/model-F16.gguf",
        "tiny/gemma3/model-F32.gguf",
        "quant/llama-Q4_K_M.gguf",
        "forms/qwen2moe",
        "forms/qwen3moe",
        "forms/gemma3n",
    ];
    for threads in [1, 2] {
        for file in files {
            warm_decode_steps_allocate_nothing(file, None, threads);
        }
        warm_decode_steps_allocate_nothing(files[0], Some("lora/r4_all"), threads);
        warm_drafts_allocate_nothing("prediction/glm4moe", threads);
        warm_drafts_allocate_nothing("prediction/deepseek3", threads);
    }
    lying_files_are_refused_cheaply();
}

fn warm_migrations_allocate_nothing(threads: usize) {
    let gguf = Gguf::open(model_data("tiny/mistral/model-F16.gguf")).expect("the fixture opens");
    let model = Model::load(&gguf, &mut |_| ()).expect("the fixture loads");
    let compute = Compute::new(threads).expect("kernels");
    let pool = PagePool::new(PoolConfig::new(16 << 20)).expect("a pool");
    let policy = "tiered:hot=64,sink=0,warm=q8,warm_tokens=32,cold=kivi2".parse().expect("a policy");
    let store = model.kv_store(&policy, &pool).expect("a store");
    let mut cache = model.new_sequence(&store, 400).expect("a cache");
    let mut workspace = Workspace::new();
    let mut step = |tokens: &[u32]| {
        let segment = Segment::new(&compute, tokens, &mut cache, LogitsRows::Last).expect("room");
        model.forward(&compute, &mut workspace, [segment]).expect("a step");
        cache.migrate(&compute.kernels, &compute.pool, usize::MAX).blocks
    };
    let mut migrated = step(&[3; 160]);
    assert!(migrated > 0, "the first migration is part of warming up");
    let before = calls();
    migrated = (0..200).map(|token| step(&[token])).sum();
    let calls = calls() - before;
    assert_eq!((calls, migrated), (0, 12), "allocations and migrations in 200 steps on {threads} threads");
}

/// Steps of two sequences, the second of which may have two adapters, one for each token, and both
/// once more without a gate.
fn warm_decode_steps_allocate_nothing(file: &str, lora: Option<&str>, threads: usize) {
    let checkpoint = open_checkpoint(model_data(file)).expect("the fixture opens");
    let model = Model::load(&*checkpoint, &mut |_| ()).expect("the fixture loads");
    let compute = Compute::new(threads).expect("kernels");
    let pool = PagePool::new(PoolConfig::new(16 << 20)).expect("a pool");
    let capacity = model.config().context_length.min(300);
    let mut caches = [KvFormat::F16, KvFormat::F32].map(|format| {
        let store = model.kv_store(&format.into(), &pool).expect("a store");
        model.new_sequence(&store, capacity).expect("a cache")
    });
    let adapters = lora.map(|name| {
        let file = LoraFile::open(&model_data(name)).expect("the adapter opens");
        let parts = [Part { file: &file, scale: 1.0 }];
        let adapter = model.adapter(&parts, FactorFormat::F16, &pool, &Request::default());
        let adapter = Arc::new(adapter.expect("it fits the model"));
        let base = model.adapter_base();
        let config = GateConfig { n_adapters: 2, temperature: 1.0, top_k: Some(1) };
        let weights = (0..base.n_layers * 2 * base.model_dim).map(|i| (i % 7) as f32 - 3.0).collect();
        let gate = AdapterGate::new(base, config, weights, vec![0.0; base.n_layers * 2]).expect("a gate");
        let list = vec![ScaledAdapter::new(Arc::clone(&adapter), 0.5), adapter.into()];
        [Arc::new(gate).over(list.clone()).expect("two adapters"), list].concat()
    });
    let adapters: &[ScaledAdapter] = adapters.as_deref().unwrap_or_default();
    let mut workspace = Workspace::new();
    let mut step = |tokens: &[u32]| {
        let [first, second] = &mut caches;
        let segments = [first, second]
            .map(|cache| Segment::new(&compute, tokens, cache, LogitsRows::Last).expect("room"));
        let [first, second] = segments;
        let segments = [first, second.with_adapters(adapters)];
        let logits = model.forward(&compute, &mut workspace, segments).expect("a step");
        assert!(logits.iter().all(|logit| logit.is_finite()));
    };
    // After this every buffer has its size. Blocks that begin and fill up are among the steps that
    // are counted.
    step(&[3; 64]);
    step(&[4]);
    let before = calls();
    let vocabulary = model.config().vocab_size as u32;
    for token in 0..capacity as u32 - 100 {
        step(&[token % vocabulary]);
    }
    let calls = calls() - before;
    assert_eq!(calls, 0, "{file}: {calls} allocations in decode steps on {threads} threads");
}

/// Steps whose last hidden state is kept, and behind each a step of the prediction head.
fn warm_drafts_allocate_nothing(file: &str, threads: usize) {
    let checkpoint = open_checkpoint(model_data(file)).expect("the fixture opens");
    let model = Model::load(&*checkpoint, &mut |_| ()).expect("the fixture loads");
    let head = model.prediction_head().expect("a head");
    let compute = Compute::new(threads).expect("kernels");
    let pool = PagePool::new(PoolConfig::new(16 << 20)).expect("a pool");
    let format = KvFormat::F16.into();
    let store = model.kv_store(&format, &pool).expect("a store");
    let mut cache = model.new_sequence(&store, 250).expect("a cache");
    let store = head.kv_store(&format, &pool).expect("a store");
    let mut of_head = head.new_sequence(&store, 250).expect("a cache");
    let mut workspace = Workspace::new();
    let mut states = Vec::new();
    let mut step = |tokens: &[u32]| {
        let segment = Segment::new(&compute, tokens, &mut cache, LogitsRows::Last).expect("room");
        let segment = segment.with_hidden(tokens.len());
        model.forward(&compute, &mut workspace, [segment]).expect("a step");
        states.clear();
        states.extend_from_slice(workspace.hidden());
        let segment = Segment::new(&compute, tokens, &mut of_head, LogitsRows::Last).expect("room");
        let logits = model.predict(&compute, &mut workspace, [segment], &states).expect("a step");
        assert!(logits.iter().all(|logit| logit.is_finite()));
    };
    step(&[3; 64]);
    step(&[4]);
    let before = calls();
    for token in 0..150 {
        step(&[token % model.config().vocab_size as u32]);
    }
    let calls = calls() - before;
    assert_eq!(calls, 0, "{file}: {calls} allocations in drafts on {threads} threads");
}

fn lying_files_are_refused_cheaply() {
    let source = Gguf::open(model_data("tiny/llama/model-F16.gguf")).expect("the fixture opens");
    let lies = [
        ("llama.block_count", u32::MAX),
        ("llama.block_count", 31),
        ("llama.context_length", u32::MAX),
        ("llama.embedding_length", 1 << 20),
        ("llama.feed_forward_length", 1 << 20),
        ("llama.attention.head_count", 1 << 20),
        ("llama.attention.key_length", 1 << 12),
        ("llama.vocab_size", 1 << 24),
        ("llama.rope.scaling.original_context_length", u32::MAX),
    ];
    for (key, value) in lies {
        let mut metadata = source.metadata().clone();
        metadata.insert(key, value);
        let gguf = copy_with(&source, &metadata);
        let (loaded, peak) = peak_bytes(|| Model::load(&gguf, &mut |_| ()).is_ok());
        assert!(peak < 1 << 20, "{key} = {value}: {peak} bytes allocated, loaded: {loaded}");
    }
}

fn copy_with(source: &Gguf, metadata: &Metadata) -> Gguf {
    let infos: Vec<TensorInfo> = source.tensors().cloned().collect();
    let mut writer = Writer::new(Vec::new(), metadata, infos.clone()).expect("a valid header");
    for info in &infos {
        writer.write_tensor(info, source.data(info).expect("its data").as_bytes()).expect("its size");
    }
    Gguf::from_owner(writer.finish().expect("complete")).expect("a valid file")
}
