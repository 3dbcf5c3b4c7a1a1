//! Errors: their codes, and the details of Google's error model.

use std::time::Duration;

use ruvllm_server::auth::Scope;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt as _;

use crate::proto::generate_request::Constraint;
use crate::proto::{EmbedRequest, GenerateRequest};
use crate::support::{Keys, TestServer, endless, eventually, prompt, with_key};

fn reason(status: &Status) -> String {
    status.get_details_error_info().map(|info| info.reason).unwrap_or_default()
}

fn field(status: &Status) -> String {
    let fields = status.get_details_bad_request().map(|request| request.field_violations);
    fields.and_then(|fields| Some(fields.first()?.field.clone())).unwrap_or_default()
}

#[test]
fn calls_need_a_key_with_the_scope() {
    let mut keys = Keys::new();
    let (valid, other) = (keys.add("valid", Scope::Inference), keys.add("other", Scope::Metrics));
    let server = TestServer::start(&keys.settings(""));
    assert_eq!(server.output(with_key(prompt("The sun", 2), &valid)).unwrap()[0].tokens.len(), 2);
    for key in ["rk-unknown", ""] {
        let status = server.output(with_key(prompt("The sun", 2), key)).unwrap_err();
        assert_eq!((status.code(), reason(&status).as_str()), (Code::Unauthenticated, "INVALID_API_KEY"));
    }
    assert_eq!(server.output(prompt("The sun", 2)).unwrap_err().code(), Code::Unauthenticated);
    let status = server.output(with_key(prompt("The sun", 2), &other)).unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(status.message().contains("inference"), "{status}");
    // In the header of Anthropic's clients too.
    let mut request = Request::new(prompt("The sun", 2));
    request.metadata_mut().insert("x-api-key", valid.parse().unwrap());
    server.output(request).unwrap();
}

#[test]
fn limits_of_tenants_tell_the_time_to_wait() {
    let server = TestServer::start("[tenants.default]\nrequests_per_minute = 1");
    let mut client = server.client();
    let reply = server.run(client.generate(prompt("The sun", 1))).unwrap();
    assert_eq!(reply.metadata().get("x-ratelimit-remaining-requests").unwrap(), "0");
    drop(reply);
    // The limit is that of HTTP, not one beside it.
    let body = serde_json::json!({"prompt": "The sun", "max_tokens": 1});
    assert_eq!(server.http("POST", "/v1/completions", "", &body).0, 429);
    let status = server.run(client.generate(prompt("The sun", 1))).unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "RATE_LIMIT_EXCEEDED"));
    let wait = status.get_details_retry_info().unwrap().retry_delay.unwrap();
    assert!(wait > Duration::ZERO && wait <= Duration::from_secs(60), "{wait:?}");
    let pushback: u64 =
        status.metadata().get("grpc-retry-pushback-ms").unwrap().to_str().unwrap().parse().unwrap();
    assert!((1..=60_000).contains(&pushback));
    let errors = r#"ruvllm_request_errors_total{endpoint="grpc_generate",type="rate_limit_error"}"#;
    eventually("the error is not counted", || server.metric(errors) == 1.0);
}

#[test]
fn faults_of_messages_name_the_field() {
    let server = TestServer::start("");
    let base = || prompt("The sun", 2);
    let schema =
        |text: &str| GenerateRequest { constraint: Some(Constraint::JsonSchema(text.into())), ..base() };
    let deep = format!("{}1{}", "[".repeat(500), "]".repeat(500));
    for (request, name) in [
        (GenerateRequest { top_p: Some(2.0), ..base() }, "top_p"),
        (GenerateRequest { n: Some(0), ..base() }, "n"),
        (GenerateRequest { logprobs: Some(21), ..base() }, "logprobs"),
        (GenerateRequest { stop: vec![String::new()], ..base() }, "stop"),
        (GenerateRequest { prompt: None, ..base() }, "text"),
        (schema("{"), "json_schema"),
        (schema(&deep), "json_schema"),
        (schema(r#"{"type": "no such type"}"#), "json_schema"),
    ] {
        let status = server.output(request).unwrap_err();
        assert_eq!((status.code(), field(&status).as_str()), (Code::InvalidArgument, name), "{status}");
    }
    let mut client = server.client();
    let status = server.run(client.embed(EmbedRequest::default())).unwrap_err();
    assert_eq!((status.code(), field(&status).as_str()), (Code::InvalidArgument, "texts"));
    let unknown = GenerateRequest { model: Some("none".into()), ..base() };
    let status = server.output(unknown).unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::NotFound, "MODEL_NOT_FOUND"));
}

#[test]
fn long_messages_are_refused() {
    let server = TestServer::start("[limits]\nbody_bytes = '16KiB'");
    server.output(prompt("The sun", 1)).unwrap();
    let status = server.output(prompt(&"word ".repeat(8 << 10), 1)).unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "REQUEST_TOO_LARGE"));
    assert!(status.message().contains("limits.body_bytes"), "{status}");
    assert!(status.get_details_retry_info().is_none());
}

#[test]
fn deadlines_of_clients_end_their_requests() {
    let server = TestServer::start("");
    let mut request = Request::new(endless());
    // Not `set_timeout`, after which the client of `tonic` ends the call itself.
    request.metadata_mut().insert("grpc-timeout", "300m".parse().unwrap());
    let status = server.output(request).unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    let errors = r#"ruvllm_request_errors_total{endpoint="grpc_generate",type="timeout_error"}"#;
    eventually("the error is not counted", || server.metric(errors) == 1.0);
    let mut request = Request::new(prompt("The sun", 1));
    request.metadata_mut().insert("grpc-timeout", "soon".parse().unwrap());
    assert_eq!(server.output(request).unwrap_err().code(), Code::InvalidArgument);
}
