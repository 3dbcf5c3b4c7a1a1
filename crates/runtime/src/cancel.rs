//! Cancellation of a running request from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Cancels a running call. Clones share one flag, which any thread may set. A generation checks it
/// while its chat is rendered, before every prefill chunk and before every token.
#[derive(Debug, Clone, Default)]
pub struct CancelToken {
    flag: Arc<AtomicBool>,
    /// Flag of the token that this one is a child of.
    parent: Option<Arc<AtomicBool>>,
}

impl CancelToken {
    /// A token that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the flag, permanently; the next request needs a new token.
    pub fn cancel(&self) {
        // Nothing is published with the flag, so no ordering is needed.
        self.flag.store(true, Ordering::Relaxed);
    }

    /// A token that is set with this one, and can be set alone.
    pub(crate) fn child(&self) -> Self {
        Self { flag: Arc::default(), parent: Some(Arc::clone(&self.flag)) }
    }

    /// The flag, for code that does not know this type.
    pub(crate) fn flag(&self) -> &Arc<AtomicBool> {
        &self.flag
    }

    /// True once [`cancel`](Self::cancel) was called on this token or a clone of it.
    pub fn is_cancelled(&self) -> bool {
        let is_set = |flag: &Arc<AtomicBool>| flag.load(Ordering::Relaxed);
        is_set(&self.flag) || self.parent.as_ref().is_some_and(is_set)
    }
}
