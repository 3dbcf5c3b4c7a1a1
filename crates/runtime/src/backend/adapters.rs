//! Adapters of a backend that is not the engine: loaded, registered, resolved for requests.

use std::fmt;
use std::sync::Arc;

use ruvllm_adapters::{
    Adapter, BaseModel, FactorFormat, Registry, Residency, ResidencyConfig, ScaledAdapter,
};
use ruvllm_memory::{PagePool, Request};

use crate::adapter::{AdapterSource, in_effect, load, resolve};
use crate::adapter_choice::AdapterChoice;
use crate::adapter_refusal::AdapterRefusal;
use crate::error::{Error, Result};
use crate::request::GenerateRequest;
use crate::step::RequestAdapters;

/// LoRA adapters for the requests of a backend, with their factors in memory of the host.
///
/// The counterpart of the functions of an [`Engine`](crate::Engine): adapters are loaded from
/// files ([`load`](Self::load)), or registered by name and loaded when a request needs them
/// ([`registry`](Self::registry)).
pub struct BackendAdapters {
    backend: &'static str,
    /// Largest number of adapters of a request.
    most: usize,
    registry: Registry,
    format: FactorFormat,
    defaults: Arc<[ScaledAdapter]>,
}

impl BackendAdapters {
    /// Adapters of a model, in pages of `pool`, loaded in `format`; a request of `backend` adds up
    /// `most` of them.
    pub fn new(
        (backend, most): (&'static str, usize),
        base: &Arc<BaseModel>,
        pool: &PagePool,
        format: FactorFormat,
    ) -> Self {
        let residency = Residency::new(Arc::clone(base), pool.clone(), ResidencyConfig::default());
        Self { backend, most, registry: Registry::new(residency), format, defaults: Arc::default() }
    }

    /// Loads adapters for requests: see [`Engine::load_adapter`](crate::Engine::load_adapter).
    ///
    /// # Errors
    /// As [`Engine::load_adapter`](crate::Engine::load_adapter).
    pub fn load(&self, sources: &[AdapterSource]) -> Result<Arc<Adapter>> {
        let residency = self.registry.residency();
        load(residency.base(), sources, self.format, residency.pool(), &Request::default())
    }

    /// Adapters by tenant and name: see
    /// [`Engine::adapter_registry`](crate::Engine::adapter_registry).
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Adapters of requests that name none, and of measurements.
    pub fn defaults(&self) -> &Arc<[ScaledAdapter]> {
        &self.defaults
    }

    /// Sets the [`defaults`](Self::defaults); their updates add up.
    ///
    /// # Errors
    /// [`Error::AdapterScale`], [`Error::AdapterBackend`].
    pub fn set_defaults(&mut self, adapters: &[ScaledAdapter]) -> Result<()> {
        let adapters = in_effect(adapters)?;
        self.check(adapters.len(), adapters.iter().any(|scaled| scaled.gate.is_some()))?;
        self.defaults = adapters;
        Ok(())
    }

    /// Adapters of a request in the versions of now.
    ///
    /// # Errors
    /// [`Error::AdapterScale`], [`Error::AdapterBackend`], and [`Error::Adapter`] for a name that
    /// the tenant does not see.
    pub(crate) fn resolve(&self, request: &GenerateRequest) -> Result<RequestAdapters> {
        let has_gate =
            |choice: &AdapterChoice| matches!(choice, AdapterChoice::Loaded(scaled) if scaled.gate.is_some());
        self.check(request.adapters.len(), request.adapters.iter().any(has_gate))?;
        resolve(&self.registry, &self.defaults, request, true)
    }

    fn check(&self, found: usize, has_gate: bool) -> Result<()> {
        let (backend, most) = (self.backend.to_owned(), self.most);
        if has_gate {
            return Err(Error::AdapterBackend(AdapterRefusal::Gate { backend }));
        }
        if found > most {
            return Err(Error::AdapterBackend(AdapterRefusal::List { backend, found, most }));
        }
        Ok(())
    }
}

/// Prints the number of registered adapters.
impl fmt::Debug for BackendAdapters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendAdapters").field("registered", &self.registry.len()).finish_non_exhaustive()
    }
}
