//! Replies of the router about tokens, adapters, sessions and state.

use std::path::Path;
use std::time::Duration;

use axum::Router;
use ruvllm::crates::adapters::{AdapterStore, LoraFile, Part};
use ruvllm::{Engine, EngineOptions, ModelSource};
use ruvllm_testkit::model_data;
use serde_json::{Value, json};

use crate::app::{App, RequestLimits};
use crate::models::{ModelEntry, ModelSet};
use crate::testing::{app, post, router_of, send, send_to};

#[test]
fn texts_become_tokens_and_texts_again() {
    let reply = post("/tokenize", json!({"content": "Once upon a time", "with_pieces": true})).json();
    let tokens = reply["tokens"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token["piece"].as_str().unwrap()).collect();
    assert_eq!(text, "Once upon a time");
    let ids: Vec<&Value> = tokens.iter().map(|token| &token["id"]).collect();
    let reply = post("/tokenize", json!({"content": "Once upon a time"})).json();
    assert_eq!(reply["tokens"], json!(ids));
    assert_eq!(post("/detokenize", json!({"tokens": ids})).json(), json!({"content": "Once upon a time"}));
}

#[test]
fn special_tokens_in_texts_are_parsed_or_plain() {
    let count = |parse: bool| {
        let reply = post("/tokenize", json!({"content": "<|im_end|>", "parse_special": parse})).json();
        reply["tokens"].as_array().unwrap().len()
    };
    assert_eq!(count(true), 1);
    assert!(count(false) > 1);
}

#[test]
fn conversations_become_the_tokens_of_their_prompt() {
    let messages = json!([{"role": "user", "content": "What is a glacier?"}]);
    let tokens = post("/tokenize", json!({"messages": messages})).json();
    let chat = json!({"messages": messages, "max_tokens": 1});
    let usage = &post("/v1/chat/completions", chat).json()["usage"];
    assert_eq!(json!(tokens["tokens"].as_array().unwrap().len()), usage["prompt_tokens"]);
    for body in [json!({}), json!({"content": "", "messages": messages}), json!({"content": 3})] {
        let reply = post("/tokenize", body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("content")));
    }
    let reply = post("/detokenize", json!({"tokens": [4_000_000_000_u32]}));
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("tokens")));
}

#[test]
fn sessions_are_listed_forked_and_removed() {
    let body = json!({"prompt": "Once upon a time", "max_tokens": 3, "session": "tale/one"});
    assert_eq!(post("/v1/completions", body).status, 200);
    let session = send("GET", "/v1/sessions/tale%2Fone", None).json();
    assert_eq!((&session["object"], &session["id"]), (&json!("session"), &json!("tale/one")));
    assert_eq!(session["last_message"], "Once upon a time");
    assert!(session["tokens"].as_u64() > Some(0));

    let fork = post("/v1/sessions/tale%2Fone/fork", json!({"id": "two"})).json();
    assert_eq!((&fork["id"], &fork["tokens"]), (&json!("two"), &session["tokens"]));
    let taken = post("/v1/sessions/two/fork", json!({"id": "tale/one"}));
    assert_eq!((taken.status, &taken.json()["error"]["param"]), (409, &json!("id")));
    assert_eq!(post("/v1/sessions/two/fork", json!({"id": ""})).status, 400);
    let list = send("GET", "/v1/sessions?model=base", None).json();
    assert!(list["data"].as_array().unwrap().contains(&fork), "{list}");
    assert_eq!(send("GET", "/v1/sessions?model=other", None).json()["data"], json!([]));

    for id in ["tale%2Fone", "two"] {
        let path = format!("/v1/sessions/{id}");
        assert_eq!(send("DELETE", &path, None).json()["deleted"], true);
        for method in ["GET", "DELETE"] {
            assert_eq!(send(method, &path, None).status, 404);
        }
    }
}

/// A router over a tiny model that may load the adapters of a folder.
fn with_adapters(folder: Option<&Path>) -> Router {
    let path = model_data("tiny").join("llama/model-F16.gguf");
    let options = EngineOptions::default().with_threads(1);
    let entry = ModelEntry::new("tiny", ModelSource::Path(path), options);
    let mut app = App::new(ModelSet::new(vec![entry], None), RequestLimits::default());
    if let Some(folder) = folder {
        app.set_adapter_folder(folder);
    }
    router_of(app)
}

