//! Fields of requests: id, shortest prefix hit, KV policy, several adapters with scales.

use std::sync::Arc;

use ruvllm::{
    Adapter, AdapterSource, Engine, Error, GenerateRequest, KvPolicy, ModelSource, PrefixCaching, Prompt,
    ScaledAdapter,
};
use ruvllm_testkit::model_data;

use crate::common::{complete, greedy, load, tiny, tiny_options, tiny_path};

fn prompt(len: u32) -> Prompt {
    Prompt::Tokens((0..len).map(|i| 3 + i * 7 % 400).collect())
}

fn policy(text: &str) -> KvPolicy {
    text.parse().expect("a policy")
}

#[test]
fn ids_come_back_in_completions_and_errors() {
    let named = greedy(prompt(9), 4).with_id("job 7");
    let completion = tiny().generate(&named).expect("text");
    assert_eq!(completion.id.as_deref(), Some("job 7"));
    assert_eq!(completion.tokens, complete(tiny(), &greedy(prompt(9), 4)).tokens);
    assert_eq!(complete(tiny(), &greedy(prompt(9), 4)).id, None);

    // An error before the run, and one of the run.
    let late = named.clone().with_deadline(std::time::Instant::now());
    for (request, is_expected) in [
        (
            named.clone().with_stop([""]),
            (|error| matches!(error, Error::EmptyStop { .. })) as fn(&Error) -> bool,
        ),
        (late, |error| matches!(error, Error::DeadlineExceeded | Error::Refused(_))),
    ] {
        let error = tiny().generate(&request).expect_err("it is refused");
        assert!(is_expected(error.cause()), "{error:?}");
        assert!(matches!(&error, Error::InRequest { id, .. } if &**id == "job 7"), "{error:?}");
        assert_eq!(error.to_string(), "request \"job 7\" failed");
    }
    for id in [String::new(), "x".repeat(257)] {
        let error = tiny().generate(named.clone().with_id(&*id)).expect_err("it is refused");
        assert!(
            matches!(error, Error::IdLength { of: "request", bytes, most: 256 } if bytes == id.len()),
            "{error:?}"
        );
    }
    assert!(tiny().generate(named.with_id("x".repeat(256))).is_ok());
}

#[test]
fn short_prefix_hits_are_not_used() {
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Memory));
    let request = |least: usize| greedy(prompt(100), 4).with_min_cache_tokens(least);
    let first = complete(&engine, &request(0));
    assert_eq!(first.cached_tokens, 0);
    for (least, expected) in [(0, 99), (99, 99), (100, 0), (1000, 0), (1, 99)] {
        let completion = complete(&engine, &request(least));
        assert_eq!(
            (completion.cached_tokens, completion.tokens),
            (expected, first.tokens.clone()),
            "{least}"
        );
    }
    // The kept sequence of a conversation is one as well.
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Off));
    let mut conversation = engine.conversation();
    for (least, expected) in [(0, 0), (99, 99), (100, 0)] {
        assert_eq!(conversation.generate(request(least)).expect("text").cached_tokens, expected, "{least}");
    }
}

#[test]
fn stored_prefixes_below_the_limit_are_not_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("prefixes");
    let caching = PrefixCaching::Folder { path, limit_bytes: 1 << 30 };
    let options = tiny_options().with_prefixes(caching);
    complete(&load(tiny_path(), &options), &greedy(prompt(100), 4));
    for (least, expected) in [(97, 0), (96, 96)] {
        let engine = load(tiny_path(), &options);
        // Reading is tried until a measurement says that it is slower.
        let request = greedy(prompt(100), 1).with_min_cache_tokens(least);
        let cached = complete(&engine, &request).cached_tokens;
        assert!(cached == expected, "{least}: {cached}");
        let folder = engine.prefix_statistics().and_then(|all| all.folder).expect("a folder");
        assert_eq!(folder.loaded_blocks > 0, expected > 0);
    }
}

