//! `eval perplexity`, `eval passkey` and `eval logits`: output forms, files, agreement with
//! `generate`. Reference numbers: see `golden`.

use std::fs;

use crate::program::{argument, data, fields, ids, read_logits, run, run_with_input, without_commit};

fn argmax(row: &[f32]) -> usize {
    (0..row.len()).reduce(|best, i| if row[i] > row[best] { i } else { best }).unwrap()
}

#[test]
fn perplexity_has_the_documented_fields() {
    let file = data("validation-prefix.txt");
    let arguments = ["eval", "perplexity", "--file", argument(&file), "--context", "64", "--limit", "200"];
    let document = run(&[&arguments[..], &["--json"]].concat()).json();
    let setup = ["version", "model", "isa", "threads", "kv"];
    let results = [
        "context",
        "perplexity",
        "perplexity_error",
        "nll",
        "nll_error",
        "tokens",
        "kv_bytes_per_token",
        "complete",
    ];
    assert_eq!(without_commit(fields(&document)), [&setup[..], &results].concat());
    assert_eq!(
        (&document["kv"], &document["complete"], &document["context"]),
        (&"f32".into(), &true.into(), &64.into())
    );
    let error = |name: &str| document[name].as_f64().unwrap();
    assert!(error("nll_error") > 0.0);
    assert!((error("perplexity_error") / error("perplexity") - error("nll_error")).abs() < 1e-12);
    // Three full windows, the first id of each not scored.
    assert_eq!(document["tokens"], 3 * 63);
    let nll = document["nll"].as_f64().unwrap();
    assert!((nll.exp() - document["perplexity"].as_f64().unwrap()).abs() < 1e-9);
    let human = run(&arguments);
    assert!(human.text().contains(&format!("nll {nll:.6}")), "{}", human.text());
}

#[test]
fn perplexity_reads_standard_input() {
    let text = fs::read(data("validation-prefix.txt")).unwrap();
    let arguments = ["eval", "perplexity", "--context", "32", "--limit", "64", "--json", "--file"];
    let piped = run_with_input(&[&arguments[..], &["-"]].concat(), &text).json();
    let named = run(&[&arguments[..], &[argument(&data("validation-prefix.txt"))]].concat()).json();
    assert_eq!(piped, named);
}

/// Largest relative change of the default model's perplexity per KV format, against F32.
const KV_TOLERANCES: [(&str, f64); 4] = [("f16", 3e-3), ("bf16", 5e-3), ("q8", 5e-3), ("q4", 4e-2)];

#[test]
fn formats_of_keys_and_values_keep_the_perplexity() {
    let file = data("validation-prefix.txt");
    let perplexity = |kv: &str| {
        let arguments = ["eval", "perplexity", "--context", "256", "--limit", "2048", "--json", "--kv", kv];
        let document = run(&[&arguments[..], &["--file", argument(&file)]].concat()).json();
        document["perplexity"].as_f64().unwrap()
    };
    let exact = perplexity("f32");
    for (kv, tolerance) in KV_TOLERANCES {
        let ratio = perplexity(kv) / exact;
        assert!((ratio - 1.0).abs() < tolerance, "{kv}: perplexity changes by a factor of {ratio}");
    }
}

#[test]
fn perplexity_is_the_mean_of_the_logits() {
    let text = "The old man looked out of the window and said, I am glad that you have come.";
    let directory = tempfile::tempdir().unwrap();
    let (file, out) = (directory.path().join("text.txt"), directory.path().join("logits.safetensors"));
    fs::write(&file, text).unwrap();
    let tokens = ids(&run(&["tokenize", "--json", "--no-special", text]).json()["tokens"]);
    let n = tokens.len().to_string();
    let measured = run(&["eval", "perplexity", "--file", argument(&file), "--context", &n, "--json"]).json();
    let list = serde_json::json!({ "tokens": tokens }).to_string();
    run_with_input(&["eval", "logits", "--tokens", "-", "--out", argument(&out)], list.as_bytes()).text();
    let (shape, values) = read_logits(&out);
    assert_eq!(shape, [tokens.len(), 8192]);
    let nll = |row: &[f32], target: u32| {
        let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
        sum.ln() - f64::from(row[target as usize])
    };
    let total: f64 = values.chunks(8192).zip(&tokens[1..]).map(|(row, target)| nll(row, *target)).sum();
    let mean = total / (tokens.len() - 1) as f64;
    assert!((mean - measured["nll"].as_f64().unwrap()).abs() < 1e-9, "{mean} and {measured}");
}

