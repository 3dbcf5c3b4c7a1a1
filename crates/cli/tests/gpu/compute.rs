//! GPU results compared with those of the CPU.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::gpu;
use crate::program::{argument, data, fields, ids, read_logits, run, run_with_input};

/// A file beside the built-in model.
fn models(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name)
}

/// Greedy tokens of the built-in model on a device.
fn greedy(device: &str, more: &[&str]) -> Vec<u32> {
    let arguments = ["generate", "--json", "--temperature", "0", "-n", "16", "--device", device];
    let run = run(&[&arguments[..], more, &["Once upon a time there was a small"]].concat());
    let document = run.json();
    assert_eq!(document["finish_reason"], "length");
    ids(&document["tokens"])
}

#[test]
fn greedy_tokens_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let expected = greedy("cpu", &[]);
    assert_eq!(greedy(&gpu, &["--context", "64", "--threads", "1"]), expected);
    assert_eq!(greedy(&gpu, &["--context", "64", "--gpu-layers", "1"]), expected);
}

#[test]
fn conversations_compute_only_what_is_new() {
    let Some(gpu) = gpu() else { return };
    let arguments = ["chat", "--json", "--temperature", "0", "-n", "6", "-c", "256", "--device", &gpu];
    let document = run_with_input(&arguments, b"Hello\nWhy?\n").json();
    let turns = document["turns"].as_array().unwrap();
    assert_eq!(turns.len(), 2, "{document}");
    assert_eq!(turns[0]["cached_tokens"], 0);
    assert!(turns[1]["cached_tokens"].as_u64().unwrap() >= turns[0]["prompt_tokens"].as_u64().unwrap());
}

#[test]
fn measurements_agree_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let file = data("validation-prefix.txt");
    let text =
        ["eval", "perplexity", "--file", argument(&file), "--context", "24", "--limit", "48", "--json"];
    let measure = |device: &str| run(&[&text[..], &["--device", device]].concat()).json();
    let (found, expected) = (measure(&gpu), measure("cpu"));
    // The schema says which fields these may have.
    assert!(found.get("isa").is_none() && found["gpu"]["adapter"].is_string(), "{found}");
    assert!(expected["isa"].is_string() && expected.get("gpu").is_none(), "{expected}");
    let ratio = found["nll"].as_f64().unwrap() / expected["nll"].as_f64().unwrap();
    assert!((ratio - 1.0).abs() < 1e-2, "{found} and {expected}");

    let directory = tempfile::tempdir().unwrap();
    let logits = |device: &str| {
        let out = directory.path().join(device);
        let arguments = ["eval", "logits", "--tokens", "-", "--out", argument(&out), "--device", device];
        let run =
            run_with_input(&[&arguments[..], &["--positions", "7,2,3"]].concat(), b"1 5 9 40 7 8 100 3");
        run.text();
        read_logits(&out)
    };
    let (found, expected) = (logits(&gpu), logits("cpu"));
    assert_eq!((&found.0, found.0[0]), (&expected.0, 3));
    let largest = expected.1.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
    let worst = found.1.iter().zip(&expected.1).fold(0.0_f32, |a, (f, e)| a.max((f - e).abs()));
    assert!(worst < 0.05 * largest, "{worst} of {largest}");
}

#[test]
fn bench_has_the_fields_of_the_cpu_and_names_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let arguments = ["bench", "-p", "16", "-n", "2", "-g", "3", "-d", "8", "-r", "2", "--device", &gpu];
    let document = run(&[&arguments[..], &["--json"]].concat()).json();
    assert!(document.get("isa").is_none(), "{document}");
    assert_eq!(fields(&document["gpu"]), ["adapter", "weights_bytes", "host_weights_bytes", "kv_bytes"]);
    let results = document["results"].as_array().unwrap();
    let tests: Vec<&str> = results.iter().map(|result| result["test"].as_str().unwrap()).collect();
    assert_eq!(tests, ["pp16", "tg2", "greedy3"]);
    for result in results {
        assert_eq!(fields(result), ["test", "threads", "batch", "depth", "kv", "runs", "tokens_per_s"]);
        assert_eq!((&result["depth"], &result["kv"]), (&8.into(), &"f16".into()));
    }
}

