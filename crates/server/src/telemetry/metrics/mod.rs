//! Metrics in the text format of OpenMetrics, for Prometheus.
//!
//! Requests are counted when they end, by the layer around all handlers and by their tickets;
//! figures of engines are read when somebody asks for the metrics ([`collector`]).

mod collector;
mod engine;
mod kernel_packs;
mod labels;
mod samples;
mod steps;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::Extension;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use self::collector::{EngineCollector, ProcessCollector};
use self::labels::Labels;
use self::steps::StepHistograms;
use crate::api_error::{ApiError, ErrorKind};
use crate::generation::{Observer, Ticket};
use crate::models::ModelSet;

/// Media type of the metrics.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Counters = Family<Labels, Counter>;
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// Seconds of whole requests.
fn request_seconds() -> Histogram {
    Histogram::new([0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0])
}

/// Seconds of waits: for a place in the batch, for the first token.
fn wait_seconds() -> Histogram {
    Histogram::new([0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0])
}

/// Seconds of one step or between two tokens.
fn step_seconds() -> Histogram {
    Histogram::new([0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5])
}

/// Reader of a number that another part of the server keeps.
type Source = OnceLock<Box<dyn Fn() -> u64 + Send + Sync>>;

/// Numbers that the server's parts keep, each once that part is there.
#[derive(Default)]
struct Sources {
    connections: Source,
    dropped_records: Source,
}

/// End of a request, as the layer around all handlers counts it.
pub(super) struct RequestEnd {
    pub(super) endpoint: Cow<'static, str>,
    pub(super) model: Option<Arc<str>>,
    pub(super) tenant: Option<Arc<str>>,
    pub(super) outcome: &'static str,
    pub(super) error: Option<ErrorKind>,
}

/// The metrics of a server, in a registry of their own.
pub(crate) struct Metrics {
    registry: Registry,
    models: Arc<ModelSet>,
    steps: StepHistograms,
    has_tenants: AtomicBool,
    sources: Arc<Sources>,
    requests: Counters,
    errors: Counters,
    rate_limited: Counters,
    duration: Histograms,
    first_token: Histograms,
    token_gap: Histograms,
    queue: Histograms,
    prompt_tokens: Counters,
    cached_tokens: Counters,
    output_tokens: Counters,
    choices: Counters,
    router_decisions: Counters,
    router_rewards: Counters,
    router_reward_sum: Family<Labels, Counter<f64, AtomicU64>>,
}

