//! Models that a backend other than the engine computes, such as one on a device.

use std::fmt;
use std::sync::Arc;

use ruvllm::BackendQueue;

/// Loads a model for a backend; called again after the backend is lost.
///
/// The server knows nothing of the backend but its trait
/// ([`InferenceBackend`](ruvllm::InferenceBackend)).
#[derive(Clone)]
pub struct BackendLoader(Arc<dyn Fn() -> Result<LoadedBackend, ruvllm::Error> + Send + Sync>);

/// Outcome of a [`BackendLoader`].
#[derive(Debug)]
pub enum LoadedBackend {
    /// Requests go to a queue over the backend.
    Queue {
        /// The queue.
        queue: BackendQueue,
        /// Lines for the log.
        warnings: Vec<String>,
    },
    /// The engine is to compute the model.
    Engine {
        /// Reason, for the log.
        reason: String,
    },
}

impl BackendLoader {
    /// A loader that calls `load`.
    pub fn new(load: impl Fn() -> Result<LoadedBackend, ruvllm::Error> + Send + Sync + 'static) -> Self {
        Self(Arc::new(load))
    }

    /// The queue of a backend; `None` if the engine is to compute the model.
    ///
    /// # Errors
    /// Errors of the loader.
    pub(super) fn load(&self, name: &str) -> Result<Option<BackendQueue>, ruvllm::Error> {
        match (self.0)()? {
            LoadedBackend::Queue { queue, warnings } => {
                for warning in warnings {
                    tracing::warn!(model = name, warning, "loading");
                }
                Ok(Some(queue))
            }
            LoadedBackend::Engine { reason } => {
                tracing::warn!(model = name, reason, "the engine computes the model");
                Ok(None)
            }
        }
    }
}

impl fmt::Debug for BackendLoader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BackendLoader")
    }
}
