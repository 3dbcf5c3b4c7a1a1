//! Many requests at once, with memory for a few of them.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Map, Value, json};

use crate::client::Client;
use crate::server;

/// Requests that are sent at the same time.
const CLIENTS: usize = 64;

/// Budget for keys and values: some 20 sequences of this test.
const KV_BYTES: usize = 16 << 20;

/// Prompts; each is sent many times.
const PROMPTS: [&str; 8] = [
    "What is a glacier?",
    "What is the opposite of hot?",
    "How many legs does a spider have?",
    "Tell me a story about a turtle.",
    "Tell me a story about the sea and a lighthouse.",
    "Name a color.",
    "What is the capital of France?",
    "Why is the sky blue?",
];

/// Text of the answer to a prompt, streamed or not.
fn ask(client: &Client, prompt: &str, streams: bool) -> Result<String, String> {
    let body = json!({
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": 48,
        "stream": streams,
    });
    let reply = client.send("POST", "/v1/chat/completions", &Map::new(), Some(&body.to_string()))?;
    if reply.status != 200 {
        return Err(format!("status {}: {}", reply.status, reply.text));
    }
    if !streams {
        let text = reply.json()["choices"][0]["message"]["content"].as_str().map(str::to_owned);
        return text.ok_or_else(|| format!("no text: {}", reply.text));
    }
    let events = reply.events();
    if events.last().is_none_or(|event| event.data != "[DONE]") {
        return Err(format!("the stream is cut: {}", reply.text));
    }
    let chunks = events.iter().filter_map(|event| serde_json::from_str::<Value>(&event.data).ok());
    let texts = chunks.map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().unwrap_or("").to_owned());
    Ok(texts.collect())
}

/// Sends `requests` by 64 clients; every answer is that of the prompt alone.
fn all_get_the_answer_of_a_prompt_alone(requests: usize) {
    let client = server::start_with(KV_BYTES);
    let alone: HashMap<&str, String> =
        PROMPTS.iter().map(|prompt| (*prompt, ask(&client, prompt, false).unwrap())).collect();
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let request = next.fetch_add(1, Ordering::Relaxed);
                    if request >= requests {
                        return;
                    }
                    let prompt = PROMPTS[request % PROMPTS.len()];
                    match ask(&client, prompt, request % 3 > 0) {
                        Ok(text) if text == alone[prompt] => {}
                        Ok(text) => failures.lock().unwrap().push(format!("{prompt}: {text}")),
                        Err(error) => failures.lock().unwrap().push(format!("{prompt}: {error}")),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {requests}: {}", failures.len(), failures.join("\n"));
}

#[test]
fn sixty_four_clients_share_memory_for_twenty() {
    all_get_the_answer_of_a_prompt_alone(160);
}

/// `cargo test --release -p ruvllm-server --test conformance -- --ignored thousand`
#[test]
#[ignore = "a minute in a release build"]
fn a_thousand_requests_share_memory_for_twenty() {
    all_get_the_answer_of_a_prompt_alone(1000);
}
