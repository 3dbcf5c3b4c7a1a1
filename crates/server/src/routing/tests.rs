//! Routers over HTTP, from the first request to the learned choice.

use std::path::Path;
use std::sync::Arc;

use axum::body::to_bytes;
use ruvllm::crates::sona::LearningStore;
use ruvllm::crates::sona::routing::{Prompt, Reason};
use ruvllm::crates::sona::store::StoreOptions;
use ruvllm::crates::sona::trajectory::Trajectory;
use ruvllm::{EngineOptions, ModelSource};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;
use crate::app::{App, RequestLimits};
use crate::gate::Gate;
use crate::models::ModelSet;
use crate::testing::{Reply, built_in, exchange, request, run, send_to};

const ARMS: &str = "
[[routers]]
name = 'auto'
default = 'quick'
rules = [{ arm = 'tools', tools = true }, { arm = 'careful', min_tokens = 60 }]
EXPLORATION
[routers.arms.careful]
model = 'base'
[routers.arms.quick]
model = 'draft'
[routers.arms.tools]
model = 'base'
kv = 'q8'
";

/// A configuration whose tenant learns in a folder, if there is one.
fn config(folder: Option<&Path>, exploration: &str) -> Config {
    let arms = ARMS.replace("EXPLORATION", exploration);
    let learning = folder.map_or_else(String::new, |folder| {
        format!("[learning]\nfolder = {:?}\n[tenants.default]\nlearning = true\n", folder.display())
    });
    Config::from_toml(&format!("{learning}{arms}")).expect("a configuration")
}

fn models(config: &Config) -> Vec<ModelEntry> {
    let options = EngineOptions::default().with_threads(1).with_kv_budget(64 << 20);
    let draft = ModelSource::Static { name: "draft".to_owned(), bytes: ruvllm_default_model::draft() };
    let models =
        vec![ModelEntry::new("base", built_in(), options.clone()), ModelEntry::new("draft", draft, options)];
    check(config, &models).expect("their names");
    with_arms(models, config)
}

fn server(config: &Config) -> (Arc<App>, axum::Router) {
    let models = ModelSet::new(models(config), None).with_learning(config.learning.clone());
    let mut app = App::new(models, RequestLimits::default());
    app.set_routers(Routers::new(config));
    let app = Arc::new(app);
    let router = crate::router::router(Arc::clone(&app), Arc::new(Gate::new(config).expect("a gate")));
    (app, router)
}

/// Sends a request with an id; the status, the arm of the reply's header, and the body.
fn send(router: &axum::Router, path: &str, id: &str, body: Value) -> (u16, String, String) {
    let mut call = request("POST", path, Some(body));
    call.headers_mut().insert("x-request-id", id.parse().expect("a header"));
    run(async {
        let response = router.clone().oneshot(call).await.expect("a reply");
        let arm = response.headers().get("x-router-arm").map(|arm| arm.to_str().expect("ASCII").to_owned());
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), usize::MAX).await.expect("a body");
        (status, arm.unwrap_or_default(), String::from_utf8(body.to_vec()).expect("text"))
    })
}

fn complete(router: &axum::Router, id: &str, prompt: &str) -> String {
    let body = json!({"model": "auto", "prompt": prompt, "max_tokens": 2, "temperature": 0});
    let (status, arm, body) = send(router, "/v1/completions", id, body);
    assert_eq!(status, 200, "{body}");
    arm
}

fn get(router: &axum::Router, path: &str) -> Value {
    send_to(router.clone(), "GET", path, None).json()
}

fn feedback(router: &axum::Router, body: Value) -> Reply {
    send_to(router.clone(), "POST", "/v1/feedback", Some(body))
}

/// A request of the default tenant in the stores of a folder, one for each model.
fn recorded(folder: &Path, request: &str) -> Trajectory {
    let files = std::fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path());
    let stores = files.filter(|path| path.extension().is_some_and(|extension| extension == "redb"));
    let mut found = stores.filter_map(|path| {
        let store = LearningStore::open(path, StoreOptions::default()).ok()?;
        let id = store.find("default", request).ok()?;
        Some(store.trajectory("default", id).expect("a store")?.trajectory)
    });
    found.next().expect("a recorded request")
}

