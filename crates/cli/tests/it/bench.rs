//! `bench`: output forms. No test asserts a time.

use crate::program::{argument, fields, run, tiny_model, without_commit};

const SMALL: [&str; 9] = ["bench", "-p", "16,8", "-n", "4", "-r", "2", "-t", "1,2"];

#[test]
fn the_document_has_the_documented_fields() {
    let document = run(&[&SMALL[..], &["-d", "8", "--kv", "f32", "--json"]].concat()).json();
    assert_eq!(
        without_commit(fields(&document)),
        ["version", "model", "isa", "results", "load_ms", "resident_bytes", "anonymous_bytes"]
    );
    assert_eq!(document["version"], env!("CARGO_PKG_VERSION"));
    // Sources outside of a repository have no commit.
    let in_repository = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.git")).exists();
    assert_eq!(document.get("commit").is_some(), in_repository);
    assert!(document.get("commit").is_none_or(|commit| commit.as_str().unwrap().len() == 40));
    assert_eq!(document["model"]["name"], "base-q8_0");
    let fingerprint = document["model"]["fingerprint"].as_str().unwrap();
    assert!(
        fingerprint.len() == 64 && fingerprint.bytes().all(|digit| digit.is_ascii_hexdigit()),
        "{fingerprint}"
    );
    let results = document["results"].as_array().unwrap();
    let tests: Vec<(&str, u64)> = results
        .iter()
        .map(|result| (result["test"].as_str().unwrap(), result["threads"].as_u64().unwrap()))
        .collect();
    assert_eq!(tests, [("pp16", 1), ("pp16", 2), ("pp8", 1), ("pp8", 2), ("tg4", 1), ("tg4", 2)]);
    for result in results {
        assert_eq!(
            fields(result),
            ["test", "threads", "batch", "depth", "kv", "runs", "tokens_per_s", "tokens_per_cpu_s"]
        );
        assert_eq!(result["batch"], 512);
        assert_eq!(result["depth"], 8);
        assert_eq!(result["kv"], "f32");
        assert_eq!(result["runs"], 2);
        for speed in [&result["tokens_per_s"], &result["tokens_per_cpu_s"]] {
            assert_eq!(fields(speed), ["median", "min", "max"]);
            let [median, min, max] = ["median", "min", "max"].map(|name| speed[name].as_f64().unwrap());
            assert!(0.0 < min && min <= median && median <= max, "{speed}");
        }
    }
}

#[test]
fn the_human_form_is_a_table() {
    let run = run(&SMALL);
    let text = run.text();
    let header = text.lines().find(|line| line.starts_with("test")).unwrap();
    assert!(header.contains("threads") && header.contains("t/s"), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("pp") || line.starts_with("tg")).count(), 6);
}

#[test]
fn zero_leaves_a_test_out() {
    let document = run(&["bench", "-p", "0", "-n", "2", "-r", "1", "-b", "2", "--json"]).json();
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 1);
    assert_eq!(results[0]["test"], "tg2");
    assert_eq!(results[0]["batch"], 2);
    run(&["bench", "-p", "0", "-n", "0"]).fails_with(2, &["-p", "-n"]);
}

#[test]
fn more_than_the_context_is_refused() {
    run(&["bench", "-p", "5000", "-n", "0"]).fails_with(1, &["5000", "4096"]);
}

#[test]
fn parallel_requests_have_latencies() {
    let tiny = tiny_model();
    let arguments = ["bench", "-m", argument(&tiny), "--parallel", "1,6", "-p", "48", "-n", "6", "-r", "2"];
    let shared = [&arguments[..], &["--shared-prefix", "32", "--json"]].concat();
    let document = run(&shared).json();
    let results = document["parallel"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    for (result, parallel) in results.iter().zip([1, 6]) {
        assert_eq!((&result["parallel"], &result["requests"]), (&parallel.into(), &(2 * parallel).into()));
        assert!(result["ttft_ms"]["p50"].as_f64().unwrap() > 0.0, "{result}");
        assert!(result["ttft_ms"]["p99"].as_f64() >= result["ttft_ms"]["p50"].as_f64(), "{result}");
        assert!(result["tokens_per_s"].as_f64().unwrap() > 0.0, "{result}");
    }
    // One block of 32 tokens is shared by all but the first request.
    assert!(results[1]["cached_tokens"].as_u64().unwrap() >= 32 * 6, "{document}");
    let text = run(&arguments);
    assert!(text.text().contains("TTFT p50"), "{}", text.text());
    run(&["bench", "--shared-prefix", "4"]).fails_with(2, &["--parallel"]);
    run(&["bench", "--parallel", "0"]).fails_with(2, &["--parallel"]);
}

#[test]
fn drafts_of_parallel_requests_are_counted_when_asked_for() {
    let tiny = tiny_model();
    let arguments = ["bench", "-m", argument(&tiny), "--parallel", "2", "-p", "8", "-n", "40", "-r", "1"];
    let speculation = |flags: &[&str]| {
        let document = run(&[&arguments, flags, &["--json"]].concat()).json();
        document["parallel"][0].get("speculation").cloned()
    };
    assert_eq!(speculation(&[]), None);
    assert_eq!(speculation(&["--speculation", "off"]), None);
    let fixed = speculation(&["--speculation", "4", "--draft", argument(&tiny)]).unwrap();
    assert_eq!(fields(&fixed), ["setting", "drafted_tokens", "accepted_tokens"]);
    assert_eq!(fixed["setting"], "4");
    let [drafted, accepted] = ["drafted_tokens", "accepted_tokens"].map(|name| fixed[name].as_u64().unwrap());
    // The model drafts for itself.
    assert!(0 < accepted && accepted <= drafted, "{fixed}");
    assert_eq!(speculation(&["--draft", argument(&tiny)]).unwrap()["setting"], "auto");
    let text = run(&[&arguments[..], &["--speculation", "4", "--draft", argument(&tiny)]].concat());
    assert!(text.text().contains(" drafts accepted"), "{}", text.text());
    run(&["bench", "--speculation", "auto"]).fails_with(2, &["--parallel"]);
}
