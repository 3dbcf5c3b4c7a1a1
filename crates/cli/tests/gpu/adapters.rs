//! `--adapter` with `--device gpu:N`, and adapters of a server on a GPU.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::gpu;
use crate::program::{argument, command, data, ids, repository, run, run_with_input};
use crate::serve::Served;

/// The tiny Llama in F16, which a GPU takes as it is.
fn tiny_model() -> PathBuf {
    repository("crates/models/tests/data/tiny/llama/model-F16.gguf")
}

fn lora(name: &str) -> String {
    argument(&repository("crates/models/tests/data/lora").join(name)).to_owned()
}

/// First prompt of an adapter of the tiny Llama as text, and PEFT's continuation.
fn golden(name: &str) -> (String, Vec<u32>) {
    let json: Value = serde_json::from_slice(&std::fs::read(lora("expected.json")).unwrap()).unwrap();
    let all = json["adapters"].as_array().unwrap();
    let prompt = &all.iter().find(|adapter| adapter["name"] == name).unwrap()["prompts"][0];
    let text = ids(&prompt["ids"])[1..].iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let text = run(&["detokenize", &text, "--model", argument(&tiny_model())]).text().to_owned();
    (text, ids(&prompt["greedy"]))
}

#[test]
fn generated_tokens_are_those_of_peft() {
    let Some(gpu) = gpu() else { return };
    let model = tiny_model();
    let arguments = ["generate", "--temperature", "0", "-n", "16", "--json", "-c", "128", "--device", &gpu];
    for (name, file) in [("r1_qv", "r1_qv"), ("r4_all", "r4_all/adapter.gguf"), ("r16_all_rs", "r16_all_rs")]
    {
        let (text, expected) = golden(name);
        let more = [&text, "--model", argument(&model), "--adapter", &lora(file)];
        let document = run(&[&arguments[..], &more].concat()).json();
        assert_eq!(ids(&document["tokens"]), expected, "{file}");
    }
    let gate = ["--adapter", &lora("r1_qv"), "--adapter-gate", "none", "--model", argument(&model), "a"];
    run(&[&arguments[..], &gate].concat()).fails_with(2, &["--adapter-gate", "GPU", "--device cpu"]);
    let other = ["--adapter", &lora("qwen3"), "--model", argument(&model), "a"];
    run(&[&arguments[..], &other].concat()).fails_with(1, &["adapter", "another model"]);
}

#[test]
fn measurements_are_of_the_changed_model() {
    let Some(gpu) = gpu() else { return };
    let (model, text) = (tiny_model(), data("validation-prefix.txt"));
    let nll = |more: &[&str]| {
        let arguments =
            ["eval", "perplexity", "--file", argument(&text), "--context", "24", "--limit", "48", "--json"];
        let run = run(&[&arguments[..], &["--model", argument(&model)], more].concat());
        run.json()["nll"].as_f64().unwrap()
    };
    let adapter = ["--adapter", &lora("r4_all")];
    let (base, expected) = (nll(&[]), nll(&adapter));
    let found = nll(&[&adapter[..], &["--device", &gpu]].concat());
    assert!(
        (found / expected - 1.0).abs() < 1e-3 && (base / expected - 1.0).abs() > 1e-2,
        "{found} {expected} {base}"
    );
    let bench = ["bench", "-p", "8", "-n", "2", "-r", "1", "--json", "--model", argument(&model)];
    let document = run(&[&bench[..], &adapter, &["--device", &gpu]].concat()).json();
    assert_eq!(document["results"].as_array().unwrap().len(), 2, "{document}");
}

