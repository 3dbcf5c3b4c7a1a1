//! LoRA adapters of an engine, loaded into pages of the KV budget.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm_adapters::{
    Adapter, AdapterGate, BaseModel, FactorFormat, LoraFile, Part, Registry, Resolved, ScaledAdapter,
};
use ruvllm_memory::{PagePool, Request, Tenant};

use crate::adapter_choice::AdapterChoice;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::request::GenerateRequest;
use crate::step::RequestAdapters;

/// A LoRA adapter on disk and its scale.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterSource {
    /// A PEFT folder, its `.safetensors` file, or a GGUF adapter.
    pub path: PathBuf,
    /// Multiplier of the adapter's update; 1 = as trained.
    pub scale: f32,
}

impl Engine {
    /// Loads adapters for requests: the updates of all `sources` are added up.
    ///
    /// The factors, in [`EngineOptions::adapter_format`](crate::EngineOptions::adapter_format),
    /// occupy pages of the KV budget until the handle and all requests with it are dropped. If
    /// memory is short, unused prefixes are evicted under the engine's pressure policy.
    ///
    /// # Errors
    /// [`Error::Adapter`] if files cannot be read, are damaged, are not LoRA or of another model,
    /// have values beyond the format, or if memory is short.
    pub fn load_adapter(&self, sources: &[AdapterSource]) -> Result<Arc<Adapter>> {
        let core = self.core();
        let request = Request::default().pressure(core.pressure);
        load(self.adapter_base(), sources, self.adapter_format, core.kv.pool(), &request)
    }

    /// Loads a gate over several adapters, a safetensors file ([`AdapterGate::open`]);
    /// [`AdapterGate::over`] binds the adapters of a request to it.
    ///
    /// # Errors
    /// [`Error::Adapter`] for a file that cannot be read, is damaged or for another model.
    pub fn load_adapter_gate(&self, path: &Path) -> Result<Arc<AdapterGate>> {
        let gate = AdapterGate::open(path, self.adapter_base());
        gate.map(Arc::new).map_err(|source| Error::Adapter { source: source.into() })
    }

    /// Adapters by tenant and name: hot, warm or cold, in pages of the KV budget
    /// (ADR-0056). Files are compact files of an
    /// [`AdapterStore`](ruvllm_adapters::AdapterStore). Requests name them:
    /// [`GenerateRequest::with_named_adapter`].
    pub fn adapter_registry(&self) -> &Registry {
        &self.adapter_registry
    }

    /// The registered adapter `name`, for a request of `tenant`; it is loaded if it is cold. It
    /// stays in memory, and is the version of now, until the handle and all requests with it are
    /// dropped.
    ///
    /// # Errors
    /// [`Error::Adapter`] for a name that `tenant` does not see, a file that is gone, damaged or
    /// changed, and where memory is short; [`Error::AdapterScale`].
    pub fn named_adapter(&self, tenant: &Tenant, name: &str, scale: f32) -> Result<ScaledAdapter> {
        if !scale.is_finite() {
            return Err(Error::AdapterScale { scale });
        }
        let registry = &self.adapter_registry;
        let acquired = registry.resolve(tenant, name).and_then(|resolved| match resolved {
            Resolved::Version(version) => registry.acquire(&version).map(|acquired| acquired.adapter),
            Resolved::Current(adapter) => Ok(adapter),
        });
        let adapter = acquired.map_err(|source| Error::Adapter { source: source.into() })?;
        Ok(ScaledAdapter::new(adapter, scale))
    }

    /// Adapters of a request in the versions of now: those whose scale is other than 0. Cold ones
    /// are loaded in the background, unless more requests wait than can run: by their turn they
    /// would have left memory again.
    ///
    /// # Errors
    /// [`Error::AdapterScale`], and [`Error::Adapter`] for a name that the tenant does not see.
    pub(crate) fn resolve_adapters(&self, request: &GenerateRequest) -> Result<RequestAdapters> {
        let core = self.core();
        let loads_ahead = core.counters.read().waiting < core.scheduling.max_running as u64;
        resolve(&self.adapter_registry, &self.adapters, request, loads_ahead)
    }

