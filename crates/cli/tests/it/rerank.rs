//! `rerank`.

use std::fs;

use crate::program::{argument, fields, repository, run, run_with_input};

const QUERY: &str = "where did the cat sit";
const DOCUMENTS: [&str; 3] = ["The cat sat on the mat.", "A turtle told a story about the world.", ""];

fn model(name: &str) -> String {
    argument(&repository("crates/models/tests/data").join(name)).to_owned()
}

#[test]
fn documents_are_printed_with_scores_in_their_order() {
    let bert = model("rerank/bert");
    let rerank = ["rerank", "--model", &bert, QUERY];
    // The logits of transformers: 0.2125, -0.3080 and -0.6868.
    let scores = "0.5529\t1\tA turtle told a story about the world.\n0.4236\t2\t\n0.3348\t0\tThe cat sat on the mat.\n";
    assert_eq!(run(&[&rerank[..], &DOCUMENTS].concat()).text(), scores);
    let input = DOCUMENTS.join("\n") + "\n";
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, &input).unwrap();
    assert_eq!(run(&[&rerank[..], &["--documents", argument(file.path())]].concat()).text(), scores);
    for more in [&[][..], &["-"], &["--documents", "-"]] {
        assert_eq!(run_with_input(&[&rerank[..], more].concat(), input.as_bytes()).text(), scores);
    }
    let best = run(&[&rerank[..], &["--top", "1", "--raw-scores"], &DOCUMENTS].concat());
    assert_eq!(best.text(), "0.2125\t1\tA turtle told a story about the world.\n");
}

#[test]
fn the_json_document_has_scores_and_logits() {
    let xlm_roberta = model("rerank/xlm_roberta/converted.gguf");
    let long = "A very long document. ".repeat(40);
    let run = run(&["rerank", "--json", "--model", &xlm_roberta, QUERY, DOCUMENTS[0], &long]);
    let (document, warnings) = run.json_and_warnings();
    assert_eq!(fields(&document), ["results", "tokens"]);
    assert_eq!(
        warnings,
        "warning: document 2 has more than 40 tokens with the query; the rest was left out\n"
    );
    let results = document["results"].as_array().unwrap();
    let named = ["index", "relevance_score", "logit", "tokens", "truncated", "document"];
    assert!(results.len() == 2 && results.iter().all(|result| fields(result) == named));
    let first = results.iter().find(|result| result["index"] == 0).unwrap();
    assert_eq!((&first["document"], &first["truncated"]), (&DOCUMENTS[0].into(), &false.into()));
    let number = |name: &str| first[name].as_f64().unwrap();
    assert!((number("relevance_score") - 1.0 / (1.0 + (-number("logit")).exp())).abs() < 1e-6);
}

#[test]
fn decoders_rank_by_their_answers_and_take_an_instruction() {
    let qwen3 = model("rerank/qwen3");
    let rerank = ["rerank", "--model"];
    let ranked = run(&[&rerank[..], &[&qwen3, "--json", QUERY], &DOCUMENTS].concat()).json();
    // The scores of transformers; here keys and values have 16 bits.
    let expected = [(2, 0.633_758_8), (1, 0.616_191_5), (0, 0.083_257_7)];
    for (found, (index, score)) in ranked["results"].as_array().unwrap().iter().zip(expected) {
        assert_eq!(found["index"], index);
        assert!((found["relevance_score"].as_f64().unwrap() - score).abs() < 5e-4, "{found}");
    }
    let scores = run(&[&rerank[..], &[&qwen3, QUERY], &DOCUMENTS].concat());
    let output = tempfile::tempdir().unwrap();
    let converted = output.path().join("converted.gguf");
    run(&["convert", &qwen3, argument(&converted)]).text();
    for model in [&model("rerank/qwen3/converted.gguf"), argument(&converted)] {
        let ranked = run(&[&rerank[..], &[model, QUERY], &DOCUMENTS].concat());
        assert_eq!(ranked.text(), scores.text(), "{model}");
    }
    let instruction = ["--instruction", "Find a story of an animal"];
    let told = run(&[&rerank[..], &[&qwen3, "a very good story", DOCUMENTS[1]], &instruction].concat());
    assert!(told.text().starts_with("0.358"), "{told:?}");
    run(&["embed", "--model", &qwen3, "text"]).fails_with(1, &["`rerank`"]);
    run(&["generate", "--model", &qwen3, "--max-tokens", "2", "text"]).text();
    let bert = model("rerank/bert");
    run(&["rerank", "--model", &bert, "--instruction", "find", QUERY, "text"])
        .fails_with(1, &["no `instruction`", "cross-encoder"]);
}

#[test]
fn what_cannot_be_ranked_is_refused() {
    let (bert, encoder) = (model("rerank/bert"), model("encoder/bert"));
    run(&["rerank", QUERY, "text"]).fails_with(1, &["is no reranker", "generates text"]);
    run(&["rerank", "--model", &encoder, QUERY, "text"]).fails_with(1, &["no classification head"]);
    run(&["rerank", "--model", &bert, " ", "text"]).fails_with(1, &["the query is empty"]);
    run(&["rerank", "--model", &bert, &"cat ".repeat(50), "text"]).fails_with(1, &["no room for a document"]);
    run(&["rerank", "--model", &bert, "--top", "0", QUERY, "text"]).fails_with(2, &["--top"]);
    run(&["rerank", "--model", &bert, "--documents", "x", QUERY, "text"]).fails_with(2, &["--documents"]);
    run(&["rerank", "--model", &bert]).fails_with(2, &["QUERY"]);
    run_with_input(&["rerank", "--model", &bert, QUERY], b"")
        .fails_with(1, &["standard input", "no document"]);
    run(&["rerank", "--device", "gpu", QUERY, "text"]).fails_with(2, &["`ruvllm rerank`", "CPU only"]);
    run(&["embed", "--model", &bert, "text"]).fails_with(1, &["`rerank`"]);
    let file = model("rerank/bert/converted.gguf");
    run(&["rerank", "--model", &file, QUERY, "text"]).fails_with(1, &["left out the pooler"]);
}
