//! One connection of HTTP/2, which gRPC needs, from its acceptance to its end.
//!
//! Lengths and ends of requests are frames here, so that there is no framing to disagree about. A
//! connection has many requests at once; its time limits are those of the connection without a
//! request and of each reply that its client does not read.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{MissedTickBehavior, interval};
use tokio_io_timeout::TimeoutStream;
use tower::Service as _;

use super::ConnectionLimits;
use super::connection::Peer;
use super::shutdown::{ShutdownHandle, Stage};

/// Requests of a connection at once; further ones wait at their client.
const STREAMS: u32 = 128;

/// Bytes that a client may send of one request before a handler reads them.
const REQUEST_WINDOW: u32 = 64 << 10;

/// The same of all requests of a connection.
const CONNECTION_WINDOW: u32 = 256 << 10;

/// Bytes of output that are buffered for each request.
const SEND_BUFFER: usize = 64 << 10;

/// Time without frames after which a client is asked if it is still there.
const PING: Duration = Duration::from_secs(15);

/// Longest time between two looks at the time limits.
const TICK: Duration = Duration::from_secs(1);

/// Serves the requests of a connection until it ends, its time is over, or the server ends.
pub(super) async fn serve<S>(
    stream: S,
    peer: Peer,
    routes: Router,
    limits: &ConnectionLimits,
    shutdown: &ShutdownHandle,
) where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write_timeout));
    let activity = Arc::new(Activity::new());
    let service = Requests { routes, peer, activity: Arc::clone(&activity) };
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .initial_stream_window_size(REQUEST_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(PING)
        .keep_alive_timeout(limits.write_timeout);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(Box::pin(stream)), service));
    let mut draining = pin!(shutdown.reached(Stage::Draining));
    let mut ended = pin!(shutdown.reached(Stage::Ended));
    let mut tick = interval(TICK.min(limits.idle_timeout).min(limits.write_timeout));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut is_draining, mut is_idle) = (false, false);
    poll_fn(|context| {
        if ended.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        if !is_draining && draining.as_mut().poll(context).is_ready() {
            is_draining = true;
            connection.as_mut().graceful_shutdown();
        }
        while tick.poll_tick(context).is_ready() {
            let now = Instant::now();
            if activity.is_stalled(limits.write_timeout, now) {
                tracing::debug!("a client does not read its replies");
                return Poll::Ready(());
            }
            if activity.is_idle(limits.idle_timeout, now) {
                // The client has one more interval to close.
                if std::mem::replace(&mut is_idle, true) {
                    return Poll::Ready(());
                }
                connection.as_mut().graceful_shutdown();
            }
        }
        connection.as_mut().poll(context).map(|result| {
            if let Err(error) = result {
                tracing::debug!(error = %error, "a connection ended early");
            }
        })
    })
    .await;
}

/// Requests of a connection that are open.
struct Activity(Mutex<Open>);

struct Open {
    requests: usize,
    /// End of the last request, or the acceptance.
    since: Instant,
    /// Replies whose latest bytes the client has not made room for, by the number of the request,
    /// with the time at which these were handed over.
    unread: HashMap<u64, Instant>,
    next: u64,
}

impl Activity {
    fn new() -> Self {
        let unread = HashMap::new();
        Self(Mutex::new(Open { requests: 0, since: Instant::now(), unread, next: 0 }))
    }

    fn open(self: &Arc<Self>) -> OpenRequest {
        let open = &mut *self.0.lock();
        open.requests += 1;
        open.next += 1;
        OpenRequest { activity: Arc::clone(self), number: open.next }
    }

    /// True if there has been no request for `limit`.
    fn is_idle(&self, limit: Duration, now: Instant) -> bool {
        let open = self.0.lock();
        open.requests == 0 && now.saturating_duration_since(open.since) >= limit
    }

    /// True if a reply could not be continued for `limit`.
    fn is_stalled(&self, limit: Duration, now: Instant) -> bool {
        self.0.lock().unread.values().any(|since| now.saturating_duration_since(*since) >= limit)
    }
}

/// A request; it ends when this is dropped.
struct OpenRequest {
    activity: Arc<Activity>,
    number: u64,
}

impl OpenRequest {
    /// Notes that bytes were handed over, or that there is room for the next ones.
    fn set_unread(&self, is_unread: bool) {
        let unread = &mut self.activity.0.lock().unread;
        if is_unread {
            unread.insert(self.number, Instant::now());
        } else {
            unread.remove(&self.number);
        }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let open = &mut *self.activity.0.lock();
        open.requests -= 1;
        open.since = Instant::now();
        open.unread.remove(&self.number);
    }
}

/// Passes the requests of a connection to the routes.
struct Requests {
    routes: Router,
    peer: Peer,
    activity: Arc<Activity>,
}

impl hyper::service::Service<Request<Incoming>> for Requests {
    type Response = Response<Output>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Output>, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let open = self.activity.open();
        request.extensions_mut().insert(self.peer);
        let response = self.routes.clone().call(request.map(Body::new));
        Box::pin(async move { Ok(response.await?.map(|body| Output { body, open })) })
    }
}

/// Body of a response. It is polled only while its client has room for more.
struct Output {
    body: Body,
    open: OpenRequest,
}

impl http_body::Body for Output {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { body, open } = self.get_mut();
        open.set_unread(false);
        let frame = Pin::new(body).poll_frame(context);
        if let Poll::Ready(Some(Ok(_))) = frame {
            open.set_unread(true);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_connections_and_unread_replies_are_told_from_running_requests() {
        let activity = Arc::new(Activity::new());
        let limit = Duration::from_secs(5);
        let later = Instant::now() + Duration::from_secs(60);
        assert!(activity.is_idle(limit, later) && !activity.is_idle(limit, Instant::now()));
        let (first, second) = (activity.open(), activity.open());
        assert!(!activity.is_idle(limit, later) && !activity.is_stalled(limit, later));
        first.set_unread(true);
        second.set_unread(true);
        assert!(activity.is_stalled(limit, later) && !activity.is_stalled(limit, Instant::now()));
        first.set_unread(false);
        drop(second);
        assert!(!activity.is_stalled(limit, later) && !activity.is_idle(limit, later));
        drop(first);
        assert!(activity.is_idle(limit, later));
    }
}
