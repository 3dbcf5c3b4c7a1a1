//! One connection, from its acceptance to its end.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::{CONNECTION, TRANSFER_ENCODING};
use axum::http::{HeaderValue, Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Sleep, sleep_until};
use tower::Service as _;

use super::ConnectionLimits;
use super::guarded::Guarded;
use super::phase::Phase;
use super::shutdown::{ShutdownHandle, Stage};

/// Bytes of output that a connection buffers at most, unless heads may be longer.
const BUFFER: usize = 64 << 10;

/// Address of a client, an extension of every request; `None` over a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub Option<IpAddr>);

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
    let phase = Arc::new(Mutex::new(Phase::Idle(Instant::now())));
    let stream = TokioIo::new(Guarded::new(stream, limits.write_timeout, Arc::clone(&phase)));
    let service = Requests { routes, peer, phase: Arc::clone(&phase) };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // The phases have a timeout each.
        .header_read_timeout(None)
        .max_headers(limits.headers)
        .max_header_size(limits.header_bytes)
        .max_buf_size(BUFFER.max(limits.header_bytes))
        .half_close(false)
        .serve_connection(stream, service);
    let mut connection = pin!(connection);
    let mut draining = pin!(shutdown.reached(Stage::Draining));
    let mut ended = pin!(shutdown.reached(Stage::Ended));
    let mut timer = Timer { limits, armed: None, sleep: pin!(sleep_until(Instant::now().into())) };
    let mut is_draining = false;
    poll_fn(|context| {
        if ended.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        if !is_draining && draining.as_mut().poll(context).is_ready() {
            is_draining = true;
            connection.as_mut().graceful_shutdown();
        }
        if let Poll::Ready(result) = connection.as_mut().poll(context) {
            if let Err(error) = result {
                tracing::debug!(error = %error, "a connection ended early");
            }
            return Poll::Ready(());
        }
        timer.poll(*phase.lock(), context)
    })
    .await;
}

/// Time limit of the current phase.
struct Timer<'t> {
    limits: &'t ConnectionLimits,
    armed: Option<Instant>,
    sleep: Pin<&'t mut Sleep>,
}

impl Timer<'_> {
    /// Ready when the phase has lasted too long.
    fn poll(&mut self, phase: Phase, context: &mut Context<'_>) -> Poll<()> {
        let deadline = phase.deadline(self.limits);
        if self.armed != deadline {
            self.armed = deadline;
            if let Some(deadline) = deadline {
                self.sleep.as_mut().reset(deadline.into());
            }
        }
        match self.armed {
            Some(_) => self.sleep.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

/// Passes the requests of a connection to the routes.
struct Requests {
    routes: Router,
    peer: Peer,
    phase: Arc<Mutex<Phase>>,
}

impl hyper::service::Service<Request<Incoming>> for Requests {
    type Response = Response<Ended>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Ended>, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        *self.phase.lock() = Phase::Busy;
        let phase = Arc::clone(&self.phase);
        let is_chunked = request.headers().contains_key(TRANSFER_ENCODING);
        request.extensions_mut().insert(self.peer);
        let response = self.routes.clone().call(request.map(Body::new));
        Box::pin(async move {
            let mut response = response.await?;
            if is_chunked {
                // The framing of heads behind chunks is not checked.
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response.map(|body| Ended { body, phase }))
        })
    }
}

/// Body of a response, after which the connection is idle.
struct Ended {
    body: Body,
    phase: Arc<Mutex<Phase>>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        *self.phase.lock() = Phase::Idle(Instant::now());
    }
}

impl http_body::Body for Ended {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
