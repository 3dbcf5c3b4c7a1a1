//! `--adapter` and `/adapter`: effects, and errors of unusable adapters.

use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, TensorInfo};
use ruvllm_adapters::Projection;
use ruvllm_adapters::export::{AdapterFormat, FactorType, NewAdapter, NewUpdate};
use serde_json::Value;

use crate::program::{argument, data, fields, ids, read_logits, repository, run, run_with_input, tiny_model};

fn lora(name: &str) -> PathBuf {
    repository("crates/models/tests/data/lora").join(name)
}

fn option(name: &str, file: &str) -> String {
    format!("{name}={}", argument(&lora(file)))
}

/// First prompt of an adapter of the tiny Llama, and PEFT's continuation.
fn golden(name: &str) -> (Vec<u32>, Vec<u32>) {
    let json: Value = serde_json::from_slice(&std::fs::read(lora("expected.json")).unwrap()).unwrap();
    let all = json["adapters"].as_array().unwrap();
    let prompt = &all.iter().find(|adapter| adapter["name"] == name).unwrap()["prompts"][0];
    (ids(&prompt["ids"]), ids(&prompt["greedy"]))
}

#[test]
fn generated_tokens_are_those_of_peft() {
    let model = tiny_model();
    for (name, form) in [("r1_qv", "r1_qv"), ("r4_all", "r4_all/adapter.gguf"), ("r16_all_rs", "r16_all_rs")]
    {
        let (prompt, expected) = golden(name);
        let text = prompt[1..].iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        let text = run(&["detokenize", &text, "--model", argument(&model)]).text().to_owned();
        let document = run(&[
            "generate",
            &text,
            "--model",
            argument(&model),
            "--adapter",
            &option("a", form),
            "--temperature",
            "0",
            "--kv",
            "f32",
            "-n",
            "16",
            "--json",
        ])
        .json();
        assert_eq!(document["prompt_tokens"], prompt.len());
        assert_eq!(ids(&document["tokens"]), expected, "{form}");
    }
}

#[test]
fn measurements_are_of_the_changed_model_and_parts_add_up() {
    let (model, text) = (tiny_model(), data("validation-prefix.txt"));
    let nll = |adapters: &[&str]| {
        let mut arguments =
            vec!["eval", "perplexity", "--file", argument(&text), "--context", "64", "--limit", "64"];
        arguments.extend(["--json", "--model", argument(&model)]);
        adapters.iter().for_each(|adapter| arguments.extend(["--adapter", adapter]));
        run(&arguments).json()["nll"].as_f64().unwrap()
    };
    let whole = option("a", "r4_all");
    let half = format!("{whole}@0.5");
    let (base, changed) = (nll(&[]), nll(&[&whole]));
    assert!((base - changed).abs() > 0.01, "{base} {changed}");
    assert!((nll(&[&half, &half]) - changed).abs() < 1e-5);
    assert_eq!(nll(&[&format!("{whole}@0")]), base);
    let out = tempfile::tempdir().unwrap();
    let rows = |name: &str, adapters: &[&str]| {
        let tokens = out.path().join("tokens.json");
        std::fs::write(&tokens, "[1, 2, 3]").unwrap();
        let file = out.path().join(name);
        let arguments =
            ["eval", "logits", "--tokens", argument(&tokens), "--out", argument(&file), "--model"];
        run(&[&arguments[..], &[argument(&model)], adapters].concat()).text();
        read_logits(&file)
    };
    assert_ne!(rows("base", &[]), rows("changed", &["--adapter", &whole]));
    let document = run(&[
        "bench",
        "-m",
        argument(&model),
        "--adapter",
        &whole,
        "-p",
        "8",
        "-n",
        "2",
        "-r",
        "1",
        "--json",
    ]);
    assert_eq!(document.json()["results"].as_array().unwrap().len(), 2);
}

#[test]
fn a_conversation_changes_its_adapters() {
    let folder = repository("crates/models/tests/data/tiny/llama/hf");
    let (small, large) = (option("small", "r1_qv"), option("large", "r16_all_rs"));
    let chat = |arguments: &[&str], lines: &[&str]| {
        let fixed = ["chat", "--temperature", "0", "-n", "8", "--json", "--model", argument(&folder)];
        let input = lines.join("\n") + "\n";
        run_with_input(&[&fixed[..], arguments].concat(), input.as_bytes())
    };
    let answers = |arguments: &[&str], lines: &[&str]| {
        let run = chat(arguments, lines);
        let (document, _) = run.json_and_warnings();
        assert_eq!(fields(&document), ["messages", "settings", "turns", "load_ms"]);
        let messages = document["messages"].as_array().unwrap().clone();
        messages.iter().skip(1).step_by(2).map(|message| message["content"].clone()).collect::<Vec<_>>()
    };
    let base = answers(&[], &["Hello"]);
    let with_large = answers(&["--adapter", &large], &["Hello"]);
    assert_ne!(base, with_large);
    let read = format!("/adapter {large}");
    assert_eq!(answers(&[], &[&read, "Hello"]), with_large);
    assert_eq!(answers(&["--adapter", &large], &["/adapter off", "Hello"]), base);
    let both = ["--adapter", &small, "--adapter", &large];
    assert_eq!(answers(&both, &["/adapter large", "Hello"]), with_large);
    assert_eq!(answers(&both, &["/adapter large@0 small@0", "Hello"]), base);
    assert_eq!(answers(&[], &[&read, "/adapter off", "/adapter large", "/reset", "Hello"]), with_large);

    let run = chat(&both, &["/adapter", "/adapter small@0.5", "/adapter", "/adapter off", "/adapter"]);
    let (_, said) = run.json_and_warnings();
    let (confirmed, rows): (Vec<&str>, Vec<&str>) = said.lines().partition(|line| line.starts_with('['));
    assert_eq!(confirmed, ["[adapters: small at scale 0.5]", "[no adapter]"]);
    let states: Vec<&str> = rows.iter().map(|line| line.split("  ").nth(1).unwrap_or("").trim()).collect();
    assert_eq!(states, ["scale 1", "scale 1", "scale 0.5", "off", "off", "off"], "{said}");
    let run = chat(&[], &["/adapter"]);
    let (_, said) = run.json_and_warnings();
    assert!(said.contains("there are no adapters"), "{said}");
}

