//! Adapters of requests: output, prefix hits, and memory.

use std::ops::ControlFlow;
use std::sync::Arc;

use ruvllm::crates::adapters::{
    AdapterStore, Digests, FactorFormat, Layout, LoraFile, Part, Site, SiteShape,
};
use ruvllm::crates::kernels::low_rank::Expansion;
use ruvllm::crates::kernels::quant::SharedBytes;
use ruvllm::{
    Adapter, AdapterSource, CancelToken, Engine, Error, GenerateRequest, InferenceBackend, Precision,
    PrefixCaching, Prompt,
};
use ruvllm_testkit::model_data;
use serde_json::Value;

use crate::backend::Parrot;
use crate::common::{complete, family_path, gated, greedy, load, tiny_options, tiny_path};

fn source(name: &str, scale: f32) -> AdapterSource {
    AdapterSource { path: model_data("lora").join(name), scale }
}

fn adapter(engine: &Engine, name: &str) -> Arc<Adapter> {
    engine.load_adapter(&[source(name, 1.0)]).expect("the adapter is for the model")
}

fn request(tokens: &[u32], adapter: Option<&Arc<Adapter>>) -> GenerateRequest {
    greedy(Prompt::Tokens(tokens.to_vec()), 16).with_ignore_eos(true).with_adapter(adapter.cloned())
}

/// Prompt ids and greedy continuation with an adapter, both from PEFT.
fn golden(name: &str, prompt: &str) -> (Vec<u32>, Vec<u32>) {
    let json = std::fs::read(source("expected.json", 1.0).path).expect("expected.json");
    let json: Value = serde_json::from_slice(&json).expect("valid JSON");
    let named = |list: &Value, name: &str| {
        list.as_array()
            .expect("a list")
            .iter()
            .find(|entry| entry["name"] == name)
            .expect("it is there")
            .clone()
    };
    let prompt = named(&named(&json["adapters"], name)["prompts"], prompt);
    let ids = |list: &Value| serde_json::from_value(list.clone()).expect("ids");
    (ids(&prompt["ids"]), ids(&prompt["greedy"]))
}

#[test]
fn each_request_has_its_own_adapter_and_finds_no_prefix_of_another() {
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Memory));
    let (small, large) = (adapter(&engine, "r1_qv"), adapter(&engine, "r16_all_rs"));
    let (tokens, expected) = golden("r16_all_rs", "medium");
    let base = complete(&engine, &request(&tokens, None));
    let adapted = complete(&engine, &request(&tokens, Some(&large)));
    assert_eq!((adapted.cached_tokens, &adapted.tokens), (0, &expected));
    assert_ne!(base.tokens, adapted.tokens);
    let other = complete(&engine, &request(&tokens, Some(&small)));
    assert_eq!((other.cached_tokens, &other.tokens), (0, &golden("r1_qv", "medium").1));
    // A reloaded adapter gives the same output.
    for adapter in [&large, &adapter(&engine, "r16_all_rs")] {
        let again = complete(&engine, &request(&tokens, Some(adapter)));
        assert_eq!((again.cached_tokens, &again.tokens), (tokens.len() - 1, &expected));
    }
    let again = complete(&engine, &request(&tokens, None));
    assert_eq!((again.cached_tokens, again.tokens), (tokens.len() - 1, base.tokens));
}

#[test]
fn a_conversation_that_changes_its_adapter_begins_anew() {
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Off));
    let large = adapter(&engine, "r16_all_rs");
    let (tokens, expected) = golden("r16_all_rs", "medium");
    let mut conversation = engine.conversation();
    let mut go_on = |adapter: Option<&Arc<Adapter>>| {
        let request = request(&tokens, adapter);
        let completion =
            conversation.generate_with(&request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()));
        completion.map(|completion| (completion.cached_tokens, completion.tokens)).expect("it succeeds")
    };
    let (_, base) = go_on(None);
    assert_eq!(go_on(Some(&large)), (0, expected.clone()));
    assert_eq!(go_on(Some(&large)), (tokens.len() - 1, expected));
    assert_eq!(go_on(None), (0, base));
}

/// An adapter of the logits alone.
fn logits_adapter(engine: &Engine) -> Arc<Adapter> {
    let base = engine.adapter_base();
    let (inputs, outputs) = (base.model_dim, base.vocab_size);
    let expansions = vec![Expansion { target: 0, first: 0, rank: 1, outputs }];
    let shape = SiteShape { layer: 0, site: Site::Logits, rank: 1, inputs, expansions };
    let layout = Arc::new(Layout::new(FactorFormat::F16, [shape]).expect("a layout"));
    let mut bytes = vec![0; layout.bytes() + 64];
    let start = bytes.as_ptr().align_offset(64);
    let factors = &layout.sites()[0].factors;
    for (place, width) in [(factors.a(), inputs), (factors.b(0), outputs)] {
        let values: Vec<f32> = (0..width).map(|i| (i * 37 % 101) as f32 / 8.0 - 6.0).collect();
        let part = &mut bytes[start + place..][..FactorFormat::F16.bytes(1, width)];
        FactorFormat::F16.quantize(width, &values, part);
    }
    let digests = Digests::new(base, &layout, &bytes[start..]);
    let bytes = SharedBytes::new(bytes).slice(start..start + layout.bytes());
    Arc::new(Adapter::from_bytes(Arc::clone(base), layout, bytes, digests).expect("factors of the model"))
}

