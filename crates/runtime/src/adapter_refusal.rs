//! Adapters that a backend cannot compute with.

/// Reason that a backend other than the engine refuses the adapters of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterRefusal {
    /// The backend computes no adapters.
    #[error("the backend {backend} cannot compute with an adapter; use the native engine")]
    Unsupported {
        /// Name of the backend.
        backend: String,
    },
    /// The backend computes no gates.
    #[error(
        "the backend {backend} computes no gates over adapters; leave out the gate, or use the native engine"
    )]
    Gate {
        /// Name of the backend.
        backend: String,
    },
    /// The list of a request is too long.
    #[error(
        "a request names {found} adapters and the backend {backend} adds up {most} at most; merge some of them, or use \
         the native engine"
    )]
    List {
        /// Name of the backend.
        backend: String,
        /// Adapters of the request.
        found: usize,
        /// Largest number.
        most: usize,
    },
    /// Every slot on the device is in use by other sequences.
    #[error(
        "all {slots} adapter slots of the device are in use; try again later, or raise GpuOptions::adapter_slots"
    )]
    Slots {
        /// Number of slots.
        slots: usize,
    },
}

impl AdapterRefusal {
    /// True if the end of another sequence would help.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Slots { .. })
    }
}
