//! Cancellation of a running request from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Cancels a running call. Clones share one flag, which any thread may set. A generation checks it
/// while its chat is rendered, before every prefill chunk and before every token.
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the flag, permanently; the next request needs a new token.
    pub fn cancel(&self) {
        // Nothing is published with the flag, so no ordering is needed.
        self.0.store(true, Ordering::Relaxed);
    }

    /// The flag, for crates that do not know this type.
    pub(crate) fn flag(&self) -> &Arc<AtomicBool> {
        &self.0
    }

    /// True once [`cancel`](Self::cancel) was called on this token or a clone of it.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
