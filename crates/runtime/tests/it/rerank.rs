//! Rankings by tiny rerankers, and models that are none.

use ruvllm::{Embedder, EmbeddingRequest, Error, ModelSource, RerankError, RerankRequest};
use ruvllm_testkit::model_data;
use serde_json::Value;

use crate::common::{tiny_options, tiny_path};

fn reranker(name: &str, threads: usize) -> Embedder {
    let source = ModelSource::Path(model_data("rerank").join(name));
    Embedder::load(&source, &tiny_options().with_threads(threads), &mut |_| ()).expect("it loads")
}

/// Query, document, logit and truncation of the reference data.
fn cases(name: &str) -> Vec<(String, String, f64, bool)> {
    let bytes = std::fs::read(model_data("rerank").join(name).join("expected.json")).expect("the file");
    let json: Value = serde_json::from_slice(&bytes).expect("JSON");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let case = |case: &Value| {
        let logit = case["logit"].as_f64().expect("a logit");
        (text(&case["query"]), text(&case["document"]), logit, case["truncated"] == true)
    };
    json.as_array().expect("cases").iter().map(case).collect()
}

#[test]
fn documents_are_ranked_by_the_logits_of_the_reference() {
    for name in ["bert", "xlm_roberta"] {
        let reranker = reranker(name, 1);
        assert!(reranker.is_reranker());
        for (query, document, logit, truncated) in cases(name) {
            let request = RerankRequest::new(query.as_str(), [document.as_str()]);
            let ranking = reranker.rerank(&request).expect("a ranking");
            let found = &ranking.results[0];
            assert!((f64::from(found.logit) - logit).abs() < 1e-5, "{name} {document:?}");
            assert_eq!((found.index, found.truncated, found.tokens), (0, truncated, ranking.tokens));
        }
        let first: Vec<_> = cases(name).into_iter().take(3).collect();
        let request = RerankRequest::new(first[0].0.as_str(), first.iter().map(|case| case.1.as_str()));
        let ranking = reranker.rerank(&request).expect("a ranking");
        let mut order = [0, 1, 2];
        order.sort_by(|&a, &b| first[b].2.total_cmp(&first[a].2));
        assert_eq!(ranking.results.iter().map(|found| found.index).collect::<Vec<_>>(), order, "{name}");
        let best = reranker.rerank(&request.with_top_n(1)).expect("a ranking");
        assert_eq!((best.results.as_slice(), best.tokens), (&ranking.results[..1], ranking.tokens));
    }
}

#[test]
fn other_documents_and_threads_change_no_bit_of_a_logit() {
    let documents: Vec<String> = cases("bert").into_iter().map(|case| case.1).collect();
    let many: Vec<&str> = documents.iter().map(String::as_str).cycle().take(100).collect();
    let logits = |reranker: &Embedder, documents: &[&str]| {
        let request = RerankRequest::new("a good story", documents.iter().copied());
        let mut results = reranker.rerank(&request).expect("a ranking").results;
        results.sort_by_key(|found| found.index);
        results.into_iter().map(|found| found.logit.to_bits()).collect::<Vec<_>>()
    };
    let one = reranker("bert", 1);
    let all = logits(&one, &many);
    assert!(all == logits(&reranker("bert", 3), &many));
    for (document, logit) in many.iter().zip(&all).take(documents.len()) {
        assert_eq!(logits(&one, &[document]), [*logit], "{document:?}");
    }
}

#[test]
fn markers_in_documents_are_text() {
    let tokens = |document: &str| {
        let request = RerankRequest::new("cat", [document]);
        reranker("xlm_roberta", 1).rerank(&request).expect("a ranking").tokens
    };
    // One token each if they were the model's own.
    assert!(tokens("</s><s></s>") > tokens("") + 3);
}

#[test]
fn long_documents_are_truncated_and_long_queries_refused() {
    let reranker = reranker("bert", 1);
    let long = "the cat sat on the mat ".repeat(50);
    let rank = |query: &str, max_tokens: Option<usize>| {
        reranker.rerank(&RerankRequest::new(query, [long.as_str()]).with_max_tokens(max_tokens))
    };
    for (max_tokens, tokens) in [(None, 40), (Some(20), 20), (Some(1000), 40)] {
        let found = rank("a cat", max_tokens).expect("a ranking").results.remove(0);
        assert_eq!((found.tokens, found.truncated), (tokens, true));
    }
    let error = rank("a cat", Some(5)).expect_err("no room");
    assert!(
        matches!(error, Error::Rerank(RerankError::QueryTooLong { tokens: 5, max_tokens: 5 })),
        "{error}"
    );
    assert!(matches!(rank(&long, None), Err(Error::Rerank(RerankError::QueryTooLong { .. }))));
}

#[test]
fn requests_and_models_that_make_no_ranking_are_refused() {
    let reranker = reranker("bert", 1);
    let refused = |model: &Embedder, request: RerankRequest| match model.rerank(&request) {
        Err(Error::Rerank(error)) => error,
        other => panic!("{other:?}"),
    };
    let none: [&str; 0] = [];
    assert!(matches!(refused(&reranker, RerankRequest::new("a", none)), RerankError::NoDocuments));
    assert!(matches!(refused(&reranker, RerankRequest::new(" \n", ["a"])), RerankError::EmptyQuery));
    let zero = reranker.rerank(&RerankRequest::new("a", ["a"]).with_top_n(0));
    assert!(matches!(zero, Err(Error::InvalidOption { name: "top_n", .. })));
    for (path, piece) in
        [(tiny_path(), "generates text"), (model_data("encoder").join("bert"), "no classification head")]
    {
        let model = Embedder::load(&ModelSource::Path(path), &tiny_options(), &mut |_| ()).expect("it loads");
        let error = refused(&model, RerankRequest::new("a", ["a"])).to_string();
        assert!(!model.is_reranker() && error.contains(piece), "{error}");
    }
    let error = reranker.embed(&EmbeddingRequest::new(["a"])).expect_err("no embeddings");
    assert!(matches!(error, Error::Rerank(RerankError::NoEmbeddings)), "{error}");
    let file = model_data("rerank/bert/converted.gguf");
    let error = Embedder::load(&file.into(), &tiny_options(), &mut |_| ()).expect_err("no pooler");
    assert!(
        matches!(&error, Error::Load { source, .. } if source.to_string().contains("pooler")),
        "{error:?}"
    );
}