#[test]
fn adapters_that_cannot_be_used_are_one_line() {
    let model = tiny_model();
    let with = |adapter: &str| run(&["generate", "x", "--model", argument(&model), "--adapter", adapter]);
    for text in ["r4_all", "=x", "a=", "a b=x", "a=x@inf"] {
        with(text).fails_with(2, &["--adapter"]);
    }
    with("a=/nonexistent/lora").fails_with(1, &["/nonexistent/lora", "No such file"]);
    with(&format!("a={}", argument(&model))).fails_with(1, &["it is a model, not an adapter"]);
    with(&format!("a={}", argument(&data("README.md")))).fails_with(1, &["README.md is no adapter"]);
    with(&option("a", "phi3")).fails_with(1, &["phi3", "it is for another model"]);
    with(&option("a", "phi3/adapter.gguf")).fails_with(1, &["architecture phi3", "llama"]);
    let budget = ["generate", "x", "--adapter"];
    run(&[&budget[..], &[&option("a", "r4_all")]].concat()).fails_with(1, &["it is for another model"]);
    let lines = |text: &str| run_with_input(&["chat", "--model", argument(&model)], text.as_bytes());
    lines("/adapter nobody\n").fails_with(1, &["line 1", "there is no adapter nobody", "/adapter NAME=PATH"]);
    lines("/adapter a=/nonexistent\n").fails_with(1, &["line 1", "/nonexistent"]);
}

#[test]
fn a_scale_that_is_no_number_is_said_so() {
    let file = argument(&crate::program::tiny_model()).to_owned();
    run(&["generate", "--adapter", &format!("poet={file}@abc"), "hello"])
        .fails_with(2, &["the scale abc of", "is not a number"]);
    let chat = crate::program::run_with_input(&["chat", "--temperature", "0"], b"/adapter poet@abc\n");
    chat.fails_with(1, &["line 1", "the scale abc of poet is not a number"]);
}

/// Writes a PEFT folder with an adapter of the last down projection alone: keys and values do not
/// depend on it.
fn write_late_adapter(path: &Path) {
    let gguf = Gguf::open(tiny_model()).unwrap();
    let down = |tensor: &&TensorInfo| tensor.name.ends_with("ffn_down.weight");
    let layer = gguf.tensors().filter(down).count() - 1;
    let shape = gguf.tensors().find(down).unwrap();
    let [inputs, outputs] = [shape.dims[0] as usize, shape.dims[1] as usize];
    let factor = |n: usize| (0..n).map(|i| (i * 37 % 101) as f32 / 8.0 - 6.0).collect();
    let (a, b) = (factor(inputs), factor(outputs));
    let update =
        NewUpdate { projection: Projection::Down, layer, peft_name: None, rank: 1, inputs, outputs, a, b };
    let adapter = NewAdapter::new(AdapterFormat::Peft, None, FactorType::F32, vec![update]).unwrap();
    adapter.write(path, false).unwrap();
}

#[test]
fn a_switch_prefills_only_where_keys_and_values_change() {
    let folder = tempfile::tempdir().unwrap();
    let late = folder.path().join("late");
    write_late_adapter(&late);
    let late = format!("/adapter late={}", argument(&late));
    let large = format!("/adapter {}", option("large", "r16_all_rs"));
    let model = repository("crates/models/tests/data/tiny/llama/hf");
    let turns = |switch: &[&str]| {
        let arguments = ["chat", "--temperature", "0", "-n", "8", "--json", "--model", argument(&model)];
        let lines = [&["Hello"], switch, &["And now?"]].concat().join("\n") + "\n";
        let (document, _) = run_with_input(&arguments, lines.as_bytes()).json_and_warnings();
        let turn = |index: usize| document["turns"][index].clone();
        let counts = ["prompt_tokens", "cached_tokens"].map(|count| turn(1)[count].as_u64().unwrap());
        (counts, document["messages"][3]["content"].clone())
    };
    let ([prompt, kept], answer) = turns(&[]);
    assert!(kept > 0 && kept < prompt, "{kept} of {prompt}");
    let (counts, switched) = turns(&[&late]);
    assert_eq!(counts, [prompt, kept], "the sequence goes on, nothing of it is computed again");
    assert_ne!(switched, answer, "the adapter counts");
    assert_eq!(turns(&[&late, "/adapter off"]), ([prompt, kept], answer));
    let (counts, _) = turns(&[&large]);
    assert_eq!(counts, [prompt, 0]);
    let (counts, _) = turns(&[&large, "/adapter off"]);
    assert_eq!(counts, [prompt, kept], "only the adapters of the answer count");
}
