//! Metrics of learning and tuning.

use serde_json::json;

use super::Served;
use crate::testing::{exchange, request};

#[test]
fn lessons_records_and_adapters_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::learning(folder.path());
    let complete = || {
        let body = json!({"prompt": "The name of the cat is", "max_tokens": 4, "temperature": 0});
        let mut call = request("POST", "/v1/completions", Some(body));
        call.headers_mut().insert("x-request-id", "first".parse().unwrap());
        assert_eq!(exchange(served.router.clone(), call).status, 200);
    };
    complete();
    // The store has a request of this id already.
    complete();
    let correction = json!({"request_id": "first", "correction": " Bartholomew.", "adapter": "cat"});
    for (body, status) in [
        (correction.clone(), 200),
        (correction, 200),
        (json!({"request_id": "first", "rating": 7}), 400),
        (json!({"request_id": "unknown", "rating": 1}), 404),
        (json!({"model": "none", "request_id": "first", "rating": 1}), 404),
    ] {
        assert_eq!(served.post("/v1/feedback", body.clone()), status, "{body}");
    }
    let scrape = served.scrape();
    let value = |name: &str, label: &str| {
        let separator = if label.is_empty() { "" } else { "," };
        scrape.value(&format!(r#"ruvllm_{name}{{model="base"{separator}{label}}}"#))
    };
    let lessons = |result: &str| value("learning_lessons_total", &format!(r#"result="{result}""#));
    assert_eq!((lessons("learned"), lessons("refused")), (2.0, 2.0));
    assert_eq!((lessons("outlier"), lessons("quarantined")), (0.0, 0.0));
    assert_eq!(value("learning_recorded_requests_total", ""), 1.0);
    let dropped = |cause: &str| value("learning_dropped_requests_total", &format!(r#"cause="{cause}""#));
    assert_eq!((dropped("refused"), dropped("queue_full")), (1.0, 0.0));
    let adapters = |standing: &str| value("learning_adapters", &format!(r#"standing="{standing}""#));
    assert_eq!((adapters("learning"), adapters("quarantined")), (1.0, 0.0));
    assert!(!scrape.families.contains_key("ruvllm_learning_harm_nats"), "nothing was judged");
    let decisions = |outcome: &str| value("tuning_decisions_total", &format!(r#"outcome="{outcome}""#));
    let model = served.app.models.loaded().remove(0);
    let tuning = model.engine().unwrap().tuning_status().unwrap();
    for (outcome, made) in [
        ("applied", tuning.applied),
        ("tried", tuning.tried),
        ("kept", tuning.kept),
        ("rolled_back", tuning.rolled_back),
        ("interrupted", tuning.interrupted),
        ("noted", tuning.shifts),
    ] {
        assert_eq!(decisions(outcome), made as f64, "{outcome}");
    }
}

#[test]
fn a_server_that_neither_learns_nor_tunes_has_no_such_metrics() {
    let served = Served::new();
    assert_eq!(served.post("/v1/completions", json!({"prompt": "The sun", "max_tokens": 2})), 200);
    let names = served.scrape().samples.into_keys();
    let found: Vec<_> =
        names.filter(|name| name.contains("_learning_") || name.contains("_tuning_")).collect();
    assert!(found.is_empty(), "{found:?}");
}
