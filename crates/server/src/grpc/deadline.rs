//! Times of calls: the client's deadline, and the arrival of its message.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use http_body::Frame;
use tokio::time::{Sleep, sleep, timeout_at};
use tonic::metadata::MetadataMap;

use super::status;
use crate::api_error::ApiError;

/// Metadata with the time that a client waits.
const TIMEOUT: &str = "grpc-timeout";

/// Time at which a client stops to wait; `None` if it waits forever.
///
/// # Errors
/// 400 for a text that is no time.
pub(super) fn of(metadata: &MetadataMap) -> Result<Option<Instant>, ApiError> {
    let Some(value) = metadata.get(TIMEOUT) else { return Ok(None) };
    let time = value.to_str().ok().and_then(parse).ok_or_else(|| {
        ApiError::invalid_param(
            TIMEOUT,
            "is no time: up to 8 digits and one of H, M, S, m, u, n are expected",
        )
    })?;
    Ok(Instant::now().checked_add(time))
}

/// Time of a text such as `250m`: up to 8 digits and a unit.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Waits for a result until the deadline.
///
/// # Errors
/// 504 afterwards.
pub(super) async fn within<T>(
    deadline: Option<Instant>,
    result: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    match deadline {
        None => result.await,
        Some(deadline) => match timeout_at(deadline.into(), result).await {
            Ok(result) => result,
            Err(_) => Err(ruvllm::Error::DeadlineExceeded.into()),
        },
    }
}

/// A request's body, which must arrive in time.
pub(super) struct Arriving {
    body: Body,
    end: Pin<Box<Sleep>>,
}

impl Arriving {
    pub(super) fn new(body: Body, time: Duration) -> Self {
        Self { body, end: Box::pin(sleep(time)) }
    }
}

impl http_body::Body for Arriving {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(frame) => Poll::Ready(frame.map(|frame| frame.map_err(Into::into))),
            Poll::Pending if this.end.as_mut().poll(context).is_ready() => {
                Poll::Ready(Some(Err(status::of(&ApiError::slow_request()).into())))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_digits_and_a_unit() {
        for (text, time) in [
            ("1H", Duration::from_secs(3600)),
            ("2M", Duration::from_secs(120)),
            ("30S", Duration::from_secs(30)),
            ("250m", Duration::from_millis(250)),
            ("7u", Duration::from_micros(7)),
            ("99999999n", Duration::from_nanos(99_999_999)),
        ] {
            assert_eq!(parse(text), Some(time), "{text}");
        }
        for text in ["", "m", "1", "1s", "-1m", "+1m", "1.5S", "123456789m", "1é", "10 m"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
