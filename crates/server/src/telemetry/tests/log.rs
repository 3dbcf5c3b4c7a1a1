//! Log lines of requests.

use std::sync::Mutex;

use serde_json::{Value, json};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

use super::{Served, chat};
use crate::config::{Log, LogFormat, LogLevel};
use crate::telemetry::logging::layer;
use crate::testing::{exchange, request};

/// Log lines.
type Lines = Mutex<Vec<u8>>;

#[test]
fn the_log_has_requests_and_no_secrets() {
    static TEXT: Lines = Mutex::new(Vec::new());
    static JSON: Lines = Mutex::new(Vec::new());
    let log = |format| Log { format, level: LogLevel::Debug };
    let subscriber = tracing_subscriber::registry().with(vec![
        layer(&log(LogFormat::Text), || TEXT.make_writer(), false),
        layer(&log(LogFormat::Json), || JSON.make_writer(), false),
    ]);
    // The one subscriber of this process: threads of the engine and of the runtime log to it, too.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let served = Served::new();
    let post = |body: Value, id: &str| {
        let mut request = request("POST", "/v1/chat/completions?api_key=sk-secret-1", Some(body));
        let headers = request.headers_mut();
        headers.insert("authorization", "Bearer sk-secret-2".parse().unwrap());
        headers.insert("x-api-key", "sk-secret-3".parse().unwrap());
        headers.insert("x-request-id", id.parse().unwrap());
        exchange(served.router.clone(), request)
    };
    let messages = json!([{"role": "user", "content": "PLUGH is a secret text"}]);
    let reply = post(chat(&json!({"messages": messages, "stream": true})), "logged-1");
    assert_eq!(reply.status, 200);
    let failed = chat(&json!({"messages": messages, "temperature": "PLUGH", "model": "PLUGH"}));
    assert_eq!(post(failed, "logged-2").status, 400);

    let lines = |lines: &Lines| String::from_utf8(lines.lock().unwrap().clone()).unwrap();
    let of_request = |log: &str, id: &str| {
        let mut lines = log.lines().filter(|line| line.contains(id) && line.contains("request ended"));
        lines.next().unwrap_or_else(|| panic!("no line of {id}: {log}")).to_owned()
    };
    for log in [lines(&TEXT), lines(&JSON)] {
        assert!(!log.contains("sk-secret") && !log.contains("PLUGH"), "{log}");
    }
    let line = of_request(&lines(&TEXT), "logged-1");
    for field in ["endpoint=\"chat_completions\"", "model=\"base\"", "status=200", "outcome=\"success\""] {
        assert!(line.contains(field), "{field}: {line}");
    }
    let line = of_request(&lines(&JSON), "logged-2");
    let line: Value = serde_json::from_str(&line).unwrap();
    let span = &line["span"];
    assert_eq!(
        (&span["request_id"], &span["status"], &span["error"]),
        (&json!("logged-2"), &json!(400), &json!("invalid_request_error"))
    );
    assert!(span["duration_ms"].is_number());
}
