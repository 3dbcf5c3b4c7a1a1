//! Memory after many requests: sequences come and go, and nothing grows. A binary of its own, with
//! one test, because the counters see every thread.

use ruvllm::{
    Constraint, Engine, EngineOptions, GenerateRequest, KvPolicy, PrefixCaching, Prompt, RequestHandle,
    SamplingParams,
};
use ruvllm_testkit::allocator::{Counting, live_bytes};
use ruvllm_testkit::{is_full_run, model_data};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sequences of a round.
const SEQUENCES: usize = 64;

/// Rounds until buffers, windows of measured rates, and caches have their final size: 120 with 64
/// sequences.
const WARM: usize = 150;

/// Heap growth that is allowed for the whole run: the constraint of a request that ends late.
const GROWTH: usize = 16 << 10;

fn engine() -> Engine {
    let options = EngineOptions::default()
        .with_threads(2)
        .with_kv("f16".parse::<KvPolicy>().expect("a policy"))
        .with_prefixes(PrefixCaching::Off)
        .with_kv_budget(4 << 20)
        .with_context(400);
    Engine::open_with(model_data("tiny/llama/model-F16.gguf"), &options).expect("a model")
}

/// Submits all sequences of a round at once. A quarter is cancelled, by a drop or in the middle; an
/// eighth has a constraint.
fn round(engine: &Engine, constraint: &Constraint) {
    let request = |index: usize| {
        let sampling = SamplingParams::default().with_seed(Some(index as u64));
        let prompt = Prompt::Tokens((1..2 + index as u32 % 8).collect());
        let request = GenerateRequest::new(prompt).with_max_tokens(2).with_sampling(sampling);
        if index % 8 == 1 { request.with_constraint(constraint.clone()) } else { request }
    };
    let handles: Vec<RequestHandle> =
        (0..SEQUENCES).map(|index| engine.submit(request(index)).expect("a handle")).collect();
    for (index, handle) in handles.into_iter().enumerate() {
        match index % 8 {
            3 => drop(handle),
            6 => _ = handle.finish().expect("a cancelled request has a result"),
            _ => _ = handle.wait().expect("text"),
        }
    }
    // Dropped requests end in the next step; the next request to end comes after them.
    engine.generate(request(0)).expect("text");
}

#[test]
fn sequences_that_come_and_go_leave_no_memory_behind() {
    let rounds = if is_full_run() { 10_000 } else { 50 };
    let engine = engine();
    let blocks = || engine.kv_store().tiers().map(|tier| tier.blocks).sum::<usize>();
    let constraint = Constraint::choices(["a text", "b"]).expect("choices");
    let at_the_start = blocks();
    (0..WARM).for_each(|_| round(&engine, &constraint));
    let warm = live_bytes();
    (0..rounds).for_each(|_| round(&engine, &constraint));
    let growth = live_bytes().saturating_sub(warm);
    assert!(growth < GROWTH, "{growth} bytes more after {rounds} rounds");
    assert_eq!(blocks(), at_the_start, "blocks of the KV cache");
}