#[test]
fn rules_choose_the_arm_where_nothing_learns() {
    let (_, router) = server(&config(None, ""));
    let model = |body: &str| serde_json::from_str::<Value>(body).expect("JSON")["model"].clone();
    let chat = |extra: Value| {
        let mut body =
            json!({"model": "auto", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let (status, arm, body) = send(&router, "/v1/chat/completions", "1", chat(json!({})));
    assert_eq!((status, arm.as_str(), model(&body)), (200, "quick", json!("draft")), "{body}");
    let tool = json!({"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}});
    let (status, arm, body) = send(&router, "/v1/chat/completions", "2", chat(json!({"tools": [tool]})));
    assert_eq!((status, arm.as_str(), model(&body)), (200, "tools", json!("base")), "{body}");
    let long = "word ".repeat(80);
    for (path, body) in [
        ("/v1/completions", json!({"model": "auto", "prompt": long, "max_tokens": 2})),
        ("/v1/completions", json!({"model": "auto", "prompt": long, "max_tokens": 2, "stream": true})),
        ("/v1/responses", json!({"model": "auto", "input": long, "max_output_tokens": 2})),
        (
            "/v1/messages",
            json!({"model": "auto", "messages": [{"role": "user", "content": long}], "max_tokens": 2}),
        ),
    ] {
        let (status, arm, body) = send(&router, path, "3", body);
        assert_eq!((status, arm.as_str()), (200, "careful"), "{path}: {body}");
    }
    let (_, arm, _) =
        send(&router, "/v1/completions", "4", json!({"model": "base", "prompt": "Once", "max_tokens": 1}));
    assert_eq!(arm, "", "a model is no router");
    // Requests that generate nothing mean the model of the default arm.
    let (status, _, body) = send(&router, "/v1/embeddings", "5", json!({"model": "auto", "input": "Hello"}));
    assert_eq!((status, model(&body)), (200, json!("draft")), "{body}");
    let auto = get(&router, "/v1/models/auto");
    assert_eq!((&auto["id"], &auto["parent"]), (&json!("auto"), &json!("draft")));
    for (body, piece) in [
        (json!({"model": "auto", "prompt": [1, 2]}), "token ids belong to one model"),
        (json!({"model": "auto", "prompt": "a", "session": "s"}), "a session stays with one model"),
    ] {
        let (status, _, body) = send(&router, "/v1/completions", "6", body);
        assert!(status == 400 && body.contains(piece), "{body}");
    }
    assert_eq!(send_to(router.clone(), "GET", "/v1/sona/routers", None).status, 403);
    let metrics = send_to(router, "GET", "/metrics", None).text;
    let counted = "router_decisions_total{router=\"auto\",arm=\"quick\",reason=\"rule\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
}

#[test]
fn feedback_teaches_the_router_which_arm_to_choose() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = config(Some(folder.path()), "warm_up = 1000\nlatency_weight = 0.0");
    let (app, router) = server(&config);
    let prompt = |index: usize| format!("Story {index}: the king of the castle said to the cat");
    let mut counts = [0; 2];
    for index in 0..60 {
        let id = format!("request-{index}");
        let arm = complete(&router, &id, &prompt(index));
        let is_right = arm == "careful";
        counts[0] += u64::from(is_right);
        let body = json!({"request_id": id, "rating": if is_right { 1 } else { -1 }, "model": "auto"});
        let reply = feedback(&router, body.clone()).json();
        let learned = json!({"name": "auto", "arm": arm, "reward": if is_right { 1.0 } else { 0.0 }});
        assert_eq!(reply["router"], learned, "{reply}");
        assert_eq!(reply["model"], if arm == "quick" { "draft" } else { "base" });
        if index == 0 {
            let answered = json!({"model": reply["model"], "request_id": id, "rating": 1});
            assert_eq!(feedback(&router, answered).json()["router"], Value::Null, "each outcome counts once");
        }
    }
    let last = (60..80).map(|index| complete(&router, &format!("request-{index}"), &prompt(index)));
    counts[1] = last.filter(|arm| arm == "careful").count() as u64;
    assert!(counts[1] >= 18, "{counts:?}");
    let routers = || get(&server(&config).1, "/v1/sona/routers");
    let figures = get(&router, "/v1/sona/routers");
    let arms = figures["data"][0]["arms"].as_array().expect("arms");
    let careful = arms.iter().find(|arm| arm["name"] == "careful").expect("the arm");
    assert_eq!(
        (&careful["rewards"], &careful["decisions"]),
        (&json!(counts[0]), &json!(counts[0] + counts[1]))
    );
    assert_eq!(careful["mean_reward"], 1.0);
    let metrics = send_to(router.clone(), "GET", "/metrics", None).text;
    let counted =
        format!("router_reward_sum_total{{router=\"auto\",arm=\"careful\"}} {:.1}", counts[0] as f64);
    assert!(metrics.contains(&counted), "{metrics}");
    drop((app, router));
    let stored = recorded(folder.path(), "request-0");
    assert!(stored.route.is_some_and(|route| route.starts_with("auto/")));
    assert_eq!(stored.kv_policy.as_deref(), Some("f16"));
    assert!(stored.embedding.is_some_and(|embedding| embedding.dimension() > 1));

    // A server that was restarted knows all of it, and the requests that wait for their outcome.
    assert_eq!(routers(), figures);
    let (app, router) = server(&config);
    assert_eq!(complete(&router, "later", &prompt(80)), "careful");
    let reply =
        feedback(&router, json!({"request_id": "request-79", "accepted": true, "model": "base"})).json();
    assert_eq!(reply["router"]["arm"], "careful", "{reply}");
    send_to(router.clone(), "POST", "/v1/sona/forget", Some(json!({"model": "base", "all": true})));
    assert_eq!(get(&router, "/v1/sona/routers")["data"][0]["arms"][0]["decisions"], 0);
    drop((app, router));
    assert_eq!(routers()["data"][0]["policies"], 0, "what is forgotten stays so");
}

#[test]
fn feedback_without_a_decision_teaches_no_router() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_app, router) = server(&config(Some(folder.path()), "warm_up = 0"));
    let (_, arm, _) = send(
        &router,
        "/v1/completions",
        "direct",
        json!({"model": "base", "prompt": "Once", "max_tokens": 1}),
    );
    assert_eq!(arm, "");
    assert_eq!(feedback(&router, json!({"request_id": "direct", "rating": 1})).json()["router"], Value::Null);
    let unknown = feedback(&router, json!({"request_id": "none", "rating": 1, "model": "auto"}));
    assert_eq!(unknown.status, 404, "{}", unknown.text);
    complete(&router, "routed", "Once");
    for (body, status) in [
        (json!({"request_id": "routed", "rating": 1.5}), 400),
        (json!({"request_id": "routed", "rating": null}), 400),
        (json!({"request_id": "routed", "rating": 1, "accepted": true}), 400),
    ] {
        assert_eq!(feedback(&router, body.clone()).status, status, "{body}");
    }
    let figures = get(&router, "/v1/sona/routers");
    assert!(
        figures["data"][0]["arms"].as_array().unwrap().iter().all(|arm| arm["rewards"] == 0),
        "{figures}"
    );
    let corrected = feedback(&router, json!({"request_id": "routed", "correction": " upon a time"})).json();
    assert_eq!(corrected["router"]["reward"], 0.0, "an answer that had to be corrected was wrong");
}

#[test]
fn arms_with_adapters_serve_those_who_have_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = config(Some(folder.path()), "warm_up = 0");
    let arm = config.routers[0].arms.get_mut("quick").expect("the arm");
    (arm.model, arm.adapter) = ("base".to_owned(), Some("learned".to_owned()));
    let (_app, router) = server(&config);
    assert_eq!(complete(&router, "1", "Once"), "careful", "nobody has taught the adapter yet");
    feedback(&router, json!({"model": "base", "prompt": "Once", "correction": " upon a time"}));
    assert_eq!(complete(&router, "2", "Once"), "quick");
    for arm in config.routers[0].arms.values_mut() {
        (arm.model, arm.adapter) = ("draft".to_owned(), Some("none".to_owned()));
    }
    let (_app, router) = server(&config);
    let body = json!({"model": "auto", "prompt": "Once", "max_tokens": 1});
    let reply = exchange(router, request("POST", "/v1/completions", Some(body)));
    assert!(reply.status == 400 && reply.text.contains("no arm of the router auto"), "{}", reply.text);
}

/// Decides and rewards a request without a server.
fn teach(router: &ModelRouter, tenant: &str, id: &str, embedder: &str, arm: usize) -> Reason {
    let prompt =
        Prompt { embedding: &[0.6, 0.8], tokens: 5, has_tools: false, is_constrained: false, turns: 0 };
    let decided = router.decide(&tenant.into(), id, embedder, &prompt, |other| other == arm);
    let (chosen, reason) = decided.expect("a decision");
    assert_eq!(chosen, arm);
    let mut tenants = router.tenants.lock();
    let state = router.known(&mut tenants, tenant).expect("its file").expect("its state");
    state.router.finish(id, Duration::from_secs(1));
    drop(tenants);
    assert!(router.learn(tenant, id, 1.0).expect("an outcome").is_some());
    reason
}

#[test]
fn tenants_learn_apart_and_files_of_others_are_set_aside() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = config(Some(folder.path()), "warm_up = 0");
    let rewards = |routers: &Routers, tenant: &str| {
        let figures = routers.0[0].figures(tenant).expect("figures");
        figures.arms.iter().map(|(_, figures)| figures.rewards).sum::<u64>()
    };
    let routers = Routers::new(&config);
    teach(&routers.0[0], "a", "1", "model-1", 0);
    teach(&routers.0[0], "b", "1", "model-1", 1);
    teach(&routers.0[0], "b", "2", "model-1", 1);
    assert!(routers.answered("a", "2").is_none() && routers.0[0].learn("a", "2", 1.0).unwrap().is_none());
    assert_eq!(["a", "b", "c"].map(|tenant| rewards(&routers, tenant)), [1, 2, 0]);
    routers.forget("b").expect("forgotten");
    assert_eq!(["a", "b"].map(|tenant| rewards(&routers, tenant)), [1, 0]);
    teach(&routers.0[0], "b", "3", "model-1", 1);
    drop(routers);

    let file =
        |tenant: &str, extension: &str| folder.path().join(format!("routers/auto/{tenant}.{extension}"));
    let routers = Routers::new(&config);
    assert_eq!(["a", "b"].map(|tenant| rewards(&routers, tenant)), [1, 1]);
    teach(&routers.0[0], "a", "4", "model-2", 0);
    assert_eq!((rewards(&routers, "a"), file("a", "before").is_file()), (1, true), "another embedding model");
    drop(routers);

    std::fs::write(file("b", "router"), b"no router").expect("written");
    let routers = Routers::new(&config);
    assert_eq!((rewards(&routers, "b"), file("b", "before").is_file()), (0, true));
    drop(routers);
    let mut other = config.clone();
    other.routers[0].warm_up = 3;
    assert_eq!(rewards(&Routers::new(&other), "a"), 0, "other settings");

    std::fs::remove_file(file("a", "before")).expect("removed");
    std::fs::create_dir(file("a", "router")).expect("a folder in its place");
    let routers = Routers::new(&config);
    assert!(routers.0[0].figures("a").is_err(), "a file that cannot be read is no state to forget");
}
