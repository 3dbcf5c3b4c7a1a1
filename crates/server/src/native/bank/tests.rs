//! Lessons of tenants over HTTP, from the item to the outcome.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::app::{App, RequestLimits};
use crate::auth::{KeyFile, Moment, Scope};
use crate::config::{Config, Learning, Tenant};
use crate::gate::Gate;
use crate::models::{ModelEntry, ModelSet};
use crate::openapi;
use crate::router::router;
use crate::testing::{Reply, built_in, exchange, request};

const TASK: &str = "Sum the invoices of a month";

/// A server with a key for each of three tenants: `a` and `b` have memory, `c` has none.
struct Served {
    router: Router,
    keys: Vec<(&'static str, String)>,
}

impl Served {
    fn new(folder: &Path) -> Self {
        let options = ruvllm::EngineOptions::default().with_threads(1).with_kv_budget(256 << 20);
        let models = ModelSet::new(vec![ModelEntry::new("base", built_in(), options)], None);
        let learning = Learning { folder: Some(folder.join("learning")), ..Learning::default() };
        let app = App::new(models.with_learning(learning), RequestLimits::default());
        let mut file = KeyFile::default();
        let mut config = Config::default();
        let keys = ["a", "b", "c"].map(|tenant| {
            let memory = tenant != "c";
            let learning = tenant == "a";
            config.tenants.insert(tenant.to_owned(), Tenant { memory, learning, ..Tenant::default() });
            let scopes = [Scope::Inference, Scope::Learning].into_iter().collect();
            let secret = file.add(tenant, tenant, scopes, Moment::new(SystemTime::now()), None).unwrap();
            (tenant, secret.reveal().to_owned())
        });
        let path = folder.join("keys.toml");
        std::fs::write(&path, file.to_text()).unwrap();
        config.keys.file = Some(path);
        let gate = Gate::new(&config).unwrap();
        Self { router: router(Arc::new(app), Arc::new(gate)), keys: keys.into() }
    }

    /// Sends a request of a tenant, and checks both ways against the OpenAPI document.
    fn send(&self, tenant: &str, id: &str, method: &str, path: &str, body: Option<Value>) -> Reply {
        let mut call = request(method, path, body.clone());
        let key = &self.keys.iter().find(|(name, _)| *name == tenant).unwrap().1;
        call.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        call.headers_mut().insert("x-request-id", id.parse().unwrap());
        let reply = exchange(self.router.clone(), call);
        openapi::tests::check(method, path, body.as_ref(), &reply);
        reply
    }

    fn get(&self, tenant: &str, path: &str) -> Value {
        self.send(tenant, "get", "GET", path, None).json()
    }

    fn post(&self, tenant: &str, path: &str, body: Value) -> Reply {
        self.send(tenant, "post", "POST", path, Some(body))
    }

    /// Adds a lesson; returns its id.
    fn add(&self, tenant: &str, title: &str, task: &str) -> u64 {
        let body = json!({
            "title": title, "description": "When amounts of money are summed",
            "body": format!("{title}: check the currency of each line first."), "task": task,
        });
        let reply = self.post(tenant, "/v1/sona/bank", body);
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()["id"].as_u64().unwrap()
    }

    /// Asks the task with at most `memory` lessons.
    fn ask(&self, tenant: &str, id: &str, memory: Option<usize>) -> Value {
        let body = json!({
            "messages": [{"role": "user", "content": TASK}],
            "max_tokens": 1, "temperature": 0, "memory": memory,
        });
        let reply = self.send(tenant, id, "POST", "/v1/chat/completions", Some(body));
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()
    }

    fn outcome(&self, tenant: &str, memory: &Value, verdict: &str) -> Reply {
        let body = json!({"request_id": memory["request_id"], "items": memory["items"], "verdict": verdict});
        self.post(tenant, "/v1/sona/bank/outcome", body)
    }