#[test]
fn parallel_requests_are_measured_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let arguments = ["bench", "--parallel", "1,3", "-n", "4", "-r", "1", "--device", &gpu];
    let document = run(&[&arguments[..], &["-p", "12", "--json"]].concat()).json();
    assert!(document.get("isa").is_none() && document["gpu"]["adapter"].is_string(), "{document}");
    let results = document["parallel"].as_array().unwrap();
    for (result, parallel) in results.iter().zip([1, 3]) {
        assert_eq!((&result["parallel"], &result["requests"]), (&parallel.into(), &parallel.into()));
        assert_eq!((&result["threads"], &result["kv"]), (&1.into(), &"f16".into()));
        assert!(result["tokens_per_s"].as_f64().unwrap() > 0.0, "{result}");
    }
    let shared = ["-p", "48", "--shared-prefix", "40", "--json"];
    let document = run(&[&arguments[..], &shared].concat()).json();
    // A whole block of 32 tokens, that the uncounted round has stored.
    assert_eq!(document["parallel"][1]["cached_tokens"], 3 * 32, "{document}");
    // Random tokens, in which there is little to look up.
    let drafts = run(&[&arguments[..], &["-p", "12", "--speculation", "2", "--json"]].concat()).json();
    let found = &drafts["parallel"][1]["speculation"];
    assert_eq!(found["setting"], "2", "{drafts}");
    assert!(found["drafted_tokens"].is_u64() && document["parallel"][1].get("speculation").is_none());
}

#[test]
fn a_text_that_repeats_itself_is_drafted_and_stays_the_same() {
    let Some(gpu) = gpu() else { return };
    let text = "The fox ran to the river. The fox ran to the river. The fox ran to the";
    let arguments =
        ["generate", "--json", "-n", "20", "--temperature", "0", "--context", "128", "--device", &gpu];
    let generate =
        |speculation| run(&[&arguments[..], &["--speculation", speculation, text]].concat()).json();
    let (plain, drafted) = (generate("off"), generate("4"));
    assert_eq!(plain["tokens"], drafted["tokens"]);
    let count = |field: &str| drafted["speculation"][field].as_u64().unwrap_or(0);
    assert!(count("accepted_tokens") > 3, "{drafted}");
    assert!(plain.get("speculation").is_none_or(|none| none["drafted_tokens"] == 0), "{plain}");
}

#[test]
fn a_draft_model_drafts_on_the_gpu_and_the_text_stays_the_same() {
    let Some(gpu) = gpu() else { return };
    let draft = models("draft-q8_0.gguf");
    let device = ["--context", "128", "--device", &gpu];
    let with_draft = ["--draft", argument(&draft), "--speculation", "4"];
    let arguments =
        ["generate", "--json", "-n", "16", "--temperature", "0", "Once upon a time there was a small"];
    let arguments = [&arguments[..], &device].concat();
    let plain = run(&[&arguments[..], &["--speculation", "off"]].concat()).json();
    let looked_up = run(&[&arguments[..], &["--speculation", "4"]].concat()).json();
    let drafted = run(&[&arguments[..], &with_draft].concat()).json();
    assert_eq!(plain["tokens"], drafted["tokens"]);
    let count = |document: &Value, field: &str| document["speculation"][field].as_u64().unwrap_or(0);
    let [alone, all] = [&looked_up, &drafted].map(|document| count(document, "drafted_tokens"));
    assert!(all > alone && count(&drafted, "accepted_tokens") > 0, "{looked_up} {drafted}");

    let bench = ["bench", "--parallel", "2", "-p", "12", "-n", "8", "-r", "1", "--json", "--device", &gpu];
    let document = run(&[&bench[..], &with_draft].concat()).json();
    let counted = &document["parallel"][0]["speculation"];
    // Each step of a request has a draft.
    assert!(counted["drafted_tokens"].as_u64().unwrap() > 8, "{document}");

    let chat = ["chat", "--json", "--temperature", "0", "-n", "8"];
    let chat = |more: &[&str]| run_with_input(&[&chat[..], &device, more].concat(), b"Hello\nWhy?\n").json();
    let (plain, drafted) = (chat(&["--speculation", "off"]), chat(&with_draft));
    for turn in 0..2 {
        let [plain, drafted] = [&plain, &drafted].map(|document| &document["turns"][turn]);
        assert_eq!(plain["text"], drafted["text"]);
        assert!(count(drafted, "drafted_tokens") > 0, "{drafted}");
    }
    let other = models("../crates/models/tests/data/quant/llama-Q8_0.gguf");
    let refused = ["generate", "--draft", argument(&other), "-n", "2", "Once"];
    run(&[&refused[..], &device].concat()).fails_with(1, &["cannot draft", "512 tokens"]);
}