/// Adds adapters for the tiny model to a folder.
fn add(folder: &Path, name: &str, lora: &str) {
    let engine = Engine::open(model_data("tiny").join("llama/model-F16.gguf")).unwrap();
    let file = LoraFile::open(&model_data("lora").join(lora)).unwrap();
    let parts = [Part { file: &file, scale: 1.0 }];
    AdapterStore::new(folder).add(name, engine.adapter_base(), &parts, "", false).unwrap();
}

#[test]
fn adapters_are_loaded_used_replaced_and_unloaded() {
    let folder = tempfile::tempdir().unwrap();
    add(folder.path(), "small", "r1_qv");
    add(folder.path(), "large", "r4_all");
    let router = with_adapters(Some(folder.path()));
    let ask = |method: &str, path: &str, body: Option<Value>| send_to(router.clone(), method, path, body);

    assert_eq!(ask("GET", "/v1/adapters", None).json(), json!({"object": "list", "data": []}));
    let loaded = ask("POST", "/v1/adapters", Some(json!({"name": "poet", "adapter": "small"}))).json();
    assert_eq!((&loaded["id"], &loaded["object"]), (&json!("poet"), &json!("adapter")));
    assert_eq!((&loaded["model"], &loaded["tier"]), (&json!("tiny"), &json!("cold")));
    let rank = |name: &str| AdapterStore::new(folder.path()).get(name).unwrap().rank();
    assert!(loaded["rank"] == rank("small") && loaded["bytes"].as_u64() > Some(0), "{loaded}");
    assert_eq!(ask("GET", "/v1/adapters", None).json()["data"], json!([loaded]));

    let body = json!({"prompt": [5, 6, 7], "max_tokens": 2, "adapters": [{"name": "poet"}]});
    assert_eq!(ask("POST", "/v1/completions", Some(body.clone())).status, 200);
    assert_ne!(ask("GET", "/v1/adapters", None).json()["data"][0]["tier"], "cold");

    let mut again = json!({"name": "poet", "adapter": "large"});
    assert_eq!(ask("POST", "/v1/adapters", Some(again.clone())).status, 409);
    again["replace"] = true.into();
    assert_eq!(ask("POST", "/v1/adapters", Some(again)).json()["rank"], rank("large"));
    assert_eq!(ask("DELETE", "/v1/adapters/poet", None).json()["deleted"], true);
    assert_eq!(ask("DELETE", "/v1/adapters/poet", None).status, 404);
    assert_eq!(ask("POST", "/v1/completions", Some(body)).status, 400);
}

#[test]
fn no_name_leads_out_of_the_folder_of_adapters() {
    let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    add(outside.path(), "secret", "r1_qv");
    let secret = outside.path().join("secret.ruvlora");
    assert!(secret.is_file());
    #[cfg(unix)]
    std::os::unix::fs::symlink(&secret, inside.path().join("link.ruvlora")).unwrap();
    let router = with_adapters(Some(inside.path()));
    let absolute = outside.path().join("secret");
    let parent = format!("../{}/secret", outside.path().file_name().unwrap().to_str().unwrap());
    for name in ["secret", "link", "", ".", "..", &parent, absolute.to_str().unwrap(), "a\0b"] {
        let reply =
            send_to(router.clone(), "POST", "/v1/adapters", Some(json!({"name": "poet", "adapter": name})));
        assert!([400, 404].contains(&reply.status), "{name:?}: {}", reply.text);
        assert_eq!(reply.json()["error"]["param"], "adapter");
        let folder = outside.path().to_str().unwrap();
        assert!(name.contains(folder) || !reply.text.contains(folder), "{}", reply.text);
    }
    let reply = send_to(with_adapters(None), "POST", "/v1/adapters", Some(json!({"name": "secret"})));
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (403, &json!("permission_error")));
}

#[test]
fn readiness_follows_loading_and_shutdown() {
    let state = std::sync::Arc::new(app());
    let router = crate::testing::serve(&state);
    let status = |path: &str| send_to(router.clone(), "GET", path, None).status;
    assert_eq!((status("/health"), status("/ready")), (200, 503));
    state.set_ready(true);
    assert_eq!((status("/health"), status("/ready")), (200, 200));
    state.set_ready(false);
    assert_eq!((status("/health"), status("/ready")), (200, 503));
}

#[test]
fn properties_are_those_of_a_model_in_memory() {
    assert_eq!(post("/tokenize", json!({"content": ""})).status, 200);
    let props = send("GET", "/props?model=base", None).json();
    assert!(props["default_generation_settings"]["n_ctx"].as_u64() > Some(0));
    assert!(props["chat_template"].is_string());
    assert_eq!(send("GET", "/props?model=other", None).status, 404);
}

