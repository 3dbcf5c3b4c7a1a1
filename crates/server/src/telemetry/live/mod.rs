//! `GET /v1/live`: figures of all models once a second, as server-sent events.
//!
//! One task takes the samples for all viewers. It runs while there are any.

mod sample;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use http_body::Frame;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use self::sample::Sampler;
use crate::api_error::ApiError;
use crate::generation::write_event;
use crate::models::ModelSet;
use crate::telemetry::Metrics;

/// Time between two samples.
const PERIOD: Duration = Duration::from_secs(1);

/// Most viewers at once; further ones are refused.
const MOST_VIEWERS: usize = 64;

/// The viewers of the live figures.
pub(crate) struct Live {
    models: Arc<ModelSet>,
    metrics: Arc<Metrics>,
    viewers: Mutex<Viewers>,
}

#[derive(Debug, Default)]
struct Viewers {
    senders: Vec<mpsc::Sender<Bytes>>,
    is_closed: bool,
}

impl Live {
    /// The live figures of models, without viewers.
    pub(crate) fn new(models: Arc<ModelSet>, metrics: Arc<Metrics>) -> Self {
        Self { models, metrics, viewers: Mutex::default() }
    }

    /// Adds a viewer; the first one starts the sampler.
    ///
    /// # Errors
    /// 503 if there are too many, or the server shuts down.
    fn join(self: &Arc<Self>) -> Result<mpsc::Receiver<Bytes>, ApiError> {
        // A viewer that has not read the last event misses the next one.
        let (sender, receiver) = mpsc::channel(1);
        let mut viewers = self.viewers.lock();
        if viewers.is_closed || viewers.senders.len() >= MOST_VIEWERS {
            let message = "the live view has as many viewers as it can have; try again later";
            return Err(ApiError::overloaded(message, None));
        }
        viewers.senders.push(sender);
        if viewers.senders.len() == 1 {
            tokio::spawn(sample_until_alone(Arc::clone(self)));
        }
        Ok(receiver)
    }

    /// Sends an event to all viewers; false if none is left.
    fn send(&self, event: &Bytes) -> bool {
        let mut viewers = self.viewers.lock();
        viewers.senders.retain(|sender| {
            !matches!(sender.try_send(event.clone()), Err(mpsc::error::TrySendError::Closed(_)))
        });
        !viewers.senders.is_empty()
    }

    /// Ends the replies of all viewers and refuses further ones, for shutdown.
    pub(crate) fn close(&self) {
        let mut viewers = self.viewers.lock();
        viewers.is_closed = true;
        viewers.senders.clear();
    }

    /// Number of viewers that the sampler knows.
    #[cfg(test)]
    pub(super) fn viewers(&self) -> usize {
        self.viewers.lock().senders.len()
    }
}

/// Takes samples until the last viewer is gone.
async fn sample_until_alone(live: Arc<Live>) {
    let mut sampler = Sampler::default();
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let mut event = Vec::with_capacity(1024);
        write_event(&mut event, None, &sampler.sample(&live.models, &live.metrics));
        if !live.send(&event.into()) {
            return;
        }
    }
}

/// Events of one viewer.
struct LiveBody(mpsc::Receiver<Bytes>);

impl http_body::Body for LiveBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}

/// `GET /v1/live`
pub(crate) async fn live(Extension(live): Extension<Arc<Live>>) -> Result<Response, ApiError> {
    let events = live.join()?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // Tells nginx to pass each event on at once.
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((headers, Body::new(LiveBody(events))).into_response())
}