#[test]
fn a_prediction_head_drafts_on_the_gpu_and_the_text_stays_the_same() {
    let Some(gpu) = gpu() else { return };
    let form = models("../crates/models/tests/data/prediction/glm4moe");
    let folder = tempfile::tempdir().unwrap();
    fs::copy(form.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    // An end token that the text does not come to.
    let config = fs::read_to_string(form.join("config.json")).unwrap();
    let config = config.replace("\"eos_token_id\": 2,", "\"eos_token_id\": 71,");
    fs::write(folder.path().join("config.json"), config).unwrap();
    let vocab: serde_json::Map<_, _> = (0..72).map(|id| (format!("t{id}"), id.into())).collect();
    let model = json!({ "type": "WordLevel", "vocab": vocab, "unk_token": "t0" });
    let tokenizer = json!({ "version": "1.0", "added_tokens": [], "model": model }).to_string();
    fs::write(folder.path().join("tokenizer.json"), tokenizer).unwrap();
    let arguments = ["generate", "--json", "-n", "24", "--temperature", "0", "--context", "128"];
    let model = ["--model", argument(folder.path()), "--device", &gpu, "t9"];
    let generate = |more: &[&str]| run(&[&arguments[..], more, &model].concat()).json();
    let plain = generate(&["--speculation", "off"]);
    let count = |document: &Value| document["speculation"]["drafted_tokens"].as_u64().unwrap_or(0);
    let [with, without] =
        [generate(&["--speculation", "3"]), generate(&["--speculation", "3", "--draft", "off"])];
    for document in [&with, &without] {
        assert_eq!(document["tokens"], plain["tokens"]);
    }
    // The head drafts in every step: look-up alone finds something in few.
    assert!(count(&with) > 24 && count(&with) > count(&without), "{with} {without}");
}

#[test]
fn choices_are_generated_together_and_are_those_of_their_seeds() {
    let Some(gpu) = gpu() else { return };
    let arguments = ["generate", "--json", "-n", "6", "--context", "64", "--device", &gpu];
    let text = |more: &[&str]| run(&[&arguments[..], more, &["Once upon a time"]].concat()).json();
    let all = text(&["--n", "3", "--seed", "5"]);
    let choices = all["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for (choice, seed) in choices.iter().zip(["5", "6", "7"]) {
        let alone = text(&["--seed", seed]);
        assert_eq!((&choice["tokens"], &choice["text"]), (&alone["tokens"], &alone["text"]), "seed {seed}");
        assert_eq!(choice["seed"].to_string(), seed);
    }
    let shown =
        ["generate", "-n", "4", "--context", "64", "--seed", "5", "--n", "2", "--device", &gpu, "Once"];
    let shown = run(&shown);
    let first = shown.text().find("--- choice 1 of 2 ---").unwrap();
    assert!(shown.text().find("--- choice 2 of 2 ---").unwrap() > first, "{}", shown.text());
    run(&[&arguments[..], &["--best-of", "2", "Once"]].concat()).fails_with(2, &["--best-of", "CPU only"]);
}
