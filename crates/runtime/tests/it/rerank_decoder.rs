//! Rankings by a tiny decoder that answers `yes` or `no`.

use ruvllm::{
    Embedder, EmbeddingRequest, Engine, EngineOptions, Error, ModelSource, RerankError, RerankRequest,
};
use ruvllm_testkit::model_data;
use serde_json::Value;

use crate::common::{changed_source, tiny_options};

fn engine(options: &EngineOptions) -> Engine {
    Engine::open_with(model_data("rerank/qwen3"), options).expect("it loads")
}

fn cases() -> Vec<Value> {
    let bytes = std::fs::read(model_data("rerank/qwen3/expected.json")).expect("the file");
    serde_json::from_slice(&bytes).expect("a list")
}

fn text<'c>(case: &'c Value, key: &str) -> &'c str {
    case[key].as_str().expect("a text")
}

fn request(case: &Value) -> RerankRequest {
    RerankRequest::new(text(case, "query"), [text(case, "document")])
        .with_instruction(case["instruction"].as_str().map(str::to_owned))
}

/// Bits of the logits, in the order of the documents.
fn bits(engine: &Engine, request: &RerankRequest) -> Vec<u32> {
    let mut results = engine.rerank(request).expect("a ranking").results;
    results.sort_by_key(|found| found.index);
    results.into_iter().map(|found| found.logit.to_bits()).collect()
}

#[test]
fn scores_are_those_of_the_reference() {
    for path in ["rerank/qwen3", "rerank/qwen3/converted.gguf"] {
        let source = ModelSource::Path(model_data(path));
        let reranker = Embedder::load(&source, &tiny_options(), &mut |_| ()).expect("it loads");
        assert!(reranker.is_reranker());
        for case in cases() {
            let ranking = reranker.rerank(&request(&case)).expect("a ranking");
            let found = &ranking.results[0];
            for (found, key) in [(found.logit, "logit"), (found.score(), "score")] {
                let expected = case[key].as_f64().expect("a number");
                assert!((f64::from(found) - expected).abs() < 1e-5, "{path} {found} {case}");
            }
            let tokens = case["ids"].as_array().expect("ids").len();
            assert_eq!((found.tokens, found.truncated), (tokens, case["truncated"] == true), "{case}");
            assert_eq!((found.index, ranking.tokens), (0, tokens));
        }
    }
}

#[test]
fn documents_are_sorted_and_the_best_kept() {
    let first: Vec<_> = cases().into_iter().take(3).collect();
    let request =
        RerankRequest::new(text(&first[0], "query"), first.iter().map(|case| text(case, "document")));
    let engine = engine(&tiny_options());
    let ranking = engine.rerank(&request).expect("a ranking");
    let mut order = [0, 1, 2];
    order.sort_by(|&a, &b| {
        first[b]["logit"].as_f64().partial_cmp(&first[a]["logit"].as_f64()).expect("numbers")
    });
    assert_eq!(ranking.results.iter().map(|found| found.index).collect::<Vec<_>>(), order);
    let best = engine.rerank(&request.with_top_n(1)).expect("a ranking");
    assert_eq!((best.results.as_slice(), best.tokens), (&ranking.results[..1], ranking.tokens));
}

#[test]
fn other_documents_threads_and_passes_change_no_bit_of_a_logit() {
    let documents: Vec<String> = cases().iter().map(|case| text(case, "document").to_owned()).collect();
    let many: Vec<&str> = documents.iter().map(String::as_str).cycle().take(40).collect();
    let of = |documents: &[&str]| RerankRequest::new("a good story", documents.iter().copied());
    let usual = engine(&tiny_options().with_threads(1));
    let all = bits(&usual, &of(&many));
    for options in [
        tiny_options().with_threads(3),
        tiny_options().with_prefill_chunk(7),
        tiny_options().with_prefill_chunk(64),
    ] {
        assert!(all == bits(&engine(&options), &of(&many)), "{options:?}");
    }
    for (document, logit) in many.iter().zip(&all).take(documents.len()) {
        assert_eq!(bits(&usual, &of(&[document])), [*logit], "{document:?}");
    }
    // Also where older keys and values move to another format.
    let tiered = tiny_options()
        .with_kv("tiered:hot=32,sink=0,warm=q8,cold=off".parse::<ruvllm::KvPolicy>().expect("a policy"));
    let tiered = engine(&tiered);
    let all = bits(&tiered, &of(&many));
    for (document, logit) in many.iter().zip(&all).take(documents.len()) {
        assert_eq!(bits(&tiered, &of(&[document])), [*logit], "{document:?}");
    }
}