#[test]
fn requests_choose_among_the_policies_of_the_engine() {
    let options = tiny_options().with_prefixes(PrefixCaching::Memory);
    let engine = load(tiny_path(), &options.clone().with_request_kv(vec![policy("f16"), policy("f32")]));
    let of = |kv: Option<&str>| greedy(prompt(100), 24).with_kv(kv.map(policy)).with_ignore_eos(true);
    let alone = |kv: &str| complete(&load(tiny_path(), &options.clone().with_kv(policy(kv))), &of(None));
    for kv in [None, Some("f16"), Some("f32")] {
        let expected = alone(kv.unwrap_or("f32"));
        let found = complete(&engine, &of(kv));
        // The engine's own policy by name is the engine's store, with its prefixes.
        let cached = if kv == Some("f32") { 99 } else { 0 };
        assert_eq!((found.cached_tokens, &found.tokens), (cached, &expected.tokens), "{kv:?}");
        let again = complete(&engine, &of(kv));
        assert_eq!((again.cached_tokens, &again.tokens), (99, &expected.tokens), "{kv:?}");
    }
    let handles = [None, Some("f16")].map(|kv| engine.submit(of(kv)).expect("a handle"));
    let together = handles.map(|handle| handle.wait().expect("text").tokens);
    assert_eq!(together, [alone("f32").tokens, alone("f16").tokens]);

    let error = engine.generate(of(Some("q8"))).expect_err("no such store");
    assert!(matches!(&error, Error::KvPolicyNotOpened { policy } if policy == "q8"), "{error:?}");
    let calibrated = tiny_options().with_request_kv(vec![policy("nuq3")]);
    let error = Engine::open_with(tiny_path(), &calibrated).expect_err("it needs a calibration");
    assert!(matches!(error, Error::KvPolicy { .. }), "{error:?}");
    let planned =
        ruvllm::Plan::of_source(&ModelSource::from(tiny_path()), &calibrated, &ruvllm::Machine::detect());
    assert!(matches!(planned, Err(Error::KvPolicy { .. })));
}

fn adapter(engine: &Engine, name: &str, scale: f32) -> Arc<Adapter> {
    let source = AdapterSource { path: model_data("lora").join(name), scale };
    engine.load_adapter(&[source]).expect("an adapter of the tiny model")
}

#[test]
fn adapters_of_a_request_add_up_with_their_scales() {
    let engine = load(tiny_path(), &tiny_options().with_kv_budget(64 << 20));
    let (small, large) = (adapter(&engine, "r4_all", 1.0), adapter(&engine, "r16_all_rs", 1.0));
    let scaled = |adapter: &Arc<Adapter>, scale| ScaledAdapter::new(Arc::clone(adapter), scale);
    let request = |adapters: Vec<ScaledAdapter>| -> GenerateRequest {
        greedy(prompt(40), 16).with_ignore_eos(true).with_adapters(adapters)
    };
    let sources = [("r4_all", 0.5), ("r16_all_rs", 2.0)]
        .map(|(name, scale)| AdapterSource { path: model_data("lora").join(name), scale });
    let loaded = engine.load_adapter(&sources).expect("adapters");
    let expected = complete(&engine, &request(vec![loaded.into()]));
    let parts = vec![scaled(&small, 0.5), scaled(&large, 2.0)];
    let found = complete(&engine, &request(parts.clone()));
    assert_eq!(found.tokens, expected.tokens);
    let single = complete(&engine, &request(vec![scaled(&small, 1.0)]));
    assert_ne!(single.tokens, expected.tokens);
    assert_eq!(
        single.tokens,
        complete(&engine, &greedy(prompt(40), 16).with_ignore_eos(true).with_adapter(Arc::clone(&small)))
            .tokens
    );
    // A scale of 0 is the model without the adapter.
    let none = complete(&engine, &request(vec![scaled(&large, 0.0)]));
    assert_eq!(none.tokens, complete(&engine, &request(Vec::new())).tokens);

    // Scales and sums take no memory.
    let pages = engine.kv_store().pool().stats().used_pages;
    let many: Vec<_> = (1..=20).map(|i| scaled(&small, i as f32 / 64.0)).collect();
    complete(&engine, &request(many).with_cache_prefix(false));
    assert_eq!(engine.kv_store().pool().stats().used_pages, pages);

    let error = engine.generate(request(vec![scaled(&small, f32::NAN)])).expect_err("no number");
    assert!(matches!(error, Error::AdapterScale { .. }), "{error:?}");
    let other = load(crate::common::family_path("qwen2"), &tiny_options());
    let error = other.generate(request(parts)).expect_err("adapters of another model");
    assert!(matches!(error, Error::Forward { .. } | Error::Adapter { .. }), "{error:?}");
}