impl Metrics {
    pub(crate) fn new(models: &Arc<ModelSet>) -> Self {
        let mut root = Registry::default();
        let sources: Arc<Sources> = Arc::default();
        root.register_collector(Box::new(ProcessCollector::new()));
        let registry = root.sub_registry_with_prefix("ruvllm");
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "Version of the server", version);
        let mut counters = |name: &str, help: &str| {
            let family = Counters::default();
            registry.register(name, help, family.clone());
            family
        };
        let requests = counters("requests", "HTTP requests that have ended");
        let errors = counters("request_errors", "Requests that failed, by the type of the error");
        let rate_limited = counters("rate_limited_requests", "Requests over a limit of their tenant");
        let prompt_tokens = counters("prompt_tokens", "Tokens of prompts, cached ones included");
        let cached_tokens =
            counters("cached_prompt_tokens", "Prompt tokens from the prefix cache or a session");
        let output_tokens = counters("output_tokens", "Tokens that reached the reply");
        let choices = counters("choices", "Generated choices by their finish reason");
        let router_decisions = counters("router_decisions", "Decisions of routers by their reason");
        let router_rewards = counters("router_rewards", "Decisions whose outcome is known");
        let router_reward_sum = Family::<Labels, Counter<f64, AtomicU64>>::default();
        let help = "Sum of the rewards, each 0 to 1";
        registry.register("router_reward_sum", help, router_reward_sum.clone());
        let mut seconds = |name: &str, help: &str, buckets: fn() -> Histogram| {
            let family = Histograms::new_with_constructor(buckets);
            registry.register_with_unit(name, help, Unit::Seconds, family.clone());
            family
        };
        let duration = seconds("request_duration", "Time from arrival to the last token", request_seconds);
        let first_token =
            seconds("time_to_first_token", "Time from arrival to the first token", wait_seconds);
        let token_gap = seconds("inter_token_latency", "Time between tokens of a choice", step_seconds);
        let queue =
            seconds("queue_time", "Time from submission to the first step of a request", wait_seconds);
        let steps = StepHistograms::register(registry);
        let collector = EngineCollector::new(Arc::clone(models), Arc::clone(&sources));
        registry.register_collector(Box::new(collector));
        Self {
            registry: root,
            models: Arc::clone(models),
            steps,
            has_tenants: AtomicBool::new(false),
            sources,
            requests,
            errors,
            rate_limited,
            duration,
            first_token,
            token_gap,
            queue,
            prompt_tokens,
            cached_tokens,
            output_tokens,
            choices,
            router_decisions,
            router_rewards,
            router_reward_sum,
        }
    }

    /// Counts the decision of a router for an arm.
    pub(crate) fn count_decision(&self, router: &Arc<str>, arm: &Arc<str>, reason: &'static str) {
        let labels = Labels::of_arm(router, arm).with("reason", reason);
        self.router_decisions.get_or_create(&labels).inc();
    }

    /// Counts the reward of an arm.
    pub(crate) fn count_reward(&self, router: &Arc<str>, arm: &Arc<str>, reward: f64) {
        let labels = Labels::of_arm(router, arm);
        self.router_rewards.get_or_create(&labels).inc();
        self.router_reward_sum.get_or_create(&labels).inc_by(reward);
    }

    /// Adds the tenant as a label of requests and tokens: a time series for each tenant.
    pub(crate) fn label_tenants(&self) {
        self.has_tenants.store(true, Ordering::Relaxed);
    }

    /// Sets the reader of the records that the witness log has dropped; the first one stays.
    pub(crate) fn watch_dropped_records(&self, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let _ = self.sources.dropped_records.set(Box::new(read));
    }

    /// Sets the reader of the number of open connections; the first one stays.
    pub(crate) fn watch_connections(&self, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let _ = self.sources.connections.set(Box::new(read));
    }

    /// Open connections; `None` without a listener.
    pub(super) fn connections(&self) -> Option<u64> {
        self.sources.connections.get().map(|read| read())
    }

    /// Adds the steps since the last call to their histograms. Engines keep the last 4096 steps.
    pub(super) fn observe_steps(&self) {
        self.steps.observe(&self.models.loaded());
    }

    /// The metrics as text.
    pub(crate) fn render(&self) -> Result<String, std::fmt::Error> {
        self.observe_steps();
        let mut text = String::with_capacity(16 << 10);
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    pub(super) fn count_request(&self, end: RequestEnd) {
        let RequestEnd { endpoint, model, tenant, outcome, error } = end;
        let tenant = tenant.filter(|_| self.has_tenants.load(Ordering::Relaxed));
        let labels = Labels { endpoint: Some(endpoint), tenant, ..Labels::default() };
        if let Some(kind) = error {
            let by_type = Labels { tenant: None, ..labels.clone() }.with("type", kind.name());
            self.errors.get_or_create(&by_type).inc();
        }
        if error == Some(ErrorKind::RateLimit) {
            self.rate_limited.get_or_create(&labels).inc();
        }
        let labels = Labels { model, ..labels }.with("outcome", outcome);
        self.requests.get_or_create(&labels).inc();
    }

    /// Labels of a call; `None` before its model is known.
    fn labels_of(ticket: &Ticket) -> Option<Labels> {
        let endpoint = ticket.observed.endpoint.map(|endpoint| endpoint.name().into());
        Some(Labels { endpoint, ..Labels::of_model(ticket.observed.model.as_ref()?) })
    }
}

impl Observer for Metrics {
    fn tokens(&self, ticket: &Ticket, tokens: usize, gap: Duration) {
        let Some(labels) = Self::labels_of(ticket) else { return };
        let each = gap.as_secs_f64() / tokens as f64;
        let histogram = self.token_gap.get_or_create(&labels);
        (0..tokens).for_each(|_| histogram.observe(each));
    }

    fn ended(&self, ticket: &Ticket) {
        let Some(labels) = Self::labels_of(ticket) else { return };
        let observed = &ticket.observed;
        self.duration.get_or_create(&labels).observe(observed.started.elapsed().as_secs_f64());
        if let Some(time) = observed.first_token {
            self.first_token.get_or_create(&labels).observe(time.as_secs_f64());
        }
        if let Some(time) = observed.timings.queue_ms {
            self.queue.get_or_create(&labels).observe(time / 1e3);
        }
        let model = Labels { endpoint: None, ..labels.clone() };
        for reason in &observed.finish_reasons {
            let labels = model.clone().with("finish_reason", reason.name());
            self.choices.get_or_create(&labels).inc();
        }
        let has_tenants = self.has_tenants.load(Ordering::Relaxed);
        let tenant = has_tenants.then(|| Arc::clone(&ticket.caller.tenant));
        let labels = Labels { tenant, ..labels };
        self.prompt_tokens.get_or_create(&labels).inc_by(observed.prompt_tokens as u64);
        self.cached_tokens.get_or_create(&labels).inc_by(observed.cached_tokens as u64);
        self.output_tokens.get_or_create(&labels).inc_by(observed.output_tokens as u64);
    }
}

/// `GET /metrics`
pub(crate) async fn metrics(Extension(metrics): Extension<Arc<Metrics>>) -> Result<Response, ApiError> {
    let text = metrics.render().map_err(|error| ApiError::internal(&error))?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}
