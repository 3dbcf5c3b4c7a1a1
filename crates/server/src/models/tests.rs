//! Models of a backend other than the engine, over the router.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use axum::Router;
use serde_json::{Value, json};

use super::fragile::served;
use crate::testing::{Reply, app, exchange, request, router_of, send_to};

fn post(router: &Router, path: &str, body: Value) -> Reply {
    send_to(router.clone(), "POST", path, Some(body))
}

fn completion(more: Value) -> Value {
    let mut body = json!({"model": "base", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 8});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Parts of a reply that depend neither on time nor on the prefix cache, which counts in its usage.
fn steady(path: &str, body: &Value, router: &Router) -> Vec<Value> {
    let reply = post(router, path, body.clone());
    assert_eq!(reply.status, 200, "{path} {body}: {}", reply.text);
    let documents = match body["stream"] == true {
        false => vec![reply.json()],
        true if path == "/v1/messages" => reply.events().into_iter().map(|(_, data)| data).collect(),
        true => reply.chunks(),
    };
    let strip = |mut document: Value| {
        for name in ["id", "created", "timings", "message", "usage"] {
            document.as_object_mut().unwrap().remove(name);
        }
        document
    };
    documents.into_iter().map(strip).collect()
}

/// The generated text of a stream, whose pieces depend on time.
fn streamed(path: &str, body: &Value, router: &Router) -> String {
    let text = |chunk: &Value| {
        let choice = &chunk["choices"][0];
        let piece = choice["text"].as_str().or(choice["delta"]["content"].as_str());
        piece.or(chunk["delta"]["text"].as_str()).unwrap_or_default().to_owned()
    };
    steady(path, body, router).iter().map(text).collect()
}

#[test]
fn replies_of_a_backend_are_those_of_the_engine() {
    let ((device, _), engine) = (served(), router_of(app()));
    let messages = json!([{"role": "user", "content": "What is a glacier?"}]);
    let chat = json!({"model": "base", "messages": messages, "temperature": 0, "max_tokens": 8});
    for (path, body) in [
        ("/v1/completions", completion(json!({"echo": true, "logprobs": 2, "stop": ["."]}))),
        ("/v1/completions", completion(json!({"n": 2, "temperature": 0.9, "seed": 5}))),
        ("/v1/completions", completion(json!({"prompt": ["The sea", "The sky"]}))),
        ("/v1/completions", completion(json!({"grammar": "root ::= \" yes\" | \" no\""}))),
        ("/v1/chat/completions", chat.clone()),
        ("/v1/messages", chat.clone()),
    ] {
        assert_eq!(steady(path, &body, &device), steady(path, &body, &engine), "{path} {body}");
        let mut streams = body.clone();
        streams["stream"] = true.into();
        if body["n"].is_null() && body["prompt"].is_string() {
            assert_eq!(streamed(path, &streams, &device), streamed(path, &streams, &engine), "{path} {body}");
        }
    }
    let tokens = json!({"model": "base", "content": "Once upon"});
    assert_eq!(post(&device, "/tokenize", tokens.clone()).text, post(&engine, "/tokenize", tokens).text);
    let props = send_to(device.clone(), "GET", "/props", None).json();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 256);
    let models = send_to(device, "GET", "/v1/models", None).json();
    assert_eq!(models["data"][0]["context_length"], 256);
}

#[test]
fn fields_that_a_backend_lacks_are_refused_by_name() {
    let (router, _) = served();
    let long = "many words ".repeat(400);
    for (path, body, field) in [
        ("/v1/completions", completion(json!({"session": "s"})), "session"),
        ("/v1/completions", completion(json!({"adapters": [{"name": "tone"}]})), "adapters"),
        ("/v1/completions", completion(json!({"temperature": -1.0})), "temperature"),
        ("/v1/embeddings", json!({"model": "base", "input": ["a cat"]}), "model"),
    ] {
        let reply = post(&router, path, body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &field.into()), "{}", reply.text);
    }
    let reply = post(&router, "/v1/completions", completion(json!({"prompt": long})));
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded", "{}", reply.text);
    let sessions = send_to(router.clone(), "GET", "/v1/sessions", None).json();
    assert_eq!(sessions["data"], json!([]));
}