#[test]
fn adapters_that_change_no_keys_and_values_share_prefixes_with_the_model() {
    let (tokens, _) = golden("r4_all", "medium");
    for prefixes in [PrefixCaching::Memory, PrefixCaching::Off] {
        let engine = load(tiny_path(), &tiny_options().with_prefixes(prefixes.clone()));
        let (logits, large) = (logits_adapter(&engine), adapter(&engine, "r4_all"));
        let fresh = |adapters: &[&Arc<Adapter>]| {
            let adapters = adapters.iter().map(|&adapter| Arc::clone(adapter).into()).collect();
            request(&tokens, None).with_adapters(adapters)
        };
        let alone = |request: GenerateRequest| complete(&engine, &request.with_cache_prefix(false)).tokens;
        let all = [vec![], vec![&logits], vec![&large], vec![&logits, &large]];
        let expected = all.each_ref().map(|adapters| alone(fresh(adapters)));
        assert!(expected[0] != expected[1] && expected[2] != expected[3]);
        // By prefixes, or by the sequence of a conversation.
        let mut conversation = engine.conversation();
        let mut found = Vec::new();
        for adapters in &all {
            let completion = match prefixes {
                PrefixCaching::Off => conversation
                    .generate_with(&fresh(adapters), &CancelToken::new(), &mut |_| ControlFlow::Continue(()))
                    .expect("it succeeds"),
                _ => complete(&engine, &fresh(adapters)),
            };
            found.push((completion.tokens, completion.cached_tokens));
        }
        let shared = tokens.len() - 1;
        let cached = [0, shared, 0, shared];
        assert_eq!(found, expected.into_iter().zip(cached).collect::<Vec<_>>());
    }
}

#[test]
fn gated_requests_find_prefixes_of_the_same_gate_only() {
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Memory));
    let (small, large) = (adapter(&engine, "r4_all"), adapter(&engine, "r16_all_rs"));
    let (tokens, _) = golden("r4_all", "medium");
    let lists = [
        vec![Arc::clone(&small).into(), Arc::clone(&large).into()],
        gated(&engine, &[&small, &large], None, 1),
        gated(&engine, &[&small, &large], None, 2),
        gated(&engine, &[&small, &large], Some(1), 1),
        gated(&engine, &[&large, &small], None, 1),
    ];
    let of = |list: &Vec<_>| request(&tokens, None).with_adapters(list.clone());
    let first = lists.each_ref().map(|list| complete(&engine, &of(list)));
    assert!(first.iter().all(|completion| completion.cached_tokens == 0));
    for (list, first) in lists.iter().zip(&first) {
        let again = complete(&engine, &of(list));
        assert_eq!((again.cached_tokens, &again.tokens), (tokens.len() - 1, &first.tokens));
    }
    let again = complete(&engine, &of(&gated(&engine, &[&small, &large], None, 1)));
    assert_eq!(again.cached_tokens, tokens.len() - 1, "the gate made again");
    // A conversation whose gate changes begins a new sequence.
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Off));
    let mut conversation = engine.conversation();
    let mut cached = |list: &Vec<_>| {
        let completion =
            conversation.generate_with(&of(list), &CancelToken::new(), &mut |_| ControlFlow::Continue(()));
        completion.expect("it succeeds").cached_tokens
    };
    let found = [&lists[1], &lists[1], &lists[2], &lists[0]].map(&mut cached);
    assert_eq!(found, [0, tokens.len() - 1, 0, 0]);
}

#[test]
fn what_names_no_adapter_has_the_engines() {
    let mut engine = load(tiny_path(), &tiny_options());
    let (tokens, expected) = golden("r4_all", "short");
    let last = [tokens.len() - 1];
    let (base, base_logits) =
        (complete(&engine, &request(&tokens, None)), engine.logits(&tokens, &last).expect("logits"));
    let r4 = adapter(&engine, "r4_all");
    engine.set_adapters(&[r4.into()]).expect("a scale");
    assert_eq!(complete(&engine, &request(&tokens, None)).tokens, expected);
    assert_ne!(engine.logits(&tokens, &last).expect("logits"), base_logits);
    engine.set_adapters(&[]).expect("no scale");
    assert!(engine.adapters().is_empty());
    assert_eq!(complete(&engine, &request(&tokens, None)).tokens, base.tokens);
}