    #[track_caller]
    fn refused(&self, tenant: &str, path: &str, body: &Value, status: u16, piece: &str) {
        let reply = self.post(tenant, path, body.clone());
        assert_eq!(reply.status, status, "{path} {body}: {}", reply.text);
        assert!(reply.text.contains(piece), "{path} {body}: {}", reply.text);
    }
}

/// First request id from `prefix` on that is in the control arm, or is not: a tenth by the hash of
/// tenant and id (ADR-0078).
fn id(tenant: &str, prefix: &str, is_control: bool) -> String {
    let is_in_control = |id: &String| {
        let mut hash = Sha256::new();
        hash.update((tenant.len() as u64).to_le_bytes());
        hash.update(tenant);
        hash.update(id);
        let word = u64::from_le_bytes(hash.finalize()[..8].try_into().unwrap());
        ((word >> 11) as f64 / (1_u64 << 53) as f64) < 0.1
    };
    (0..).map(|n| format!("{prefix}-{n}")).find(|id| is_in_control(id) == is_control).unwrap()
}

fn prompt_tokens(reply: &Value) -> u64 {
    reply["usage"]["prompt_tokens"].as_u64().unwrap()
}

#[test]
fn prompts_get_lessons_that_are_asked_for_and_outcomes_are_counted_by_arm() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::new(folder.path());
    let item = served.add("a", "Totals", TASK);
    let plain = served.ask("a", &id("a", "plain", false), None);
    assert_eq!(plain.get("memory"), None, "nothing is given unless the request asks");
    assert_eq!(served.ask("a", "zero", Some(0)).get("memory"), None);

    let (given, withheld) = (id("a", "given", false), id("a", "withheld", true));
    let with = served.ask("a", &given, Some(1));
    assert_eq!(with["memory"], json!({"request_id": given, "arm": "memory", "items": [item]}));
    assert!(prompt_tokens(&with) > prompt_tokens(&plain) + 20, "{with}");
    let without = served.ask("a", &withheld, Some(1));
    assert_eq!(without["memory"], json!({"request_id": withheld, "arm": "control", "items": [item]}));
    assert_eq!(prompt_tokens(&without), prompt_tokens(&plain), "the control arm gets nothing");

    let recorded = |memory: &Value, verdict| served.outcome("a", memory, verdict).json();
    assert_eq!(recorded(&with["memory"], "success")["recorded"], true);
    assert_eq!(recorded(&with["memory"], "failure")["recorded"], false, "an outcome is counted once");
    let counted = recorded(&without["memory"], "failure");
    assert_eq!((&counted["arm"], &counted["recorded"]), (&json!("control"), &json!(true)));
    let list = served.get("a", "/v1/sona/bank");
    assert_eq!(list["with"], json!({"uses": 1, "wins": 1, "losses": 0}));
    assert_eq!(list["without"], json!({"uses": 1, "wins": 0, "losses": 1}));
    for uplift in [&list["data"][0]["uplift"], &list["uplift"]] {
        assert_eq!(uplift["difference"], 1.0);
    }
    drop(served);

    let served = Served::new(folder.path());
    assert_eq!(served.get("a", "/v1/sona/bank"), list, "a server that was restarted has the same bank");
    assert_eq!(served.outcome("a", &with["memory"], "failure").json()["recorded"], false);
    assert_eq!(served.post("a", "/v1/sona/forget", json!({"all": true})).json()["items"], 1);
    assert_eq!(served.get("a", "/v1/sona/bank")["data"], json!([]));
}

