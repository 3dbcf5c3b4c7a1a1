//! Feedback over HTTP, from the recorded request to the changed answer.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use serde_json::{Value, json};

use crate::app::{App, RequestLimits};
use crate::config::{Config, Learning, Tenant};
use crate::gate::Gate;
use crate::learning::background;
use crate::models::{ModelEntry, ModelSet};
use crate::router::router;
use crate::testing::{Reply, exchange, request, send_to, small};

const PROMPT: &str = "The name of the cat is";

/// A server that learns in a folder, unless `tenant` says otherwise.
fn server(folder: &Path, tenant: Tenant) -> Router {
    server_of(models(folder), tenant).1
}

/// The models of a server that learns in a folder.
fn models(folder: &Path) -> ModelSet {
    let options = ruvllm::EngineOptions::default().with_threads(1).with_kv_budget(256 << 20);
    let models = ModelSet::new(vec![ModelEntry::new("base", small("base"), options)], None);
    let (folder, consolidation_lessons) = (Some(folder.to_owned()), Some(16));
    models.with_learning(Learning { folder, consolidation_lessons, ..Learning::default() })
}

/// A server of these models, with a tenant.
fn server_of(models: ModelSet, tenant: Tenant) -> (Arc<App>, Router) {
    let app = Arc::new(App::new(models, RequestLimits::default()));
    let mut config = Config::default();
    config.tenants.insert("default".to_owned(), tenant);
    let router = router(Arc::clone(&app), Arc::new(Gate::new(&config).unwrap()));
    (app, router)
}

fn learning() -> Tenant {
    Tenant { learning: true, ..Tenant::default() }
}

/// Completes the prompt in a request with this id.
fn complete(router: &Router, id: &str, adapters: &Value) -> String {
    let body = json!({"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "adapters": adapters});
    let mut call = request("POST", "/v1/completions", Some(body));
    call.headers_mut().insert("x-request-id", id.parse().unwrap());
    let reply = exchange(router.clone(), call);
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.json()["choices"][0]["text"].as_str().unwrap().to_owned()
}

fn feedback(router: &Router, body: Value) -> Reply {
    send_to(router.clone(), "POST", "/v1/feedback", Some(body))
}

fn refused(router: &Router, body: Value, status: u16, piece: &str) {
    let reply = feedback(router, body.clone());
    assert_eq!(reply.status, status, "{body}: {}", reply.text);
    assert!(reply.text.contains(piece), "{body}: {}", reply.text);
}

#[test]
fn feedback_on_a_recorded_request_is_learned_kept_and_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let router = server(folder.path(), learning());
    let base = complete(&router, "first", &json!([]));
    let correct = json!({"request_id": "first", "correction": " Bartholomew the Third.", "adapter": "cat"});
    let first = feedback(&router, correct.clone()).json();
    assert_eq!((&first["result"], &first["adapter"]), (&json!("learned"), &json!("cat")));
    let number = |reply: &Value, key: &str| reply[key].as_f64().unwrap();
    assert!(number(&first, "log_probability_after") > number(&first, "log_probability_before"));
    for _ in 0..3 {
        assert_eq!(feedback(&router, correct.clone()).json()["result"], "learned");
    }
    let rated = feedback(&router, json!({"request_id": "first", "rating": -1.0, "adapter": "cat"})).json();
    assert!(number(&rated, "log_probability_after") < number(&rated, "log_probability_before"), "{rated}");

    let get = |router: &Router, path: &str| send_to(router.clone(), "GET", path, None).json();
    let status = get(&router, "/v1/sona/adapters/cat");
    assert_eq!((&status["lessons"], &status["standing"]), (&json!(5), &json!("learning")));
    assert_eq!(complete(&router, "base", &json!([])), base, "requests without the adapter are the base's");
    complete(&router, "adapted", &json!([{"name": "cat"}]));
    drop(router);

    // A server that was restarted goes on with the same bits, and requests can name the adapter.
    let router = server(folder.path(), learning());
    complete(&router, "again", &json!([{"name": "cat"}]));
    assert_eq!(get(&router, "/v1/sona/adapters/cat")["digest"], status["digest"]);
    let post = |path: &str, body: Value| send_to(router.clone(), "POST", path, Some(body)).json();
    let replay = post("/v1/sona/adapters/cat/replay", json!({}));
    assert_eq!((&replay["equal"], &replay["digest"]), (&json!(true), &status["digest"]));

    let forgotten = post("/v1/sona/forget", json!({"request_id": "first"}));
    assert_eq!((&forgotten["requests"], &forgotten["entries"]), (&json!(1), &json!(5)), "{forgotten}");
    assert_eq!(get(&router, "/v1/sona/adapters")["data"][0]["lessons"], 0);
    assert_eq!(complete(&router, "after", &json!([{"name": "cat"}])), base);
    refused(&router, correct, 404, "request_id");
    post("/v1/sona/forget", json!({"all": true}));
    refused(&router, json!({"request_id": "after", "rating": 1}), 404, "request_id");
}

#[test]
fn bad_feedback_is_refused_and_teaches_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let router = server(folder.path(), Tenant { lessons_per_minute: Some(16), ..learning() });
    for (body, status, piece) in [
        (json!({}), 400, "request_id"),
        (json!({"request_id": "unknown", "rating": 1}), 404, "request_id"),
        (json!({"request_id": "unknown", "correction": "x"}), 404, "request_id"),
        (json!({"prompt": "a", "rating": 1}), 400, "correction"),
        (json!({"prompt": "a", "response": "b", "rating": 1.5}), 400, "[-1, 1]"),
        (json!({"prompt": "a", "response": "b", "rating": "good"}), 400, "rating"),
        (json!({"prompt": "a", "correction": ""}), 400, "correction"),
        (json!({"prompt": "a", "messages": [], "correction": "b"}), 400, "prompt or messages"),
        (json!({"prompt": "a", "correction": "word ".repeat(100_000)}), 400, "100002 tokens"),
        (json!({"request_id": "a", "prompt": "a", "correction": "b"}), 400, "either request_id"),
        (json!({"prompt": "a", "correction": "b", "adapter": "../x"}), 400, "adapter"),
        (json!({"model": "none", "prompt": "a", "correction": "b"}), 404, "model"),
    ] {
        refused(&router, body, status, piece);
    }
    let list = send_to(router.clone(), "GET", "/v1/sona/adapters", None).json();
    assert!(list["data"].as_array().unwrap().iter().all(|adapter| adapter["updates"] == 0), "{list}");
    let absent = send_to(router.clone(), "POST", "/v1/sona/adapters/none/release", Some(json!({})));
    assert_eq!(absent.status, 404);
    let unclear = send_to(router.clone(), "POST", "/v1/sona/forget", Some(json!({})));
    assert_eq!(unclear.status, 400);
    let limited = (0..16).map(|_| feedback(&router, json!({})).status).filter(|status| *status == 429);
    assert!(limited.count() > 8);
}

