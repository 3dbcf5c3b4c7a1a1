//! Adapters of a sequence with their scales.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::adapter::Adapter;

/// A loaded adapter and its scale in one request.
#[derive(Debug, Clone)]
pub struct ScaledAdapter {
    /// The adapter.
    pub adapter: Arc<Adapter>,
    /// Multiplier of the adapter's update, on top of the scale that it was loaded with; 1 = as
    /// loaded, 0 = as without the adapter.
    pub scale: f32,
}

/// An adapter as it was loaded.
impl From<Arc<Adapter>> for ScaledAdapter {
    fn from(adapter: Arc<Adapter>) -> Self {
        Self { adapter, scale: 1.0 }
    }
}

/// Digest of everything in a list of adapters that cached keys and values depend on: the
/// [`kv_digest`](Adapter::kv_digest) and the scale of each, in order. `None` if they depend on
/// none: keys and values are those of the model itself.
pub fn kv_digest(adapters: &[ScaledAdapter]) -> Option<[u8; 32]> {
    let mut hash = None;
    for ScaledAdapter { adapter, scale } in adapters.iter().filter(|scaled| scaled.scale != 0.0) {
        if let Some(digest) = adapter.kv_digest() {
            let hash = hash.get_or_insert_with(Sha256::new);
            hash.update(digest);
            hash.update(scale.to_bits().to_le_bytes());
        }
    }
    hash.map(|hash| hash.finalize().into())
}
