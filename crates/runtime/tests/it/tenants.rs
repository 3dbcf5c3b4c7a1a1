//! Tenants of an engine: quotas, and isolation of prefixes.

use std::error::Error as _;
use std::ops::ControlFlow;

use ruvllm::{
    CancelToken, Engine, EngineOptions, Error, GenerateRequest, KvPolicy, PrefixCaching, Prompt, Quota,
    Tenant,
};
use ruvllm_testkit::builtin_model;

use crate::common::{complete, greedy, load, tiny_options, tiny_path};

/// An engine on the default model with 16 MiB of keys and values, in pages of 512 KiB.
fn engine(kv: &str) -> Engine {
    let options = EngineOptions::default()
        .with_threads(2)
        .with_kv(kv.parse::<KvPolicy>().expect("a policy"))
        .with_kv_budget(16 << 20);
    load(builtin_model(), &options)
}

fn tenant(engine: &Engine, path: &str, hard_pages: usize) -> Tenant {
    let pool = engine.kv_store().pool();
    let tenant = pool.tenant(path).expect("a path");
    pool.set_quota(&tenant, Quota { hard_pages, ..Quota::default() }).expect("its own pool");
    tenant
}

/// A different request for each seed.
fn request(tenant: &Tenant, seed: u32, n_prompt: u32, max_tokens: usize) -> GenerateRequest {
    let prompt = Prompt::Tokens((0..n_prompt).map(|i| (i * 53 + 7 + seed * 31 * (i + 1)) % 500).collect());
    greedy(prompt, max_tokens).with_ignore_eos(true).with_tenant(tenant.clone())
}

fn failure(engine: &Engine, request: &GenerateRequest) -> Error {
    let result = engine.generate_with(request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()));
    result.expect_err("more than the quota allows")
}

/// Message of an error with its sources.
fn message(error: &Error) -> String {
    let causes = std::iter::successors(error.source(), |&error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[test]
fn a_tenant_at_its_hard_quota_fails_and_the_other_goes_on() {
    for (kv, reason) in [
        ("f16", "tenant \"acme/small\" has 4 of 4 pages; 1 more exceed its quota"),
        (
            "tiered:hot=64,warm=kivi4,cold=kivi2",
            "tenant \"acme/small\" has used up its quota of keys and values",
        ),
    ] {
        let engine = engine(kv);
        let pool = engine.kv_store().pool();
        let (small, other) = (tenant(&engine, "acme/small", 4), tenant(&engine, "other", usize::MAX));
        let expected = complete(&engine, &request(&other, 0, 100, 40));
        let used = |tenant: &Tenant| pool.usage(tenant).expect("its own pool").used_pages;

        // The small tenant requests far more than its 2 MiB during the other's generation.
        let large = request(&small, 0, 3000, 4);
        let mut failures = Vec::new();
        let again = engine
            .generate_with(&request(&other, 0, 100, 40), &CancelToken::new(), &mut |_| {
                if failures.is_empty() {
                    failures.push(failure(&engine, &large));
                }
                ControlFlow::Continue(())
            })
            .expect("nobody takes what the other one needs");
        assert_eq!((again.tokens, again.text), (expected.tokens, expected.text));
        let text = message(&failures[0]);
        assert!(text.starts_with("cannot compute positions") && text.contains(reason), "{text}");
        assert_eq!(used(&small), 0, "what the failed request had is back");
        assert_eq!(
            complete(&engine, &request(&other, 0, 100, 1)).cached_tokens,
            99,
            "nobody took its prefix"
        );
        // A request within the quota is served.
        assert_eq!(complete(&engine, &request(&small, 0, 100, 5)).tokens.len(), 5);
        assert!(used(&small) > 0 && used(&small) <= 4);
    }
}

#[test]
fn within_a_quota_a_long_prompt_loses_bits_and_completes() {
    let engine = engine("tiered:hot=64,warm=kivi4,cold=kivi2");
    let small = tenant(&engine, "small", 12);
    // 2000 tokens take 31 pages in F16, and the first request's prefix is cached when the second
    // comes.
    for seed in 0..2 {
        assert_eq!(complete(&engine, &request(&small, seed, 2000, 5)).tokens.len(), 5);
        assert!(engine.kv_store().pool().usage(&small).expect("its own pool").used_pages <= 12);
    }
}

#[test]
fn prefixes_are_found_by_their_own_tenant() {
    let options = tiny_options().with_prefixes(PrefixCaching::Memory);
    let engine = load(tiny_path(), &options);
    let [ann, bob] = ["acme/ann", "acme/bob"].map(|path| tenant(&engine, path, usize::MAX));
    let root = Tenant::root();
    let cached = |tenant: &Tenant| complete(&engine, &request(tenant, 0, 100, 3)).cached_tokens;
    for tenant in [&ann, &bob, &root] {
        assert_eq!(cached(tenant), 0);
    }
    for tenant in [&ann, &bob, &root] {
        assert_eq!(cached(tenant), 99);
    }
}

#[test]
fn a_tenant_of_another_engine_is_refused() {
    let engine = load(tiny_path(), &tiny_options());
    let foreign = tenant(&load(tiny_path(), &tiny_options()), "acme", usize::MAX);
    let text = message(&failure(&engine, &request(&foreign, 0, 10, 3)));
    assert!(text.contains("tenant \"acme\"") && text.contains("another pool"), "{text}");
}
