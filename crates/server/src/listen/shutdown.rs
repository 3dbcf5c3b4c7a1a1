//! Stages of the end of a server.

use std::sync::Arc;

use tokio::sync::watch;

/// Stage of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Connections are accepted.
    Running,
    /// Requests that run may end; nothing else is accepted.
    Draining,
    /// Everything ends now.
    Ended,
}

/// Ends a server from another thread.
#[derive(Debug, Clone)]
pub struct ShutdownHandle(Arc<watch::Sender<Stage>>);

impl ShutdownHandle {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Stage::Running)))
    }

    /// Accepts no further connections and requests; those that run have `limits.drain_timeout_s`.
    pub fn drain(&self) {
        self.raise(Stage::Draining);
    }

    /// Ends all requests at once.
    pub fn end(&self) {
        self.raise(Stage::Ended);
    }

    /// The first call drains, the second one ends.
    pub fn request(&self) {
        let next = match *self.0.borrow() {
            Stage::Running => Stage::Draining,
            Stage::Draining | Stage::Ended => Stage::Ended,
        };
        self.raise(next);
    }

    fn raise(&self, stage: Stage) {
        self.0.send_if_modified(|now| {
            let later = *now < stage;
            *now = (*now).max(stage);
            later
        });
    }

    /// Waits until no further requests are accepted.
    pub(crate) async fn draining(&self) {
        self.reached(Stage::Draining).await;
    }

    /// Waits until a stage is reached.
    pub(super) async fn reached(&self, stage: Stage) {
        let mut receiver = self.0.subscribe();
        // The sender lives as long as `self`.
        let _ = receiver.wait_for(|now| *now >= stage).await;
    }
}
