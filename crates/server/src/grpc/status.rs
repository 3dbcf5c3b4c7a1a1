//! Errors as statuses of gRPC, with the details of Google's richer error model.

use std::collections::HashMap;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::api_error::{ApiError, ErrorKind};

/// `domain` of `google.rpc.ErrorInfo`.
const DOMAIN: &str = "ruvllm";

/// Metadata that has clients with a retry policy wait.
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Code of an error.
fn code(error: &ApiError) -> Code {
    match error.status {
        StatusCode::BAD_REQUEST => Code::InvalidArgument,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::CONFLICT => Code::AlreadyExists,
        StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => Code::DeadlineExceeded,
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
        StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
        _ => Code::Internal,
    }
}

/// Class of an error of this code, for metrics and logs.
fn kind(code: Code) -> ErrorKind {
    match code {
        Code::Unauthenticated => ErrorKind::Authentication,
        Code::PermissionDenied => ErrorKind::Permission,
        Code::NotFound => ErrorKind::NotFound,
        Code::ResourceExhausted => ErrorKind::RateLimit,
        Code::Unavailable => ErrorKind::Overloaded,
        Code::DeadlineExceeded => ErrorKind::Timeout,
        Code::Internal | Code::Unknown | Code::DataLoss => ErrorKind::Server,
        _ => ErrorKind::InvalidRequest,
    }
}

/// The status of an error: `ErrorInfo` with the name of the condition in capitals, `BadRequest`
/// with the field at fault, `RetryInfo` with the time after which to try again.
pub(super) fn of(error: &ApiError) -> Status {
    let mut details = ErrorDetails::with_error_info(
        error.code.unwrap_or_else(|| error.kind.name()).to_ascii_uppercase(),
        DOMAIN,
        HashMap::<String, String>::new(),
    );
    if let Some(param) = &error.param {
        details.add_bad_request_violation(param, &error.message);
    }
    if let Some(after) = error.retry_after {
        details.set_retry_info(Some(after));
    }
    let message = match &error.param {
        Some(param) => format!("{param}: {}", error.message),
        None => error.message.clone(),
    };
    let mut status = Status::with_error_details(code(error), message, details);
    if let Some(after) = error.retry_after {
        status.metadata_mut().insert(PUSHBACK, milliseconds(after).into());
    }
    status
}

/// Whole milliseconds, rounded up.
fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A response that is a status alone.
pub(super) fn response(status: Status) -> Response {
    status.into_http::<Body>()
}

/// Layer that makes statuses of errors from other layers, and leaves the class of every error to
/// the layers around it.
pub(super) async fn render(request: Request, next: Next) -> Response {
    let mut inner = next.run(request).await;
    if let Some(status) = inner.extensions().get::<Status>() {
        if status.code() != Code::OutOfRange {
            let kind = kind(status.code());
            let mut error = ApiError::invalid(status.message());
            error.kind = kind;
            inner.extensions_mut().insert(error);
            return inner;
        }
        // The only such status is that of `tonic` for long messages.
        let error = ApiError::too_large(format!("limits.body_bytes: {}", status.message()));
        inner.extensions_mut().insert(error);
    }
    let Some(error) = inner.extensions().get::<ApiError>() else { return inner };
    let mut outer = response(of(error));
    let (parts, _) = inner.into_parts();
    outer.extensions_mut().extend(parts.extensions);
    for (name, value) in &parts.headers {
        if !name.as_str().starts_with("grpc-")
            && name.as_str() != "content-type"
            && name.as_str() != "content-length"
        {
            outer.headers_mut().insert(name, value.clone());
        }
    }
    outer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_tell_condition_field_and_time() {
        let status = of(&ApiError::rate_limited("too many", Some(Duration::from_micros(1_500_001))));
        let details = status.get_error_details();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(details.error_info().unwrap().reason, "RATE_LIMIT_EXCEEDED");
        assert_eq!(details.retry_info().unwrap().retry_delay, Some(Duration::from_micros(1_500_001)));
        assert_eq!(status.metadata().get(PUSHBACK).unwrap(), "1501");
        let status = of(&ApiError::invalid_param("top_p", "is 2"));
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "top_p: is 2"));
        assert_eq!(status.get_error_details().bad_request().unwrap().field_violations[0].field, "top_p");
    }

    #[test]
    fn every_class_of_errors_keeps_its_name() {
        let errors = [
            ApiError::invalid(""),
            ApiError::unauthorized(""),
            ApiError::forbidden(""),
            ApiError::not_found(""),
            ApiError::rate_limited("", None),
            ApiError::overloaded("", None),
            ApiError::slow_request(),
            ApiError::internal(&std::io::Error::other("")),
        ];
        for error in errors {
            assert_eq!(kind(code(&error)), error.kind, "{error:?}");
        }
    }
}