#[test]
fn nothing_is_recorded_or_taught_for_a_tenant_without_learning() {
    let folder = tempfile::tempdir().unwrap();
    let router = server(folder.path(), Tenant::default());
    complete(&router, "first", &json!([]));
    refused(&router, json!({"request_id": "first", "rating": 1}), 403, "learning is off");
    let list = send_to(router, "GET", "/v1/sona/adapters", None);
    assert_eq!(list.status, 403);
    let router = server(folder.path(), learning());
    refused(&router, json!({"request_id": "first", "rating": 1}), 404, "request_id");
}

#[test]
fn models_say_whether_feedback_teaches_them() {
    let folder = tempfile::tempdir().unwrap();
    let feedback = |router: &Router, path: &str| {
        let reply = send_to(router.clone(), "GET", path, None).json();
        reply.pointer("/data/0").unwrap_or(&reply).get("feedback").cloned()
    };
    let router = server(folder.path(), learning());
    for path in ["/v1/models", "/v1/models/base"] {
        assert_eq!(feedback(&router, path), Some(json!(true)), "{path} before the model is loaded");
    }
    complete(&router, "first", &json!([]));
    assert_eq!(feedback(&router, "/v1/models"), Some(json!(true)));
    assert_eq!(feedback(&server(folder.path(), Tenant::default()), "/v1/models"), None);
}

#[test]
fn a_damaged_store_leaves_the_model_without_learning() {
    let folder = tempfile::tempdir().unwrap();
    let router = server(folder.path(), learning());
    complete(&router, "first", &json!([]));
    drop(router);
    for entry in folder.path().read_dir().unwrap() {
        std::fs::write(entry.unwrap().path(), b"this is no store").unwrap();
    }
    let router = server(folder.path(), learning());
    complete(&router, "second", &json!([]));
    refused(&router, json!({"prompt": "a", "correction": "b"}), 503, "store");
    let models = send_to(router, "GET", "/v1/models", None).json();
    assert_eq!(models["data"][0].get("feedback"), None, "{models}");
}

#[test]
fn lessons_are_consolidated_in_the_background() {
    let folder = tempfile::tempdir().unwrap();
    let (app, router) = server_of(models(folder.path()), learning());
    let off = Learning {
        background_share: Some(0.0),
        folder: Some(folder.path().to_owned()),
        ..Learning::default()
    };
    assert!(background::start(&app.models, &off).unwrap().is_none());
    assert!(background::start(&app.models, &Learning::default()).unwrap().is_none());
    for animal in ["cat", "dog", "fox", "hen", "cow", "pig", "bird", "horse"] {
        for colour in ["red", "green"] {
            let body = json!({
                "prompt": format!("The {animal} of the king is"),
                "correction": format!(
                    " {colour}, and everybody in the village has seen the {colour} {animal}. It sleeps all day. At \
                     night it walks to the market, sits down beside the {colour} house, and sings a song of the sea."
                ),
                "adapter": "cat",
            });
            assert_eq!(feedback(&router, body).json()["result"], "learned");
        }
    }
    let status = || send_to(router.clone(), "GET", "/v1/sona/adapters/cat", None).json();
    assert_eq!(status()["new_lessons"], 16);
    let on = Learning { background_share: Some(1.0), ..off };
    let background = background::start(&app.models, &on).unwrap().expect("a thread");
    let end = Instant::now() + Duration::from_secs(600);
    while status()["new_lessons"] == 16 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    let now = status();
    assert_eq!((&now["new_lessons"], &now["lessons"]), (&json!(0), &json!(16)), "{now}");
    assert_eq!(now["consolidations"], json!({"accepted": 1, "rejected": 0}));
    let stopped = background.stop();
    assert!(stopped.stopped && stopped.tasks["consolidation"].failures == 0, "{stopped:?}");
    let figures = send_to(router.clone(), "GET", "/metrics", None).text;
    assert!(
        figures.contains("learning_consolidations_total{model=\"base\",result=\"accepted\"} 1"),
        "{figures}"
    );
}
