//! A router over the built-in model for unit tests.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use ruvllm::{EngineOptions, ModelSource};
use serde_json::Value;
use tower::ServiceExt;

use crate::app::{App, RequestLimits};
use crate::config::Config;
use crate::gate::Gate;
use crate::models::{ModelEntry, ModelSet};
use crate::openapi;
use crate::router::router;

/// A status, a content type and a body.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) text: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// Names and data of the server-sent events.
    pub(crate) fn events(&self) -> Vec<(String, Value)> {
        let event = |text: &str| {
            let (name, data) = text.strip_prefix("event: ")?.split_once("\ndata: ")?;
            Some((name.to_owned(), serde_json::from_str(data).unwrap()))
        };
        let events = self.text.split("\n\n").filter(|text| !text.is_empty() && !text.starts_with(':'));
        events.map(|text| event(text).unwrap_or_else(|| panic!("no event: {text:?}"))).collect()
    }

    /// Data of the server-sent events but the last one, which is `[DONE]`.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let mut data: Vec<_> =
            self.text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.text);
        data.into_iter().map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

/// The built-in model.
pub(crate) fn built_in() -> ModelSource {
    ModelSource::Static { name: "base".to_owned(), bytes: ruvllm_default_model::gguf() }
}

/// The draft model under a name, for tests in which a model learns: its lessons take a fraction of
/// the built-in model's time.
pub(crate) fn small(name: &str) -> ModelSource {
    ModelSource::Static { name: name.to_owned(), bytes: ruvllm_default_model::draft() }
}

/// A state with the built-in model.
pub(crate) fn app() -> App {
    app_of(EngineOptions::default())
}

/// A state with the built-in model under these options.
pub(crate) fn app_of(options: EngineOptions) -> App {
    let options = options.with_threads(1).with_kv_budget(64 << 20);
    let entry = ModelEntry::new("base", built_in(), options);
    App::new(ModelSet::new(vec![entry], None), RequestLimits::default())
}

/// A router with the built-in model under a template whose prompt opens its thinking.
pub(crate) fn thinking_router() -> Router {
    static ROUTER: OnceLock<Router> = OnceLock::new();
    const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n\
        {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|im_end|>\n\
        {% endfor %}<|im_start|>assistant\n<think>\n";
    let make = || {
        let bytes = ruvllm_testkit::with_chat_template(ruvllm_default_model::gguf(), TEMPLATE);
        let source = ModelSource::Static { name: "base".to_owned(), bytes: bytes.leak() };
        let options = EngineOptions::default().with_threads(1).with_kv_budget(64 << 20);
        router_of(App::new(
            ModelSet::new(vec![ModelEntry::new("base", source, options)], None),
            RequestLimits::default(),
        ))
    };
    ROUTER.get_or_init(make).clone()
}

/// The router of a state, for a caller without a key.
pub(crate) fn router_of(app: App) -> Router {
    serve(&Arc::new(app))
}

/// As [`router_of`], for a state that the test goes on to use.
pub(crate) fn serve(app: &Arc<App>) -> Router {
    let gate = Gate::new(&Config::default()).unwrap();
    router(Arc::clone(app), Arc::new(gate))
}

/// The router of most tests; its model is loaded once.
fn shared() -> Router {
    static ROUTER: OnceLock<Router> = OnceLock::new();
    ROUTER.get_or_init(|| router_of(app())).clone()
}

/// Sends a request to the shared router.
pub(crate) fn send(method: &str, path: &str, body: Option<Value>) -> Reply {
    send_to(shared(), method, path, body)
}

/// Sends a request to a router, and checks both ways against the OpenAPI document.
pub(crate) fn send_to(router: Router, method: &str, path: &str, body: Option<Value>) -> Reply {
    let sent = body.clone();
    let reply = exchange(router, request(method, path, body));
    openapi::tests::check(method, path, sent.as_ref(), &reply);
    reply
}

/// A request with a JSON body, or none.
pub(crate) fn request(method: &str, path: &str, body: Option<Value>) -> Request<Body> {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    request.body(body.map_or_else(Body::empty, |body| Body::from(body.to_string()))).unwrap()
}

/// Runs a test's future.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(future)
}

/// Sends a request to a router and reads the whole reply.
pub(crate) fn exchange(router: Router, request: Request<Body>) -> Reply {
    run(async {
        let response = router.oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        Reply { status, text: String::from_utf8(bytes.to_vec()).unwrap() }
    })
}

/// Posts JSON.
pub(crate) fn post(path: &str, body: Value) -> Reply {
    send("POST", path, Some(body))
}