#[test]
fn passkey_has_the_documented_fields_and_repeats() {
    let file = data("validation-prefix.txt");
    let arguments =
        ["eval", "passkey", "--file", argument(&file), "--context", "64,96", "--depths", "0.2,0.9"];
    let arguments = [&arguments[..], &["--trials", "2", "--kv", "f16"]].concat();
    let document = run(&[&arguments[..], &["--json"]].concat()).json();
    let names = ["version", "model", "isa", "threads", "kv", "complete", "results"];
    assert_eq!(without_commit(fields(&document)), names);
    let results = document["results"].as_array().unwrap();
    let places: Vec<_> = results.iter().map(|row| (row["context"].clone(), row["depth"].clone())).collect();
    let expected = [(64, 0.2), (64, 0.9), (96, 0.2), (96, 0.9)].map(|(n, depth)| (n.into(), depth.into()));
    assert_eq!(places, expected);
    for row in results {
        assert_eq!(fields(row), ["context", "depth", "trials", "found", "nll", "nll_without"]);
        assert!(row["trials"] == 2 && row["found"].as_u64().unwrap() <= 2, "{row}");
        assert!(row["nll"].as_f64().unwrap() < row["nll_without"].as_f64().unwrap(), "{row}");
    }
    assert_eq!(run(&[&arguments[..], &["--json"]].concat()).json(), document);
    assert_ne!(run(&[&arguments[..], &["--json", "--seed", "1"]].concat()).json(), document);
    let human = run(&arguments);
    assert_eq!(human.text().lines().count(), 5, "{}", human.text());
    let nll = results[0]["nll"].as_f64().unwrap();
    assert!(human.text().lines().nth(1).unwrap().contains(&format!("{nll:.3}")), "{}", human.text());
}

#[test]
fn logits_rows_follow_the_list_of_positions() {
    let directory = tempfile::tempdir().unwrap();
    let (tokens, all, some) = (
        directory.path().join("ids.json"),
        directory.path().join("all.safetensors"),
        directory.path().join("some.safetensors"),
    );
    fs::write(&tokens, "[2537, 874, 274, 670, 27]").unwrap();
    let base = ["eval", "logits", "--tokens", argument(&tokens), "--out"];
    let document = run(&[&base[..], &[argument(&all), "--json"]].concat()).json();
    assert_eq!(fields(&document), ["output", "positions", "vocab_size"]);
    run(&[&base[..], &[argument(&some), "--positions", "4,0,2"]].concat()).text();
    let (shape, all) = read_logits(&all);
    assert_eq!(shape, [5, 8192]);
    let (shape, some) = read_logits(&some);
    assert_eq!(shape, [3, 8192]);
    for (row, position) in [4, 0, 2].into_iter().enumerate() {
        assert_eq!(some[row * 8192..][..8192], all[position * 8192..][..8192], "position {position}");
    }
}

#[test]
fn an_older_file_is_replaced_whole() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("logits.safetensors");
    fs::write(&out, "older").unwrap();
    let replace = ["eval", "logits", "--tokens", "-", "--out", argument(&out), "--force"];
    run_with_input(&replace[..6], b"5 6").fails_with(1, &["logits.safetensors", "--force"]);
    assert_eq!(fs::read(&out).unwrap(), b"older");
    run_with_input(&replace, b"5 6").text();
    assert_eq!(read_logits(&out).0, [2, 8192]);
    // A failed run leaves it unchanged.
    run_with_input(&replace, b"8192").fails_with(1, &["8192"]);
    assert_eq!(read_logits(&out).0, [2, 8192]);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn the_largest_logit_is_what_greedy_generates() {
    let prompt = "The old man looked out of the window and said,";
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("logits.safetensors");
    let tokens = run(&["tokenize", prompt]);
    run_with_input(&["eval", "logits", "--tokens", "-", "--out", argument(&out)], tokens.text().as_bytes())
        .text();
    let (shape, values) = read_logits(&out);
    let last = &values[(shape[0] - 1) * shape[1]..];
    let generated =
        run(&["generate", "--temperature", "0", "--kv", "f32", "-n", "1", "--json", prompt]).json();
    assert_eq!(ids(&generated["tokens"]), [u32::try_from(argmax(last)).unwrap()]);
}
