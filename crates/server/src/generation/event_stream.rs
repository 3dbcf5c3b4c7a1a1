//! Server-sent events of a generation as the body of a reply.

use std::convert::Infallible;
use std::io::Write;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use http_body::Frame;
use serde::Serialize;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::{Event, Generation};
use crate::api_error::ApiError;

/// Time without events after which a comment is sent, so that proxies keep the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Time within which an error before the first event still becomes the status of the reply.
const STATUS_TIME: Duration = Duration::from_secs(1);

/// Protocol of a stream: writes events into the body.
pub(crate) trait StreamWriter: Send + Unpin + 'static {
    /// Before the first event.
    fn begin(&mut self, out: &mut Vec<u8>);
    fn event(&mut self, event: Event, out: &mut Vec<u8>);
    /// After the end of all choices.
    fn end(&mut self, out: &mut Vec<u8>);
    /// An error after the stream has begun; nothing follows.
    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>);
}

/// Writes one server-sent event with JSON data; without a name it is a plain `data:` line.
pub(crate) fn write_event(out: &mut Vec<u8>, name: Option<&str>, data: &impl Serialize) {
    if let Some(name) = name {
        // Writing to memory cannot fail.
        let _ = writeln!(out, "event: {name}");
    }
    out.extend_from_slice(b"data: ");
    let start = out.len();
    if serde_json::to_writer(&mut *out, data).is_err() {
        out.truncate(start);
        out.extend_from_slice(b"null");
    }
    out.extend_from_slice(b"\n\n");
}

/// The reply that streams a generation.
///
/// # Errors
/// An error that comes before the first event, within a second.
pub(crate) async fn stream<W: StreamWriter>(
    mut generation: Generation,
    mut writer: W,
) -> Result<Response, ApiError> {
    generation.ticket().set_streamed();
    let first = match timeout(STATUS_TIME, generation.next()).await {
        Ok(Some(Err(error))) => return Err(error),
        Ok(Some(Ok(event))) => Some(event),
        Ok(None) | Err(_) => None,
    };
    let mut pending = Vec::with_capacity(1024);
    writer.begin(&mut pending);
    if let Some(event) = first {
        writer.event(event, &mut pending);
    }
    let state = State::Running { generation: Box::new(generation), writer };
    let body = EventBody { state, pending, keep_alive: Box::pin(sleep(KEEP_ALIVE)) };
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Tells nginx to pass each event on at once.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

struct EventBody<W> {
    state: State<W>,
    /// Bytes that are not sent yet.
    pending: Vec<u8>,
    keep_alive: Pin<Box<Sleep>>,
}

enum State<W> {
    Running { generation: Box<Generation>, writer: W },
    Ended,
}

impl<W: StreamWriter> EventBody<W> {
    /// Writes all events that are there; ready when there is something to send, or nothing follows.
    fn poll_events(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let State::Running { generation, writer } = &mut self.state else { return Poll::Ready(()) };
        loop {
            match generation.poll_next(context) {
                Poll::Ready(Some(Ok(event))) => writer.event(event, &mut self.pending),
                Poll::Ready(Some(Err(error))) => writer.error(&error, &mut self.pending),
                Poll::Ready(None) => {
                    if !generation.ticket().has_failed() {
                        writer.end(&mut self.pending);
                    }
                    // Frees memory and counts the request before the client has read the last byte.
                    self.state = State::Ended;
                    return Poll::Ready(());
                }
                Poll::Pending if self.pending.is_empty() => return Poll::Pending,
                Poll::Pending => return Poll::Ready(()),
            }
        }
    }
}

impl<W: StreamWriter> http_body::Body for EventBody<W> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let body = &mut *self;
        if body.poll_events(context).is_pending() {
            ready!(body.keep_alive.as_mut().poll(context));
            body.pending.extend_from_slice(b": keep-alive\n\n");
        }
        body.keep_alive.as_mut().reset(Instant::now() + KEEP_ALIVE);
        if body.pending.is_empty() {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(std::mem::take(&mut body.pending))))))
    }
}