#[test]
fn a_conversation_changes_its_adapters() {
    let Some(gpu) = gpu() else { return };
    let adapter = repository("models/adapters/shakespeare");
    let arguments = ["chat", "--temperature", "0", "-n", "8", "-c", "256", "--device", &gpu];
    let choose = format!("/adapter bard={}@3", argument(&adapter));
    let script = format!("Hello\n{choose}\n/regenerate\n/adapter off\n/regenerate\n");
    let run = run_with_input(&arguments, script.as_bytes());
    let (text, notes) = run.text_and_notes();
    assert!(notes.contains("adapters: bard at scale 3"), "{notes}");
    let answer = text.lines().next().unwrap();
    let between = text.strip_prefix(answer).and_then(|rest| rest.trim_end().strip_suffix(answer));
    assert!(between.is_some_and(|between| !between.trim().is_empty()), "{text}");
    let arguments = ["chat", "-c", "64", "--device", &gpu];
    run_with_input(&arguments, b"/adapter poet=nowhere\n").fails_with(1, &["line 1", "nowhere"]);
}

#[test]
fn a_server_on_the_gpu_computes_with_adapters() {
    let Some(gpu) = gpu() else { return };
    let (model, home) = (tiny_model(), tempfile::tempdir().unwrap());
    for name in ["r1_qv", "r16_all_rs"] {
        let mut add = command(&["adapter", "add", name, &lora(name), "--model", argument(&model)]);
        assert!(add.env("RUVLLM_HOME", home.path()).output().unwrap().status.success());
    }
    let stored = home.path().join("adapters");
    let config = home.path().join("server.toml");
    std::fs::write(&config, format!("[folders]\nadapters = '{}'\n", stored.display())).unwrap();
    let prompt = golden("r1_qv").0;
    let device = ["--model", argument(&model), "--device", &gpu, "-c", "128"];
    let generate = ["generate", "--temperature", "0", "-n", "12", "--json", &prompt];
    let expected = |adapter: &[&str]| {
        let document = run(&[&generate[..], &device, adapter].concat()).json();
        document["text"].as_str().unwrap().to_owned()
    };
    let small = expected(&["--adapter", &lora("r1_qv")]);
    let (without, large) = (expected(&[]), expected(&["--adapter", &lora("r16_all_rs")]));
    assert!(small != without && large != without && small != large);

    let poet = format!("poet={}", argument(&stored.join("r1_qv.ruvlora")));
    let server = Served::start(&[&device[..], &["--adapter", &poet, "--config", argument(&config)]].concat());
    let ask = |more: Value| {
        let mut body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 12});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, reply) = server.complete(&body);
        let param = reply["error"]["param"].as_str().map(str::to_owned);
        (status, reply["choices"][0]["text"].as_str().map(str::to_owned).or(param).unwrap_or_default())
    };
    let field = |name: &str, scale: f32| json!({"adapters": [{"name": name, "scale": scale}]});
    // Loaded, listed and removed while the server runs.
    assert_eq!(ask(field("large", 1.0)), (400, "adapters".to_owned()));
    let load = json!({"name": "large", "adapter": "r16_all_rs"}).to_string();
    let (status, reply) = server.request("POST", "/v1/adapters", &load);
    assert_eq!(status, 200, "{reply}");
    let (_, list) = server.request("GET", "/v1/adapters", "");
    assert!(list.contains("\"large\"") && list.contains("\"poet\""), "{list}");
    // By the name of a model, and by the field, all at once.
    let cases = [
        (json!({"model": "poet"}), &small),
        (field("poet", 1.0), &small),
        (json!({}), &without),
        (field("large", 1.0), &large),
        (field("large", 0.0), &without),
    ];
    std::thread::scope(|scope| {
        let clients: Vec<_> = cases.iter().map(|(more, _)| scope.spawn(|| ask(more.clone()))).collect();
        for (client, (more, expected)) in clients.into_iter().zip(&cases) {
            assert_eq!(client.join().unwrap(), (200, (*expected).clone()), "{more}");
        }
    });
    assert_eq!(server.request("DELETE", "/v1/adapters/large", "").0, 200);
    assert_eq!(ask(field("large", 1.0)), (400, "adapters".to_owned()));
}
