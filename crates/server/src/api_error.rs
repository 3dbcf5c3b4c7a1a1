//! Errors of requests, the same for every protocol.
//!
//! A handler returns an [`ApiError`]; as a response it is a status without a body and carries
//! itself in the extensions. One layer of the router ([`render`]) writes the body in the form of
//! the protocol that was asked: Anthropic's under `/v1/messages`, OpenAI's elsewhere.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::request_id::RequestId;

/// Time after which to try again when a model is loaded anew.
const LOST_PAUSE: Duration = Duration::from_secs(1);

/// Class of an error: OpenAI's `type` and Anthropic's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ErrorKind {
    /// The request is at fault.
    InvalidRequest,
    /// No key, or one that is not valid.
    Authentication,
    /// The key does not allow it.
    Permission,
    /// There is no such model, adapter, session or path.
    NotFound,
    /// A limit of the caller is reached; it helps to wait.
    RateLimit,
    /// The server has no room now; it helps to wait.
    Overloaded,
    /// The request took longer than allowed.
    Timeout,
    /// The server is at fault.
    Server,
}

impl ErrorKind {
    /// Value of `error.type` in OpenAI's form; also the label of metrics and the witness log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request_error",
            Self::Authentication => "authentication_error",
            Self::Permission => "permission_error",
            Self::NotFound => "not_found_error",
            Self::RateLimit => "rate_limit_error",
            Self::Overloaded => "overloaded_error",
            Self::Timeout => "timeout_error",
            Self::Server => "server_error",
        }
    }

    /// Value of `error.type` in Anthropic's form.
    pub(crate) fn anthropic_name(self) -> &'static str {
        match self {
            Self::Server => "api_error",
            other => other.name(),
        }
    }
}

/// Error of a request.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) kind: ErrorKind,
    /// Condition and remedy, for the person who wrote the request.
    pub(crate) message: String,
    /// Field of the request that is at fault, such as `messages[0].content`.
    pub(crate) param: Option<String>,
    /// Name of the condition, for programs.
    pub(crate) code: Option<&'static str>,
    /// Time after which to try again.
    pub(crate) retry_after: Option<Duration>,
}

impl ApiError {
    fn new(status: StatusCode, kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// 400: the request is at fault.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ErrorKind::InvalidRequest, message)
    }

    /// 400 for the value of a field.
    pub(crate) fn invalid_param(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::invalid(message).with_param(param)
    }

