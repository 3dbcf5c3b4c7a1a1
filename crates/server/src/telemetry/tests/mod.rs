//! Metrics of a router over the built-in model.

mod kernel_packs;
mod learning;
mod live;
mod log;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use serde_json::{Value, json};
use tower::ServiceExt;

use self::kernel_packs::fake_pack;
use super::metrics::RequestEnd;
use crate::api_error::ErrorKind;
use crate::app::{App, RequestLimits};
use crate::config::{Config, Learning, Tenant};
use crate::gate::Gate;
use crate::models::{ModelEntry, ModelSet};
use crate::router::router;
use crate::testing::{app, exchange, request, run, serve, small};

/// A state, and a router that has had a few requests.
struct Served {
    app: Arc<App>,
    router: Router,
}

fn chat(extra: &Value) -> Value {
    let mut body = json!({
        "model": "base",
        "messages": [{"role": "user", "content": "What is a glacier?"}],
        "temperature": 0,
        "max_tokens": 8,
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

impl Served {
    fn new() -> Self {
        let app = Arc::new(app());
        Self { router: serve(&app), app }
    }

    /// A server that learns and whose settings follow the load.
    fn learning(folder: &Path) -> Self {
        Self::learning_with(folder, ruvllm::EngineOptions::default())
    }

    /// The same with these further options of the engine.
    fn learning_with(folder: &Path, options: ruvllm::EngineOptions) -> Self {
        let mut options = options.with_threads(1).with_kv_budget(256 << 20);
        let tuning = ruvllm::TuningOptions::fitting(&options.scheduling, options.prefill_chunk);
        options.tuning = Some(tuning);
        let models = ModelSet::new(vec![ModelEntry::new("base", small("base"), options)], None);
        let learning = Learning { folder: Some(folder.to_owned()), ..Learning::default() };
        let app = Arc::new(App::new(models.with_learning(learning), RequestLimits::default()));
        let mut config = Config::default();
        config.tenants.insert("default".to_owned(), Tenant { learning: true, ..Tenant::default() });
        let gate = Arc::new(Gate::new(&config).unwrap());
        Self { router: router(Arc::clone(&app), gate), app }
    }

    fn post(&self, path: &str, body: Value) -> u16 {
        exchange(self.router.clone(), request("POST", path, Some(body))).status
    }

    fn scrape(&self) -> Scrape {
        let reply = exchange(self.router.clone(), request("GET", "/metrics", None));
        assert_eq!(reply.status, 200, "{}", reply.text);
        Scrape::parse(&reply.text)
    }

    /// A scrape that has every metric of the server.
    fn full_scrape() -> Scrape {
        let (folder, prefixes) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut options = ruvllm::EngineOptions::default();
        options.row_kernels = Some(fake_pack("core"));
        options.prefixes =
            ruvllm::PrefixCaching::Folder { path: prefixes.path().to_owned(), limit_bytes: 1 << 20 };
        let served = Self::learning_with(folder.path(), options);
        assert_eq!(served.post("/v1/chat/completions", chat(&json!({"stream": true}))), 200);
        let model = served.app.models.loaded().remove(0);
        model.learning().unwrap().counters().set_adapter("default", "tone", false, Some(0.01));
        served.app.metrics.count_request(RequestEnd {
            endpoint: "chat_completions".into(),
            model: None,
            tenant: None,
            outcome: "error",
            error: Some(ErrorKind::RateLimit),
        });
        served.app.metrics.count_decision(&"auto".into(), &"quick".into(), "rule");
        served.app.metrics.count_reward(&"auto".into(), &"quick".into(), 0.5);
        served.app.metrics.watch_dropped_records(|| 3);
        served.app.metrics.watch_connections(|| 2);
        served.scrape()
    }
}

/// Metrics as text, read back.
#[derive(Debug, Default)]
struct Scrape {
    /// Type and unit of each family.
    families: BTreeMap<String, (String, String)>,
    samples: BTreeMap<String, f64>,
}

impl Scrape {
    fn parse(text: &str) -> Self {
        let mut scrape = Self::default();
        let mut helps = BTreeSet::new();
        assert!(text.ends_with("# EOF\n"), "{text}");
        for line in text.lines().filter(|line| *line != "# EOF") {
            let words: Vec<_> = line.splitn(4, ' ').collect();
            match words[..] {
                ["#", "HELP", name, help] => {
                    assert!(help.ends_with('.'), "{line}");
                    assert!(helps.insert(name.to_owned()), "{name} is described twice");
                }
                ["#", "TYPE", name, kind] => {
                    let old = scrape.families.insert(name.to_owned(), (kind.to_owned(), String::new()));
                    assert!(old.is_none(), "{name} is there twice");
                }
                ["#", "UNIT", name, unit] => {
                    assert!(name.ends_with(&format!("_{unit}")), "{line}");
                    unit.clone_into(&mut scrape.families.get_mut(name).expect(name).1);
                }
                _ => {
                    let (name, value) = line.rsplit_once(' ').expect(line);
                    let old = scrape.samples.insert(name.to_owned(), value.parse().expect(line));
                    assert!(old.is_none(), "{name} is there twice");
                }
            }
        }
        assert!(scrape.families.keys().eq(helps.iter()), "families without a description");
        scrape
    }

    fn value(&self, sample: &str) -> f64 {
        *self.samples.get(sample).unwrap_or_else(|| panic!("no {sample} among {:?}", self.names()))
    }

    /// Names of samples without their labels.
    fn names(&self) -> BTreeSet<&str> {
        self.samples.keys().map(|sample| sample.split('{').next().unwrap_or_default()).collect()
    }
}

#[test]
fn requests_tokens_and_times_are_counted() {
    let served = Served::new();
    assert_eq!(served.post("/v1/chat/completions", chat(&json!({}))), 200);
    assert_eq!(served.post("/v1/chat/completions", chat(&json!({"stream": true, "n": 2}))), 200);
    assert_eq!(served.post("/v1/chat/completions", chat(&json!({"model": "gpt-9"}))), 404);
    assert_eq!(served.post("/v1/chat/completions", json!({"messages": 3})), 400);
    assert_eq!(exchange(served.router.clone(), request("GET", "/nowhere", None)).status, 404);
    let scrape = served.scrape();
    let call = r#"endpoint="chat_completions",model="base""#;
    assert_eq!(scrape.value(&format!(r#"ruvllm_requests_total{{{call},outcome="success"}}"#)), 2.0);
    let failed = r#"ruvllm_requests_total{endpoint="chat_completions",outcome="error"}"#;
    assert_eq!(scrape.value(failed), 2.0);
    assert_eq!(scrape.value(r#"ruvllm_requests_total{endpoint="unknown",outcome="error"}"#), 1.0);
    let errors =
        |kind| format!(r#"ruvllm_request_errors_total{{endpoint="chat_completions",type="{kind}"}}"#);
    assert_eq!(scrape.value(&errors("not_found_error")), 1.0);
    assert_eq!(scrape.value(&errors("invalid_request_error")), 1.0);
    for histogram in ["request_duration", "time_to_first_token", "queue_time"] {
        assert_eq!(scrape.value(&format!("ruvllm_{histogram}_seconds_count{{{call}}}")), 2.0, "{histogram}");
    }
    assert_eq!(scrape.value(&format!("ruvllm_output_tokens_total{{{call}}}")), 24.0);
    let gaps = scrape.value(&format!("ruvllm_inter_token_latency_seconds_count{{{call}}}"));
    assert!(gaps > 0.0 && gaps <= 21.0, "three choices of eight tokens have {gaps} gaps");
    assert!(scrape.value(&format!("ruvllm_cached_prompt_tokens_total{{{call}}}")) > 0.0);
    let model = r#"{model="base"}"#;
    assert_eq!(scrape.value(&format!("ruvllm_model_loaded{model}")), 1.0);
    let steps = scrape.value(&format!("ruvllm_steps_total{model}"));
    assert_eq!(scrape.value(&format!("ruvllm_batch_size_count{model}")), steps);
    let sequences = scrape.value(&format!("ruvllm_step_sequences_total{model}"));
    assert_eq!(scrape.value(&format!("ruvllm_batch_size_sum{model}")), sequences);
    assert_eq!(scrape.value(r#"ruvllm_choices_total{model="base",finish_reason="length"}"#), 3.0);
    assert!(scrape.value(r#"ruvllm_kv_blocks{model="base",tier="hot"}"#) > 0.0);
    assert!(scrape.value("process_resident_memory_bytes") > 0.0);
}

#[test]
fn tenants_are_labels_only_if_they_are_wanted() {
    let served = Served::new();
    assert_eq!(served.post("/v1/completions", json!({"prompt": "The sun", "max_tokens": 2})), 200);
    assert!(served.scrape().samples.keys().all(|name| !name.contains("tenant=")));
    served.app.metrics.label_tenants();
    assert_eq!(served.post("/v1/completions", json!({"prompt": "The sun", "max_tokens": 2})), 200);
    let labels = r#"endpoint="completions",model="base",tenant="default""#;
    assert_eq!(served.scrape().value(&format!("ruvllm_output_tokens_total{{{labels}}}")), 2.0);
}

#[test]
fn a_client_that_leaves_counts_as_cancelled() {
    let served = Served::new();
    let body = chat(&json!({"stream": true, "max_tokens": 1000, "ignore_eos": true}));
    run(async {
        let request = request("POST", "/v1/chat/completions", Some(body));
        let response = served.router.clone().oneshot(request).await.unwrap();
        drop(response);
    });
    let cancelled = r#"ruvllm_requests_total{endpoint="chat_completions",model="base",outcome="cancelled"}"#;
    assert_eq!(served.scrape().value(cancelled), 1.0);
}

/// A scrape with the metrics of a model on a device.
fn device_scrape() -> Scrape {
    let (router, _device) = crate::models::fragile::served();
    let body = json!({"prompt": "The sun", "max_tokens": 2});
    assert_eq!(exchange(router.clone(), request("POST", "/v1/completions", Some(body))).status, 200);
    Scrape::parse(&exchange(router, request("GET", "/metrics", None)).text)
}

/// Rows of the tables of metrics: name, type and unit.
fn documented() -> BTreeMap<String, (String, String)> {
    let page = include_str!("../../../../../docs/observability.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| {
        let (name, rest) = row.split_once("` | ")?;
        let mut cells = rest.split(" | ");
        let (kind, unit) = (cells.next()?, cells.next()?);
        let kinds = ["counter", "gauge", "histogram", "info"];
        kinds.contains(&kind).then(|| (name.to_owned(), (kind.to_owned(), unit.to_owned())))
    })
    .collect()
}

#[test]
fn the_page_describes_every_metric() {
    let mut families = Served::full_scrape().families;
    families.extend(device_scrape().families);
    let measured = families.into_iter().map(|(name, (kind, unit))| {
        let suffix = match &*kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        (format!("{name}{suffix}"), (kind, unit))
    });
    let measured: BTreeMap<_, _> = measured.collect();
    let documented = documented();
    assert!(measured.keys().eq(documented.keys()), "{:#?}\n{:#?}", measured.keys(), documented.keys());
    for (name, (kind, unit)) in measured {
        let (its_kind, its_unit) = &documented[&name];
        assert_eq!(&kind, its_kind, "{name}");
        assert!(unit.is_empty() || unit == *its_unit, "{name}: {unit}, on the page {its_unit}");
    }
}

/// All texts of the fields `expr` and `query` in a JSON value.
fn expressions<'v>(value: &'v Value, found: &mut Vec<&'v str>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(text) if ["expr", "query"].contains(&&**name) => found.push(text),
                    field => expressions(field, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| expressions(item, found)),
        _ => {}
    }
}

#[test]
fn the_dashboard_uses_metrics_that_exist() {
    let dashboard: Value =
        serde_json::from_str(include_str!("../../../../../deploy/grafana/ruvllm.json")).unwrap();
    let mut found = Vec::new();
    expressions(&dashboard, &mut found);
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let used: BTreeSet<&str> = found
        .iter()
        .flat_map(|expression| expression.split(|c| !is_name(c)))
        .filter(|word| word.starts_with("ruvllm_") || word.starts_with("process_"))
        .collect();
    assert!(used.len() > 30, "{used:?}");
    let scrape = Served::full_scrape();
    let names = scrape.names();
    let unknown: Vec<_> = used.iter().filter(|name| !names.contains(**name)).collect();
    assert!(unknown.is_empty(), "{unknown:?} are not among {names:#?}");
}
