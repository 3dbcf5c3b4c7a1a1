//! Adapters of requests with their scales.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use ruvllm_adapters::Adapter;

/// A loaded adapter and its scale in one request.
#[derive(Debug, Clone)]
pub struct ScaledAdapter {
    /// The adapter, loaded by the engine of the request.
    pub adapter: Arc<Adapter>,
    /// Multiplier of the adapter's update, on top of
    /// [`AdapterSource::scale`](crate::AdapterSource::scale); 1 = as loaded.
    pub scale: f32,
}

/// An adapter as it was loaded.
impl From<Arc<Adapter>> for ScaledAdapter {
    fn from(adapter: Arc<Adapter>) -> Self {
        Self { adapter, scale: 1.0 }
    }
}

/// Digests and scales (bits) of the adapters of a sum.
pub(crate) type SumKey = Vec<([u8; 32], u32)>;

/// Sums of adapters that are in use.
#[derive(Debug, Default)]
pub(crate) struct AdapterSums(pub(crate) Mutex<Vec<(SumKey, Weak<Adapter>)>>);
