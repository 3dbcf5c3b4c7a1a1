//! LoRA adapters of an engine, loaded into pages of the KV budget.

use std::path::PathBuf;
use std::sync::Arc;

use ruvllm_adapters::{Adapter, LoraFile, Part};
use ruvllm_memory::Request;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::scaled_adapter::{ScaledAdapter, SumKey};

/// A LoRA adapter on disk and its scale.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterSource {
    /// A PEFT folder, its `.safetensors` file, or a GGUF adapter.
    pub path: PathBuf,
    /// Multiplier of the adapter's update; 1 = as trained.
    pub scale: f32,
}

impl Engine {
    /// Adds loaded adapters up, each times its scale, in memory of its own: pages of the KV budget
    /// until the handle and all requests with it are dropped. One adapter at scale 1 is itself.
    ///
    /// Sums in use are shared: the same adapters and scales in the same order give the same handle.
    /// Held by the caller, a sum is not computed again for each request.
    ///
    /// # Errors
    /// [`Error::AdapterScale`]; [`Error::Adapter`] for no adapter, adapters of different models,
    /// products that are not finite, and without memory.
    pub fn combine_adapters(&self, parts: &[ScaledAdapter]) -> Result<Arc<Adapter>> {
        if let Some(part) = parts.iter().find(|part| !part.scale.is_finite()) {
            return Err(Error::AdapterScale { scale: part.scale });
        }
        if let [ScaledAdapter { adapter, scale: 1.0 }] = parts {
            return Ok(Arc::clone(adapter));
        }
        let key: SumKey = parts.iter().map(|part| (*part.adapter.digest(), part.scale.to_bits())).collect();
        // Under the lock, so that requests that come together compute one sum.
        let mut sums = self.sums.0.lock();
        sums.retain(|(_, sum)| sum.strong_count() > 0);
        if let Some(sum) = sums.iter().find(|(of, _)| *of == key).and_then(|(_, sum)| sum.upgrade()) {
            return Ok(sum);
        }
        let parts: Vec<_> = parts.iter().map(|part| (&*part.adapter, part.scale)).collect();
        let request = Request::default().pressure(self.core().pressure);
        let sum = Adapter::combined(&parts, self.core().kv.pool(), &request)
            .map_err(|source| Error::Adapter { source: source.into() })?;
        let sum = Arc::new(sum);
        sums.push((key, Arc::downgrade(&sum)));
        Ok(sum)
    }

    /// Loads adapters for requests: the updates of all `sources` are added up.
    ///
    /// The factors occupy pages of the KV budget until the handle and all requests with it are
    /// dropped. If memory is short, unused prefixes are evicted under the engine's pressure policy.
    ///
    /// # Errors
    /// [`Error::Adapter`] if files cannot be read, are damaged, are not LoRA or of another model,
    /// or if memory is short.
    pub fn load_adapter(&self, sources: &[AdapterSource]) -> Result<Arc<Adapter>> {
        let failed = |source: ruvllm_models::Error| Error::Adapter { source };
        let files = sources
            .iter()
            .map(|source| LoraFile::open(&source.path))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|source| failed(source.into()))?;
        let parts: Vec<_> =
            files.iter().zip(sources).map(|(file, source)| Part { file, scale: source.scale }).collect();
        let request = Request::default().pressure(self.core().pressure);
        self.core().model.adapter(&parts, self.core().kv.pool(), &request).map(Arc::new).map_err(failed)
    }

    /// Sets the default adapter, for requests that name none and for measurements.
    pub fn set_adapter(&mut self, adapter: Option<Arc<Adapter>>) {
        self.adapter = adapter;
    }

    /// Default adapter, for requests that name none and for measurements.
    pub fn adapter(&self) -> Option<&Arc<Adapter>> {
        self.adapter.as_ref()
    }
}
