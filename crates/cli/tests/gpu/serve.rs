//! `serve --device gpu:N`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::gpu;
use crate::program::{command, json_document, run};
use crate::schema;

/// A running server, which is killed at the end of a test.
pub(crate) struct Served {
    child: Child,
    address: String,
}

impl Served {
    pub(crate) fn start(flags: &[&str]) -> Self {
        let mut program = command(&[&["serve", "--port", "0", "--json", "--quiet"], flags].concat());
        let mut child = program.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let document = json_document(&line);
        schema::check_as("serve", &document);
        let address = document["address"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
        Self { child, address }
    }

    /// Status and body of a request on a connection of its own.
    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        let length = body.len();
        let head = "connection: close\r\ncontent-type: application/json";
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: a\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head["HTTP/1.1 ".len()..][..3].parse().unwrap(), body.to_owned())
    }

    pub(crate) fn complete(&self, body: &Value) -> (u16, Value) {
        let (status, text) = self.request("POST", "/v1/completions", &body.to_string());
        (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
    }

    /// Value of a metric.
    fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.request("GET", "/metrics", "");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const PROMPT: &str = "Once upon a time there was a small";

#[test]
fn a_server_on_the_gpu_answers_as_generate_does() {
    let Some(gpu) = gpu() else { return };
    let device = ["--device", &gpu, "--context", "128"];
    let generate = ["generate", "--json", "--temperature", "0", "-n", "8"];
    let expected = run(&[&generate[..], &device, &[PROMPT]].concat()).json()["text"].clone();
    let memory = ["--gpu-memory", "512MiB", "--gpu-sequences", "3", "--gpu-host-memory", "8MiB"];
    let server = Served::start(&[&device[..], &memory].concat());
    let body = json!({"prompt": PROMPT, "temperature": 0, "max_tokens": 8});
    // More clients than contexts.
    let mut name = Value::Null;
    std::thread::scope(|scope| {
        let ask = || server.complete(&body);
        let clients: Vec<_> = (0..5).map(|_| scope.spawn(ask)).collect();
        for client in clients {
            let (status, reply) = client.join().unwrap();
            assert_eq!((status, &reply["choices"][0]["text"]), (200, &expected), "{reply}");
            name = reply["model"].clone();
        }
    });
    for (field, value) in [("session", json!("s")), ("adapters", json!([{"name": "tone"}]))] {
        let mut refused = body.clone();
        refused[field] = value;
        let (status, reply) = server.complete(&refused);
        assert_eq!((status, reply["error"]["param"].as_str()), (400, Some(field)), "{reply}");
    }
    let of = |name: &str| server.metric(&format!("ruvllm_{name}"));
    let model = format!("model={name}");
    assert_eq!(of(&format!("decode_tokens_total{{{model}}}")), 5.0 * 7.0);
    let budget = of(&format!("device_memory_budget_bytes{{{model}}}"));
    let uses = ["weights", "kv_cache", "activations"];
    let used = uses.map(|name| of(&format!("device_memory_bytes{{{model},use=\"{name}\"}}")));
    assert!(used.iter().all(|&bytes| bytes > 0.0) && used.iter().sum::<f64>() <= budget, "{used:?} {budget}");
    let host = ["prefix_lookups_total", "prefix_blocks"].map(|name| of(&format!("host_{name}{{{model}}}")));
    assert!(host[0] >= 5.0 && host[1] == 0.0, "{host:?}: nothing was displaced");
    let mut server = server;
    let kill = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap();
    assert!(kill.success() && server.child.wait().unwrap().success());
}

#[test]
fn a_server_on_the_gpu_drafts_with_a_draft_model() {
    let Some(gpu) = gpu() else { return };
    let draft = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/draft-q8_0.gguf");
    let device = ["--device", &gpu, "--context", "128", "--gpu-sequences", "2"];
    let server = Served::start(&[&device[..], &["--draft", draft, "--speculation", "4"]].concat());
    let plain = Served::start(&[&device[..], &["--speculation", "off"]].concat());
    let body = json!({"prompt": PROMPT, "temperature": 0.7, "seed": 3, "max_tokens": 16});
    let (status, reply) = server.complete(&body);
    let (_, expected) = plain.complete(&body);
    assert_eq!((status, &reply["choices"][0]["text"]), (200, &expected["choices"][0]["text"]), "{reply}");
    let metric = |name: &str| server.metric(&format!("ruvllm_{name}_total{{model={}}}", reply["model"]));
    let [drafted, accepted] = ["drafted_tokens", "accepted_tokens"].map(metric);
    assert!(drafted > 16.0 && accepted <= drafted, "{accepted} of {drafted}");
}

#[test]
fn flags_without_effect_on_a_gpu_are_refused_at_the_start() {
    let Some(gpu) = gpu() else { return };
    let check = ["serve", "--check", "--device", &gpu];
    run(&[&check[..], &["--kv", "q4"]].concat()).fails_with(2, &["--kv", "f16", "--device cpu"]);
    run(&[&check[..], &["--prefix-cache", "on"]].concat()).fails_with(2, &["--prefix-cache"]);
    run(&["serve", "--check", "--device", "gpu:99"]).fails_with(1, &["no adapter gpu:99"]);
    assert!(run(&[&check[..], &["--kv-budget", "64MiB"]].concat()).succeeded());
}