#[test]
fn adapters_take_pages_of_the_budget_and_prefixes_make_room() {
    let options =
        tiny_options().with_kv_budget(3 << 20).with_context(256).with_prefixes(PrefixCaching::Memory);
    let engine = load(tiny_path(), &options);
    let pool = engine.kv_store().pool();
    let held = adapter(&engine, "r16_all_rs");
    let pages = pool.stats().used_pages;
    assert!(pages >= 1);
    drop(held);
    assert_eq!(pool.stats().used_pages, 0);
    let mut seed = 0;
    while pool.stats().used_pages < pool.capacity_pages() - 1 && seed < 50 {
        let tokens: Vec<u32> = (0..200).map(|i| (i * 53 + 7 + seed * 31 * (i + 1)) % 500).collect();
        complete(&engine, &request(&tokens, None));
        seed += 1;
    }
    let all: Vec<_> =
        std::iter::from_fn(|| engine.load_adapter(&[source("r16_all_rs", 1.0)]).ok()).take(100).collect();
    assert_eq!(all.len(), pool.capacity_pages(), "prefixes went, adapters that are held stay");
    let refused = engine.load_adapter(&[source("r4_all", 1.0)]).expect_err("there is no room");
    assert!(matches!(refused, Error::Adapter { .. }));
}

#[test]
fn what_cannot_be_applied_is_refused() {
    let qwen = load(family_path("qwen3"), &tiny_options());
    let refused = |name: &str| {
        let Err(Error::Adapter { source }) = qwen.load_adapter(&[source(name, 1.0)]) else {
            panic!("{name}")
        };
        source.to_string()
    };
    assert!(refused("r4_all").contains("r4_all") && refused("r4_all/adapter.gguf").contains("r4_all"));
    assert!(refused("absent").contains("absent"));
    // An adapter of another engine is refused before anything is computed.
    let llama = load(tiny_path(), &tiny_options());
    let request = request(&[1, 2, 3], Some(&adapter(&llama, "r4_all")));
    let none = |_: &str| ControlFlow::Continue(());
    assert!(matches!(
        qwen.generate_with(&request, &CancelToken::new(), &mut none.clone()),
        Err(Error::Forward { .. })
    ));
    let backend = Parrot::saying("Hi");
    let refused = InferenceBackend::generate_with(&backend, &request, &CancelToken::new(), &mut none.clone());
    assert!(matches!(refused, Err(Error::AdapterBackend { .. })));
}

/// Adds an adapter of the test data to a store.
fn add(store: &AdapterStore, engine: &Engine, name: &str) -> std::path::PathBuf {
    let file = LoraFile::open(&source(name, 1.0).path).expect("a PEFT folder");
    let parts = [Part { file: &file, scale: 1.0 }];
    let stored = store.add(name, engine.adapter_base(), &parts, "", false).expect("a compact file");
    stored.file.path().to_owned()
}

#[test]
fn registered_adapters_serve_requests_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = AdapterStore::new(folder.path());
    let engine = load(tiny_path(), &tiny_options());
    let [small, large] = ["r1_qv", "r16_all_rs"].map(|name| add(&store, &engine, name));
    let pool = engine.kv_store().pool();
    let (one, other) = (pool.tenant("one").expect("a tenant"), pool.tenant("other").expect("a tenant"));
    let registry = engine.adapter_registry();
    registry.register(&one, "voice", &small, Precision::F16).expect("a version");

    let (tokens, expected) = golden("r1_qv", "medium");
    let named = engine.named_adapter(&one, "voice", 1.0).expect("a version");
    let request =
        |adapter| greedy(Prompt::Tokens(tokens.clone()), 16).with_ignore_eos(true).with_adapters(adapter);
    assert_eq!(complete(&engine, &request(vec![named.clone()])).tokens, expected);
    // The bytes are those of an adapter that is loaded from its folder.
    assert_eq!(named.adapter.digest(), adapter(&engine, "r1_qv").digest());

    let foreign = engine.named_adapter(&other, "voice", 1.0).expect_err("another tenant's");
    let absent = engine.named_adapter(&other, "none", 1.0).expect_err("nobody's");
    let source = |error: &Error| std::error::Error::source(error).expect("a source").to_string();
    assert_eq!(source(&foreign).replace("voice", "none"), source(&absent));
    assert!(matches!(engine.named_adapter(&one, "voice", f32::NAN), Err(Error::AdapterScale { .. })));

    // A request that has a version ends with it; the next one gets the new version.
    registry.replace(&one, "voice", &large, Precision::F16).expect("a version");
    assert_eq!(complete(&engine, &request(vec![named])).tokens, expected);
    let (tokens, expected) = golden("r16_all_rs", "medium");
    let named = engine.named_adapter(&one, "voice", 1.0).expect("a version");
    let request = greedy(Prompt::Tokens(tokens), 16).with_ignore_eos(true).with_adapters(vec![named]);
    assert_eq!(complete(&engine, &request).tokens, expected);
}