    /// Shape that adapters of the model match.
    pub fn adapter_base(&self) -> &Arc<BaseModel> {
        self.core().model.adapter_base()
    }

    /// Sets the default adapters, for requests that name none and for measurements; their updates
    /// add up.
    ///
    /// # Errors
    /// [`Error::AdapterScale`].
    pub fn set_adapters(&mut self, adapters: &[ScaledAdapter]) -> Result<()> {
        self.adapters = in_effect(adapters)?;
        Ok(())
    }

    /// Default adapters, for requests that name none and for measurements.
    pub fn adapters(&self) -> &[ScaledAdapter] {
        &self.adapters
    }
}

/// Loads adapters of a model in `format` into pages of `pool`; the updates of all `sources` are
/// added up.
///
/// # Errors
/// [`Error::Adapter`].
pub(crate) fn load(
    base: &Arc<BaseModel>,
    sources: &[AdapterSource],
    format: FactorFormat,
    pool: &PagePool,
    request: &Request,
) -> Result<Arc<Adapter>> {
    let failed = |source: ruvllm_adapters::Error| Error::Adapter { source: source.into() };
    let files = sources.iter().map(|source| LoraFile::open(&source.path)).collect::<Result<Vec<_>, _>>();
    let files = files.map_err(failed)?;
    let parts: Vec<_> =
        files.iter().zip(sources).map(|(file, source)| Part { file, scale: source.scale }).collect();
    Adapter::new(base, &parts, format, pool, request).map(Arc::new).map_err(failed)
}

/// Adapters of a request in the versions of now, those whose scale is other than 0; `defaults` if
/// it names none. `loads_ahead`: cold ones are loaded in the background.
///
/// # Errors
/// [`Error::AdapterScale`], and [`Error::Adapter`] for a name that the tenant does not see.
pub(crate) fn resolve(
    registry: &Registry,
    defaults: &[ScaledAdapter],
    request: &GenerateRequest,
    loads_ahead: bool,
) -> Result<RequestAdapters> {
    let (residency, mut adapters) = (registry.residency(), RequestAdapters::default());
    if request.adapters.is_empty() {
        defaults.iter().for_each(|scaled| adapters.push_loaded(scaled.clone()));
        return Ok(adapters);
    }
    for choice in &request.adapters {
        match choice {
            AdapterChoice::Loaded(scaled) if is_in_effect(scaled.scale)? => {
                adapters.push_loaded(scaled.clone());
            }
            AdapterChoice::Loaded(_) => {}
            AdapterChoice::Named { name, scale } => {
                let resolved = registry.resolve(&request.tenant, name);
                let resolved = resolved.map_err(|source| Error::Adapter { source: source.into() })?;
                if !is_in_effect(*scale)? {
                    continue;
                }
                match resolved {
                    Resolved::Current(adapter) => adapters.push_current(name, adapter, *scale),
                    Resolved::Version(version) => {
                        let tier = residency.count(&version);
                        if loads_ahead {
                            residency.prefetch(&version);
                        }
                        adapters.push_version(version, *scale, tier);
                    }
                }
            }
        }
    }
    Ok(adapters)
}

/// The adapters of a list that change anything: those with a scale other than 0.
///
/// # Errors
/// [`Error::AdapterScale`] for a scale that is not finite.
pub(crate) fn in_effect(adapters: &[ScaledAdapter]) -> Result<Arc<[ScaledAdapter]>> {
    for scaled in adapters {
        is_in_effect(scaled.scale)?;
    }
    Ok(adapters.iter().filter(|scaled| scaled.scale != 0.0).cloned().collect())
}

/// True for the scale of an adapter that changes anything.
///
/// # Errors
/// [`Error::AdapterScale`] for one that is not finite.
fn is_in_effect(scale: f32) -> Result<bool> {
    if scale.is_finite() { Ok(scale != 0.0) } else { Err(Error::AdapterScale { scale }) }
}