#[test]
fn long_documents_are_truncated_and_long_queries_refused() {
    let engine = engine(&tiny_options());
    let long = "the cat sat on the mat ".repeat(50);
    let rank = |query: &str, max_tokens: Option<usize>| {
        engine.rerank(&RerankRequest::new(query, [long.as_str()]).with_max_tokens(max_tokens))
    };
    for (max_tokens, tokens) in [(None, 320), (Some(200), 200), (Some(1000), 320)] {
        let found = rank("a cat", max_tokens).expect("a ranking").results.remove(0);
        assert_eq!((found.tokens, found.truncated), (tokens, true));
    }
    let error = rank("a cat", Some(100)).expect_err("no room");
    let is_named =
        matches!(error, Error::Rerank(RerankError::QueryTooLong { tokens: 101.., max_tokens: 100 }));
    assert!(is_named, "{error}");
    assert!(matches!(rank(&long, None), Err(Error::Rerank(RerankError::QueryTooLong { .. }))));
}

#[test]
fn instructions_need_a_prompt_that_has_one() {
    let cross_encoder =
        Embedder::load(&ModelSource::Path(model_data("rerank/bert")), &tiny_options(), &mut |_| ());
    let request = RerankRequest::new("a", ["b"]).with_instruction("find".to_owned());
    let error = cross_encoder.expect("it loads").rerank(&request).expect_err("refused");
    assert!(error.to_string().contains("takes no `instruction`: it is a cross-encoder"), "{error}");
    let error = with_prompt("{query}<|im_end|>{document}<|im_end|>").rerank(&request).expect_err("refused");
    assert!(error.to_string().contains("no line `<Instruct>: `"), "{error}");
    let engine = engine(&tiny_options());
    let usual = "Given a web search query, retrieve relevant passages that answer the query";
    let given = |instruction: &str| bits(&engine, &request.clone().with_instruction(instruction.to_owned()));
    let plain = bits(&engine, &RerankRequest::new("a", ["b"]));
    assert_eq!(given(usual), plain);
    assert_ne!(given("find"), plain);
}

/// The converted model with another prompt.
fn with_prompt(prompt: &str) -> Engine {
    let source = changed_source(model_data("rerank/qwen3/converted.gguf"), |metadata| {
        drop(metadata.insert("tokenizer.chat_template.rerank", prompt));
    });
    Engine::open_with(source, &tiny_options()).expect("it loads")
}

#[test]
fn prompts_without_places_and_other_requests_are_refused() {
    let request = RerankRequest::new("a", ["b"]);
    let error = with_prompt("{query} alone").rerank(&request).expect_err("refused");
    assert!(matches!(error, Error::Rerank(RerankError::Prompt)), "{error}");
    let error = with_prompt("{query} {document} end").rerank(&request).expect_err("refused");
    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(source.contains("expected a special token"), "{error}: {source}");

    let engine = engine(&tiny_options());
    let refused = |request: &RerankRequest| engine.rerank(request).expect_err("refused");
    let none: [&str; 0] = [];
    assert!(matches!(refused(&RerankRequest::new("a", none)), Error::Rerank(RerankError::NoDocuments)));
    assert!(matches!(refused(&RerankRequest::new(" ", ["a"])), Error::Rerank(RerankError::EmptyQuery)));
    assert!(matches!(refused(&request.with_top_n(0)), Error::InvalidOption { name: "top_n", .. }));
    let error = engine.embed(&EmbeddingRequest::new(["a"])).expect_err("no embeddings");
    assert!(matches!(error, Error::Rerank(RerankError::NoEmbeddings)), "{error}");
}