    /// 401.
    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, ErrorKind::Authentication, message).with_code("invalid_api_key")
    }

    /// 403.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, ErrorKind::Permission, message)
    }

    /// 404.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, ErrorKind::NotFound, message)
    }

    /// 409: something of this name is there already.
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, ErrorKind::InvalidRequest, message)
    }

    /// 404 for a model that is not served.
    pub(crate) fn no_model(name: &str, served: &str) -> Self {
        let message = format!("the model {name:?} does not exist; this server has {served}");
        Self::not_found(message).with_param("model").with_code("model_not_found")
    }

    /// 405.
    pub(crate) fn method_not_allowed() -> Self {
        let message = "the path exists, but not with this method";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, ErrorKind::InvalidRequest, message)
    }

    /// 413.
    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorKind::InvalidRequest, message)
            .with_code("request_too_large")
    }

    /// 415.
    pub(crate) fn media_type() -> Self {
        let message = "the body must be JSON: send the header content-type: application/json";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, ErrorKind::InvalidRequest, message)
    }

    /// 408: the request did not arrive in time.
    pub(crate) fn slow_request() -> Self {
        let message = "the body of the request did not arrive in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, ErrorKind::Timeout, message)
    }

    /// 429 for a limit of the caller.
    pub(crate) fn rate_limited(message: impl Into<String>, retry_after: Option<Duration>) -> Self {
        Self { retry_after, ..Self::new(StatusCode::TOO_MANY_REQUESTS, ErrorKind::RateLimit, message) }
            .with_code("rate_limit_exceeded")
    }

    /// 503 while the server has no room.
    pub(crate) fn overloaded(message: impl Into<String>, retry_after: Option<Duration>) -> Self {
        Self { retry_after, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorKind::Overloaded, message) }
            .with_code("overloaded")
    }

    /// 500. The error goes to the log; the reply says no more than that there was one.
    pub(crate) fn internal(error: &dyn Error) -> Self {
        tracing::error!(error = %with_sources(error), "a request failed");
        let message = "the server failed; its log has the reason under the id of this request";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorKind::Server, message)
    }

    pub(crate) fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Gives a field the name that it has in another protocol: pairs of old and new names.
    pub(crate) fn renamed(mut self, names: &[(&str, &str)]) -> Self {
        let param = self.param.as_deref().unwrap_or_default();
        let new = names.iter().find_map(|(from, to)| {
            let rest = param.strip_prefix(from)?;
            (rest.is_empty() || rest.starts_with(['.', '['])).then(|| format!("{to}{rest}"))
        });
        self.param = new.or(self.param);
        self
    }

    pub(crate) fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// The body in OpenAI's form.
    pub(crate) fn openai(&self) -> serde_json::Value {
        let Self { message, param, code, kind, .. } = self;
        json!({"error": {"message": message, "type": kind.name(), "param": param, "code": code}})
    }

    /// The body in Anthropic's form.
    pub(crate) fn anthropic(&self, request_id: &str) -> serde_json::Value {
        let message = match &self.param {
            Some(param) => format!("{param}: {}", self.message),
            None => self.message.clone(),
        };
        json!({
            "type": "error",
            "error": {"type": self.kind.anthropic_name(), "message": message},
            "request_id": request_id,
        })
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// An error with its sources, in one line.
pub(crate) fn with_sources(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |&error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Errors of the engine as those of the request that caused them.
impl From<ruvllm::Error> for ApiError {
    fn from(error: ruvllm::Error) -> Self {
        use ruvllm::{Error as E, Refusal as R, RerankError as Rr};

        let message = with_sources(error.cause());
        match error.cause() {
            E::Refused(refusal @ R::QueueFull { .. }) => Self::overloaded(message, refusal.retry_after()),
            E::Refused(refusal @ R::TenantQueueFull { .. }) => {
                Self::rate_limited(message, refusal.retry_after())
            }
            E::Refused(R::Late { .. }) | E::DeadlineExceeded => {
                Self::new(StatusCode::GATEWAY_TIMEOUT, ErrorKind::Timeout, message)
            }
            E::EngineStopped | E::Cancelled => {
                Self::overloaded("the server stopped the request; try again", None)
            }
            E::PromptTooLong { .. } => Self::invalid(message).with_code("context_length_exceeded"),
            E::BackendLost { .. } => {
                tracing::error!(error = message, "a request failed");
                let message = "the device that computes the model is lost; try again";
                Self::overloaded(message, Some(LOST_PAUSE)).with_code("backend_lost")
            }
            E::Session(_) | E::SessionBackend { .. } | E::IdLength { of: "session", .. } => {
                Self::invalid_param("session", message)
            }
            E::SamplingParameter { name, .. } | E::InvalidOption { name, .. } => {
                Self::invalid_param(*name, message)
            }
            E::LogitBiasToken { .. } | E::NoCandidate => Self::invalid_param("logit_bias", message),
            E::UnknownSampler { .. } | E::RepeatedSampler { .. } => Self::invalid_param("samplers", message),
            E::DryBreaker { .. } => Self::invalid_param("dry_sequence_breakers", message),
            E::EmptyStop { .. } => Self::invalid_param("stop", message),
            E::Constraint(_) => Self::invalid_param("response_format", message),
            E::Tools(ruvllm::ToolError::UnknownChoice { .. } | ruvllm::ToolError::NoTools) => {
                Self::invalid_param("tool_choice", message)
            }
            E::Tools(_) => Self::invalid_param("tools", message),
            E::Chat(_) | E::NoChatTemplate | E::UnusableChatTemplate { .. } => {
                Self::invalid_param("messages", message)
            }
            E::EmptyPrompt | E::TokenOutOfRange { .. } | E::Encode(_) => {
                Self::invalid_param("prompt", message)
            }
            E::EncodeText { .. } | E::EmptyText { .. } => Self::invalid_param("input", message),
            E::Rerank(error) => Self::invalid_param(
                match error {
                    Rr::EmptyQuery | Rr::QueryTooLong { .. } | Rr::EncodeQuery { .. } => "query",
                    Rr::NoDocuments => "documents",
                    Rr::NoInstruction { .. } => "instruction",
                    _ => "model",
                },
                message,
            ),
            E::Adapter { .. } if !error.kv_memory_short() => Self::invalid_param("adapters", message),
            E::AdapterBackend(refusal) if refusal.is_temporary() => Self::overloaded(message, None),
            E::AdapterScale { .. } | E::AdapterBackend { .. } => Self::invalid_param("adapters", message),
            E::KvPolicyNotOpened { .. } | E::KvPolicyBackend { .. } => Self::invalid_param("kv", message),
            _ if error.kv_memory_short() || error.kv_shortage().is_some() => {
                Self::overloaded("memory for keys and values is short; try again, or with less text", None)
            }
            _ => Self::internal(&error),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        if let Some(after) = self.retry_after {
            let seconds = after.as_secs_f64().ceil().max(1.0) as u64;
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// Layer that writes the bodies of errors.
pub(crate) async fn render(request: Request, next: Next) -> Response {
    let anthropic = request.uri().path().starts_with("/v1/messages");
    let id = request.extensions().get::<RequestId>().cloned().unwrap_or_default();
    let mut response = next.run(request).await;
    let Some(error) = response.extensions().get::<ApiError>() else { return response };
    let body = if anthropic { error.anthropic(id.as_str()) } else { error.openai() };
    *response.body_mut() = axum::body::Body::from(body.to_string());
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_engine_name_the_field_at_fault() {
        let error = ApiError::from(ruvllm::Error::EmptyStop { index: 0 });
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("stop")));
        let error = ApiError::from(ruvllm::Error::DeadlineExceeded);
        assert_eq!((error.status.as_u16(), error.kind.name()), (504, "timeout_error"));
        let unknown = ruvllm::Error::Truncated { len: 1, kept: 0 };
        let error = ApiError::from(unknown);
        assert_eq!(error.status.as_u16(), 500);
        assert!(!error.message.contains("kept"), "{}", error.message);
    }

    #[test]
    fn renaming_keeps_the_rest_of_a_path() {
        let renamed = |param: &str| {
            let error =
                ApiError::invalid_param(param, "").renamed(&[("stop", "stop_sequences"), ("a.b", "c")]);
            error.param.unwrap_or_default()
        };
        assert_eq!(renamed("stop[1]"), "stop_sequences[1]");
        assert_eq!(renamed("a.b.c"), "c.c");
        assert_eq!(renamed("stopped"), "stopped");
        assert!(ApiError::invalid("").renamed(&[("stop", "x")]).param.is_none());
    }

    #[test]
    fn both_forms_have_the_fields_that_clients_read() {
        let error = ApiError::invalid_param("n", "n is 0").with_code("x");
        assert_eq!(
            error.openai(),
            json!({"error": {"message": "n is 0", "type": "invalid_request_error", "param": "n", "code": "x"}})
        );
        assert_eq!(
            error.anthropic("r1"),
            json!({
                "type": "error",
                "error": {"type": "invalid_request_error", "message": "n: n is 0"},
                "request_id": "r1",
            })
        );
    }
}
