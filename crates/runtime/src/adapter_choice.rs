//! Adapters that a request asks for, and those that served it.

use ruvllm_adapters::{FactorFormat, ScaledAdapter, Tier};

/// Adapter of a request with its scale.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum AdapterChoice {
    /// Adapter in memory: see [`Engine::load_adapter`](crate::Engine::load_adapter).
    Loaded(ScaledAdapter),
    /// Adapter of the engine's [registry](crate::Engine::adapter_registry), as the tenant of the
    /// request sees it.
    Named {
        /// Its name.
        name: String,
        /// Multiplier of its update; 1 = as registered.
        scale: f32,
    },
}

impl From<ScaledAdapter> for AdapterChoice {
    fn from(adapter: ScaledAdapter) -> Self {
        Self::Loaded(adapter)
    }
}

/// Adapter of the registry as it served a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServedAdapter {
    /// Name that the request gave.
    pub name: String,
    /// Number of the version that was current at the submission.
    pub version: u64,
    /// Tier in which the request found it; cold if it was not in memory at the submission or when
    /// the request began. `None` for an adapter that changes
    /// ([`MicroLora`](ruvllm_adapters::MicroLora)), which is always in memory.
    pub found: Option<Tier>,
    /// Number format of the factors, from the first token to the last.
    pub format: FactorFormat,
}