#[test]
fn streams_and_completions_report_their_lessons() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::new(folder.path());
    let item = served.add("a", "Totals", TASK);
    let call = id("a", "call", false);
    let expected = json!({"request_id": call, "arm": "memory", "items": [item]});
    let chat = json!({"messages": [{"role": "user", "content": TASK}], "max_tokens": 2, "stream": true, "memory": 1});
    let reply = served.send("a", &call, "POST", "/v1/chat/completions", Some(chat));
    let reports = |reply: &Reply| -> Vec<Value> {
        reply.chunks().iter().filter_map(|chunk| chunk.get("memory").cloned()).collect()
    };
    assert_eq!(reports(&reply), std::slice::from_ref(&expected));
    let complete = |extra: Value| {
        let mut body = json!({"prompt": TASK, "max_tokens": 2, "temperature": 0});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        served.send("a", &call, "POST", "/v1/completions", Some(body))
    };
    let (plain, with) = (complete(json!({})).json(), complete(json!({"memory": 1})).json());
    assert_eq!((plain.get("memory"), &with["memory"]), (None, &expected));
    assert!(prompt_tokens(&with) > prompt_tokens(&plain) + 20, "{with}");
    assert_eq!(reports(&complete(json!({"memory": 1, "stream": true}))), [expected]);
    let echo = complete(json!({"memory": 1, "echo": true})).json();
    let text = echo["choices"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("Notes from earlier tasks") && text.contains(TASK), "{text}");
}

#[test]
fn lessons_never_cross_tenants() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::new(folder.path());
    let item = served.add("a", "Totals", TASK);
    assert_eq!(served.get("b", "/v1/sona/bank")["data"], json!([]));
    let found = served.post("b", "/v1/sona/bank/search", json!({"text": TASK, "similarity": 0.0})).json();
    assert_eq!(found["data"], json!([]));
    let request = id("b", "request", false);
    let (plain, asked) = (served.ask("b", "plain", None), served.ask("b", &request, Some(16)));
    assert_eq!(asked["memory"]["items"], json!([]));
    assert_eq!(prompt_tokens(&asked), prompt_tokens(&plain));
    assert_eq!(served.send("b", "x", "DELETE", &format!("/v1/sona/bank/{item}"), None).status, 404);
    let foreign = json!({"request_id": "request-1", "items": [item]});
    assert_eq!(served.outcome("b", &foreign, "failure").status, 404);
    assert_eq!(served.send("b", "x", "DELETE", "/v1/sona/bank", None).json()["items"], 0);
    let list = served.get("a", "/v1/sona/bank");
    assert_eq!(list["data"].as_array().unwrap().len(), 1);
    assert_eq!(list["data"][0]["with"], json!({"uses": 0, "wins": 0, "losses": 0}));
    assert_eq!(list["with"], json!({"uses": 0, "wins": 0, "losses": 0}));
    // Both have an item now, and each finds its own.
    let other = served.add("b", "Sums", TASK);
    assert_ne!(item, other);
    for (tenant, own) in [("a", item), ("b", other)] {
        let asked = served.ask(tenant, &id(tenant, "own", false), Some(16));
        assert_eq!(asked["memory"]["items"], json!([own]), "{tenant}");
    }
}

#[test]
fn items_are_added_found_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::new(folder.path());
    let item = served.add("a", "Totals", TASK);
    let again = served.post(
        "a",
        "/v1/sona/bank",
        json!({
            "title": "Totals", "description": "When amounts of money are summed",
            "body": "Totals: check the currency of each line first.", "task": TASK,
        }),
    );
    assert_eq!(again.json(), json!({"id": item, "object": "bank_item", "model": "base", "merged": true}));
    let other = served.add("a", "Poems", "Write a poem about the sea");
    let found = served.post("a", "/v1/sona/bank/search", json!({"text": TASK, "items": 1})).json();
    assert_eq!(found["data"][0]["item"]["id"], item);
    assert!(found["data"][0]["similarity"].as_f64().unwrap() > 0.999, "{found}");
    let near = served.post("a", "/v1/sona/bank/search", json!({"text": "zebra", "similarity": 1.0})).json();
    assert_eq!(near["data"], json!([]));
    let removed = served.send("a", "x", "DELETE", &format!("/v1/sona/bank/{item}"), None).json();
    assert_eq!(removed, json!({"id": item.to_string(), "object": "bank_item", "deleted": true}));
    assert_eq!(served.send("a", "x", "DELETE", &format!("/v1/sona/bank/{item}"), None).status, 404);
    assert_eq!(served.send("a", "x", "DELETE", "/v1/sona/bank/none", None).status, 404);
    let left = served.get("a", "/v1/sona/bank");
    assert_eq!((&left["data"][0]["id"], &left["data"][1]), (&json!(other), &Value::Null));
    assert_eq!(served.send("a", "x", "DELETE", "/v1/sona/bank", None).json()["items"], 1);
}

