//! Pressure policies of engines and requests.

use std::ops::ControlFlow;

use ruvllm::{
    CancelToken, Engine, EngineOptions, Error, GenerateRequest, KvPolicy, ModelSource, PrefixCaching,
    PressurePolicy, Prompt,
};

use ruvllm_testkit::builtin_model;

use crate::common::{complete, greedy, load};

fn options(kv: &str, prefixes: PrefixCaching) -> EngineOptions {
    EngineOptions::default()
        .with_threads(2)
        .with_kv(kv.parse::<KvPolicy>().expect("a policy"))
        .with_kv_budget(4 << 20)
        .with_prefixes(prefixes)
}

/// A different request for each seed.
fn request(seed: u32, n_prompt: u32, max_tokens: usize, pressure: Option<PressurePolicy>) -> GenerateRequest {
    let prompt = Prompt::Tokens((0..n_prompt).map(|i| (i * 53 + 7 + seed * 31 * (i + 1)) % 500).collect());
    greedy(prompt, max_tokens).with_ignore_eos(true).with_pressure(pressure)
}

fn generate(engine: &Engine, request: &GenerateRequest) -> Result<usize, Error> {
    let result = engine.generate_with(request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()));
    result.map(|completion| completion.dropped_tokens)
}

#[test]
fn generation_goes_on_beyond_the_budget_when_the_oldest_tokens_may_go() {
    // 4 MiB hold 512 tokens in F16.
    let engine = load(builtin_model(), &options("f16", PrefixCaching::Memory));
    let long = |pressure| request(1, 200, 700, Some(pressure));
    let failed = generate(&engine, &long(PressurePolicy::LowerPrecision)).expect_err("more than the budget");
    assert!(failed.kv_memory_short(), "{failed}");
    let completion = complete(&engine, &long(PressurePolicy::DropOldest));
    assert_eq!(completion.tokens.len(), 700);
    assert!(
        completion.dropped_tokens > 300 && completion.dropped_tokens < 850,
        "{}",
        completion.dropped_tokens
    );
    let stats = engine.kv_store().pool().stats();
    assert!(stats.used_pages <= stats.capacity_pages);
    // A sequence with dropped tokens is not cached as a prefix.
    let again = complete(&engine, &request(1, 200, 1, None));
    assert_eq!(again.cached_tokens, 0);
    // A prompt of more than twice the budget.
    assert!(
        generate(&engine, &request(2, 1200, 10, Some(PressurePolicy::DropOldest))).expect("it fits") > 600
    );
    assert_eq!(complete(&engine, &request(3, 100, 5, None)).dropped_tokens, 0);
}

#[test]
fn a_request_takes_what_its_own_policy_allows() {
    let engine = load(builtin_model(), &options("f16", PrefixCaching::Memory));
    // Prefixes of 300 tokens each, more than half of the budget.
    complete(&engine, &request(1, 300, 2, None));
    let rejected = generate(&engine, &request(2, 300, 2, Some(PressurePolicy::Reject)));
    assert!(rejected.expect_err("nothing yields").kv_memory_short());
    assert_eq!(complete(&engine, &request(1, 300, 1, None)).cached_tokens, 299, "the prefix is still there");
    complete(&engine, &request(2, 300, 2, Some(PressurePolicy::EvictPrefixes)));
    let evicted = engine.prefix_statistics().expect("there is a cache").memory.evicted_blocks;
    assert!(evicted > 0);
    // The engine's own policy, for requests that name none.
    let options = options("f16", PrefixCaching::Memory).with_pressure(PressurePolicy::Reject);
    let strict = load(builtin_model(), &options);
    complete(&strict, &request(1, 300, 2, None));
    assert!(generate(&strict, &request(2, 300, 2, None)).is_err());
    complete(&strict, &request(2, 300, 2, Some(PressurePolicy::LowerPrecision)));
}

#[test]
fn a_policy_without_what_it_needs_is_refused() {
    let source = ModelSource::Path(builtin_model());
    let spill = options("f16", PrefixCaching::Memory).with_pressure(PressurePolicy::Spill);
    let error = Engine::load(&source, &spill, &mut |_| ()).expect_err("there is no folder");
    assert!(matches!(error, Error::SpillWithoutFolder), "{error}");
    let engine = load(builtin_model(), &options("f16", PrefixCaching::Memory));
    let error = generate(&engine, &request(1, 10, 1, Some(PressurePolicy::Spill))).expect_err("nor here");
    assert!(error.to_string().contains("EngineOptions::prefixes"), "{error}");
    let temporary = tempfile::tempdir().expect("a folder");
    let prefixes = PrefixCaching::Spill { path: temporary.path().to_owned(), limit_bytes: 64 << 20 };
    let engine = load(builtin_model(), &options("f16", prefixes).with_pressure(PressurePolicy::Spill));
    for seed in 0..4 {
        complete(&engine, &request(seed, 300, 2, None));
    }
    engine.flush_prefixes();
    let spilled = engine.prefix_statistics().expect("there is a cache").spilled_blocks;
    assert!(spilled > 0);
}