/// A state with the built-in model, whose sessions are kept in a folder.
fn with_sessions(folder: &Path) -> App {
    let options = EngineOptions::default().with_threads(1).with_kv_budget(64 << 20);
    let entry = ModelEntry::new("base", crate::testing::built_in(), options);
    App::new(
        ModelSet::new(vec![entry], None).with_sessions(Some(folder.to_owned())),
        RequestLimits::default(),
    )
}

#[test]
fn sessions_outlive_their_model() {
    let folder = tempfile::tempdir().unwrap();
    let app = || std::sync::Arc::new(with_sessions(folder.path()));
    let call = json!({"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0, "session": "story"});
    let state = app();
    send_to(crate::testing::serve(&state), "POST", "/v1/completions", Some(call));
    state.models.clear();
    drop(state);
    let router = crate::testing::serve(&app());
    // Loads the model.
    send_to(router.clone(), "POST", "/tokenize", Some(json!({"content": "x"})));
    let found = send_to(router, "GET", "/v1/sessions", None).json();
    assert_eq!(found["data"][0]["id"], "story", "{found}");
}

#[test]
fn changed_sessions_are_written_while_the_model_serves() {
    let folder = tempfile::tempdir().unwrap();
    let state = std::sync::Arc::new(with_sessions(folder.path()));
    let router = crate::testing::serve(&state);
    let index = || {
        let folders = std::fs::read_dir(folder.path()).unwrap();
        let text =
            folders.map(|folder| std::fs::read_to_string(folder.unwrap().path().join("sessions.json")));
        text.flatten().collect::<String>()
    };
    let save = || {
        crate::testing::run(async {
            let saver = state.models.save_sessions(Duration::from_millis(1));
            assert!(tokio::time::timeout(Duration::from_millis(500), saver).await.is_err());
        });
    };
    for id in ["one", "two"] {
        let call = json!({"prompt": "Once upon a time", "max_tokens": 2, "session": id});
        assert_eq!(send_to(router.clone(), "POST", "/v1/completions", Some(call)).status, 200);
        assert!(!index().contains(&format!("\"{id}\"")));
        save();
        assert!(index().contains(&format!("\"{id}\"")));
    }
    assert_eq!(send_to(router, "DELETE", "/v1/sessions/one", None).status, 200);
    save();
    assert!(!index().contains("\"one\"") && index().contains("\"two\""));
}

#[test]
fn configured_adapters_are_replaced_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    add(folder.path(), "small", "r1_qv");
    add(folder.path(), "large", "r4_all");
    let file = |name: &str| folder.path().join(name).with_extension("ruvlora");
    let entry = |adapters: &[(&str, &str)]| {
        let path = model_data("tiny").join("llama/model-F16.gguf");
        let mut entry =
            ModelEntry::new("tiny", ModelSource::Path(path), EngineOptions::default().with_threads(1));
        entry.adapters = adapters.iter().map(|(name, stored)| ((*name).to_owned(), file(stored))).collect();
        entry
    };
    let models = ModelSet::new(vec![entry(&[("poet", "small")])], None);
    let state = std::sync::Arc::new(App::new(models, RequestLimits::default()));
    let router = crate::testing::serve(&state);
    let ask = |model: &str| {
        let body =
            json!({"model": model, "prompt": [5, 6, 7], "max_tokens": 1, "temperature": 0, "logprobs": 2});
        let reply = send_to(router.clone(), "POST", "/v1/completions", Some(body));
        (reply.status, reply.json()["choices"][0]["logprobs"].clone())
    };
    let versions = || {
        let model = state.models.loaded().remove(0);
        let list = model.engine().unwrap().adapter_registry().list(&ruvllm::Tenant::root());
        list.iter().map(|found| (found.version.name().to_owned(), found.version.number())).collect::<Vec<_>>()
    };
    let small = ask("poet");
    assert_eq!((small.0, ask("bard").0), (200, 404));
    let first = versions();
    assert!(state.models.set_adapters(&[entry(&[("poet", "small"), ("bard", "large")])]).is_empty());
    assert!(versions().contains(&first[0]), "a file of the same content is not read again");
    assert_eq!((ask("poet"), ask("bard").0), (small.clone(), 200));
    assert_ne!(ask("bard").1, small.1);

    assert!(state.models.set_adapters(&[entry(&[("bard", "small")])]).is_empty());
    assert_eq!((ask("poet").0, ask("bard")), (404, small.clone()));
    let faults = state.models.set_adapters(&[entry(&[("bard", "small"), ("absent", "absent")])]);
    assert_eq!((faults.len(), ask("bard")), (1, small));
}