#[test]
fn bad_requests_and_tenants_without_memory_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::new(folder.path());
    let item = served.add("a", "Totals", TASK);
    let chat = |memory: Value, content: &str| json!({"messages": [{"role": "user", "content": content}], "max_tokens": 1, "memory": memory});
    let lesson = |field: &str, value: Value| {
        let mut body = json!({"title": "T", "description": "D", "body": "B"});
        body[field] = value;
        body
    };
    let outcome = |request: &str, items: Value, verdict: &str| json!({"request_id": request, "items": items, "verdict": verdict});
    let (add, search, counted) = ("/v1/sona/bank", "/v1/sona/bank/search", "/v1/sona/bank/outcome");
    for (path, body, piece) in [
        ("/v1/chat/completions", chat(json!(17), TASK), "at most 16"),
        ("/v1/chat/completions", chat(json!(-1), TASK), "memory"),
        ("/v1/chat/completions", chat(json!("yes"), TASK), "memory"),
        ("/v1/chat/completions", chat(json!(1), " "), "first message"),
        ("/v1/completions", json!({"prompt": [TASK, TASK], "memory": 1}), "one prompt as text"),
        ("/v1/completions", json!({"prompt": [1, 2], "memory": 1}), "one prompt as text"),
        (add, json!({"title": "T", "description": "D"}), "body"),
        (add, lesson("body", json!("<|im_start|>system")), "chat templates"),
        (add, lesson("title", json!("x".repeat(121))), "title"),
        (add, lesson("task", json!(" ")), "task"),
        (add, lesson("verdict", json!("good")), "success, failure or partial"),
        (add, lesson("quality", json!(1.5)), "quality"),
        (search, json!({"text": ""}), "text"),
        (search, json!({"text": "a", "items": 0}), "1 to 16"),
        (search, json!({"text": "a", "similarity": 2}), "0 to 1"),
        (counted, outcome("r", json!([]), "success"), "1 to 16"),
        (counted, outcome("", json!([item]), "success"), "request_id"),
        (counted, outcome("r", json!([item]), "good"), "verdict"),
    ] {
        served.refused("a", path, &body, 400, piece);
    }
    served.refused("a", counted, &outcome("r", json!([99]), "success"), 404, "items");
    for (path, body) in [
        ("/v1/chat/completions", chat(json!(1), TASK)),
        ("/v1/completions", json!({"prompt": TASK, "memory": 1})),
        (add, lesson("title", json!("T"))),
        (search, json!({"text": TASK})),
        (counted, outcome("r", json!([item]), "success")),
    ] {
        served.refused("c", path, &body, 403, "memory is off");
    }
    assert_eq!(served.send("c", "x", "GET", "/v1/sona/bank", None).status, 403);
    assert_eq!(served.ask("c", "x", None).get("memory"), None);
}

#[test]
fn a_damaged_bank_is_an_error_of_requests_that_use_it_alone() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::new(folder.path());
    served.add("a", "Totals", TASK);
    drop(served);
    let banks = folder.path().join("learning").join("banks");
    for bank in banks.read_dir().unwrap() {
        std::fs::write(bank.unwrap().path().join("bank.redb"), b"this is no bank").unwrap();
    }
    let served = Served::new(folder.path());
    assert_eq!(served.ask("a", "x", None).get("memory"), None);
    let body = json!({"messages": [{"role": "user", "content": TASK}], "max_tokens": 1, "memory": 1});
    served.refused("a", "/v1/chat/completions", &body, 503, "log has the reason");
    assert_eq!(served.send("a", "x", "GET", "/v1/sona/bank", None).status, 503);
}
