//! The layer around all handlers: a span and a log line for each request, and its count.
//!
//! A request ends when the last byte of its reply is handed over, when its client is gone, or when
//! its handler was dropped. Neither headers nor bodies of requests are ever logged.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Frame, SizeHint};
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::metrics::{Metrics, RequestEnd};
use crate::api_error::{ApiError, ErrorKind};
use crate::generation::CallRecord;
use crate::request_id::RequestId;

/// Endpoints that machines ask all the time: logged at the level `debug`.
const QUIET: [&str; 5] = ["health", "ready", "metrics", "live", "grpc_health"];

/// True for an endpoint of [`QUIET`], and for a file of the web page.
fn is_quiet(endpoint: &str) -> bool {
    QUIET.contains(&endpoint) || endpoint.starts_with("ui_")
}

/// Name of an endpoint from its route: `/v1/chat/completions` is `chat_completions`, and
/// `/ruvllm.v1.Inference/Generate` is `grpc_generate`.
fn endpoint_of(route: Option<&str>) -> Cow<'static, str> {
    let Some(route) = route else { return "unknown".into() };
    let services = ["/ruvllm.v1.Inference/", "/ruvllm.v1.Worker/"];
    if let Some(method) = services.iter().find_map(|service| route.strip_prefix(service)) {
        return format!("grpc_{}", method.to_ascii_lowercase()).into();
    }
    // `/grpc.health.v1.Health/{method}` is `grpc_health`.
    if let Some(service) = route.strip_prefix("/grpc.") {
        return format!("grpc_{}", service.split('.').next().unwrap_or_default()).into();
    }
    let route = route.strip_prefix("/v1").unwrap_or(route);
    let parts = route.split('/').filter(|part| !part.is_empty() && !part.starts_with('{'));
    let name = parts.collect::<Vec<_>>().join("_");
    if name.is_empty() { "index".into() } else { name.into() }
}

/// A request that has not ended; dropping it ends it.
struct OpenRequest {
    metrics: Arc<Metrics>,
    endpoint: Cow<'static, str>,
    started: Instant,
    span: Span,
    record: CallRecord,
    /// Absent until the handler has replied.
    status: Option<StatusCode>,
    error: Option<ErrorKind>,
    /// The reply was handed over to its last byte.
    is_complete: bool,
}

impl OpenRequest {
    fn set_reply(&mut self, response: &Response) {
        let status = response.status();
        self.status = Some(status);
        let stated = response.extensions().get::<ApiError>().map(|error| error.kind);
        self.error = stated.or(if status.is_server_error() {
            Some(ErrorKind::Server)
        } else if status.is_client_error() {
            Some(ErrorKind::InvalidRequest)
        } else {
            None
        });
    }

    /// Adds all fields that are known now to the span.
    fn record_fields(&self, outcome: &str) {
        let span = &self.span;
        span.record("outcome", outcome);
        span.record("duration_ms", milliseconds(self.started.elapsed()));
        if let Some(status) = self.status {
            span.record("status", status.as_u16());
        }
        if let Some(error) = self.error {
            span.record("error", error.name());
        }
        let Some(call) = self.record.get() else { return };
        if let Some(model) = &call.model {
            span.record("model", &**model);
        }
        span.record("tenant", &*call.tenant);
        span.record("prompt_tokens", call.prompt_tokens);
        span.record("cached_tokens", call.cached_tokens);
        span.record("output_tokens", call.output_tokens);
        if let Some(time) = call.first_token {
            span.record("first_token_ms", milliseconds(time));
        }
    }
}

/// Milliseconds with three decimals.
fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let call = self.record.get();
        self.error = self.error.or(call.and_then(|call| call.error));
        let outcome = match self.error {
            Some(_) => "error",
            None if self.is_complete => "success",
            None => "cancelled",
        };
        self.record_fields(outcome);
        let _in_span = self.span.enter();
        if is_quiet(&self.endpoint) {
            tracing::debug!("request ended");
        } else {
            tracing::info!("request ended");
        }
        self.metrics.count_request(RequestEnd {
            endpoint: self.endpoint.clone(),
            model: call.and_then(|call| call.model.clone()),
            tenant: call.map(|call| Arc::clone(&call.tenant)),
            outcome,
            error: self.error,
        });
    }
}

/// Layer that counts and logs requests.
pub(crate) async fn observe(
    State(metrics): State<Arc<Metrics>>,
    mut request: Request,
    next: Next,
) -> Response {
    let endpoint = endpoint_of(request.extensions().get::<MatchedPath>().map(MatchedPath::as_str));
    let id = request.extensions().get::<RequestId>().cloned().unwrap_or_default();
    let span = tracing::info_span!(
        "request",
        request_id = id.as_str(),
        method = request.method().as_str(),
        endpoint = &*endpoint,
        model = Empty,
        tenant = Empty,
        status = Empty,
        outcome = Empty,
        error = Empty,
        duration_ms = Empty,
        first_token_ms = Empty,
        prompt_tokens = Empty,
        cached_tokens = Empty,
        output_tokens = Empty,
    );
    #[cfg(feature = "otlp")]
    super::otlp::set_parent(&span, request.headers());
    let record = CallRecord::default();
    request.extensions_mut().insert(record.clone());
    let mut open = OpenRequest {
        metrics,
        endpoint,
        started: Instant::now(),
        span: span.clone(),
        record,
        status: None,
        error: None,
        is_complete: false,
    };
    let response = next.run(request).instrument(span).await;
    open.set_reply(&response);
    response.map(|body| Body::new(ObservedBody { body: Some(body), open }))
}

/// The body of a reply, with its request until the body is dropped.
struct ObservedBody {
    /// Taken before the request ends, so that the call of a model ends first.
    body: Option<Body>,
    open: OpenRequest,
}

impl http_body::Body for ObservedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { body, open } = self.get_mut();
        let Some(inner) = body else { return Poll::Ready(None) };
        let _in_span = open.span.enter();
        let frame = Pin::new(inner).poll_frame(context);
        open.is_complete |= matches!(frame, Poll::Ready(None));
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(http_body::Body::size_hint).unwrap_or_default()
    }
}

impl Drop for ObservedBody {
    fn drop(&mut self) {
        self.open.is_complete |= http_body::Body::is_end_stream(self);
        self.body = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::Endpoint;

    #[test]
    fn endpoints_have_the_same_names_as_calls_of_models() {
        let routes = [
            ("/v1/chat/completions", Endpoint::Chat),
            ("/v1/completions", Endpoint::Completions),
            ("/v1/responses", Endpoint::Responses),
            ("/v1/messages", Endpoint::Messages),
            ("/v1/embeddings", Endpoint::Embeddings),
            #[cfg(feature = "grpc")]
            (Endpoint::GrpcGenerate.path(), Endpoint::GrpcGenerate),
            #[cfg(feature = "grpc")]
            (Endpoint::GrpcEmbed.path(), Endpoint::GrpcEmbed),
        ];
        for (route, endpoint) in routes {
            assert_eq!(endpoint_of(Some(route)), endpoint.name());
        }
        assert_eq!(endpoint_of(Some("/v1/models/{*name}")), "models");
        assert_eq!(endpoint_of(Some("/")), "index");
        assert_eq!(endpoint_of(None), "unknown");
        let is_quiet = |route| is_quiet(&endpoint_of(Some(route)));
        assert!(is_quiet("/ui/app.js") && is_quiet("/v1/live") && !is_quiet("/") && !is_quiet("/v1/models"));
    }
}