/// The value of a metric; `None` without it.
fn metric(router: &Router, name: &str) -> Option<f64> {
    let reply = exchange(router.clone(), request("GET", "/metrics", None));
    let line = reply.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}

#[test]
fn metrics_count_the_steps_of_a_backend_and_its_memory() {
    let (router, _) = served();
    post(&router, "/v1/completions", completion(json!({"ignore_eos": true})));
    // The last of 8 tokens is not computed.
    assert_eq!(metric(&router, "ruvllm_decode_tokens_total{model=\"base\"}"), Some(7.0));
    assert_eq!(metric(&router, "ruvllm_requests_running{model=\"base\"}"), Some(0.0));
    assert_eq!(metric(&router, "ruvllm_batch_size_count{model=\"base\"}"), Some(8.0));
    let memory = |rest: &str| metric(&router, &format!("ruvllm_device_memory{rest}"));
    assert_eq!(memory("_bytes{model=\"base\",use=\"weights\"}"), Some(2000.0));
    assert_eq!(memory("_bytes{model=\"base\",use=\"activations\"}"), Some(400.0));
    assert_eq!(memory("_budget_bytes{model=\"base\"}"), Some(9000.0));
    assert_eq!(memory("_reserved_bytes{model=\"base\"}"), Some(4096.0));
    assert_eq!(metric(&router, "ruvllm_model_memory_bytes{model=\"base\"}"), Some(0.0));
    assert_eq!(metric(&router, "ruvllm_prefix_lookups_total{model=\"base\"}"), Some(5.0));
    assert_eq!(metric(&router, "ruvllm_prefix_hits_total{model=\"base\"}"), Some(3.0));
    let names = ["lookups_total", "hits_total", "displaced_blocks_total", "blocks"];
    let host = names.map(|name| metric(&router, &format!("ruvllm_host_prefix_{name}{{model=\"base\"}}")));
    assert_eq!(host, [4.0, 2.0, 11.0, 7.0].map(Some));
}

#[test]
fn requests_of_a_lost_backend_get_503_and_the_next_one_loads_the_model_again() {
    let (router, device) = served();
    let expected = post(&router, "/v1/completions", completion(json!({}))).json()["choices"].clone();
    let long = completion(json!({"max_tokens": 240, "ignore_eos": true}));
    let running = std::thread::spawn({
        let router = router.clone();
        move || post(&router, "/v1/completions", long)
    });
    let start = Instant::now();
    while metric(&router, "ruvllm_requests_running{model=\"base\"}") != Some(1.0) {
        assert!(start.elapsed() < Duration::from_secs(60) && !running.is_finished(), "it does not run");
    }
    device.lose();
    let reply = running.join().unwrap();
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (503, &"backend_lost".into()),
        "{}",
        reply.text
    );

    // The first load after the loss fails, as while a driver starts anew.
    device.failures.store(1, SeqCst);
    let reply = post(&router, "/v1/completions", completion(json!({})));
    assert_eq!(reply.status, 503, "{}", reply.text);
    let reply = post(&router, "/v1/completions", completion(json!({})));
    assert_eq!((reply.status, &reply.json()["choices"]), (200, &expected), "{}", reply.text);
    assert_eq!(device.loads.lock().len(), 2);

    // Without the device the engine answers.
    device.lose();
    device.is_absent.store(true, SeqCst);
    let reply = post(&router, "/v1/completions", completion(json!({})));
    assert_eq!((reply.status, &reply.json()["choices"]), (200, &expected), "{}", reply.text);
    let embedded = post(&router, "/v1/embeddings", json!({"model": "base", "input": ["a cat"]}));
    assert_eq!(embedded.status, 200, "the engine is there: {}", embedded.text);
}
