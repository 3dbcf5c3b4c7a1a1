//! LoRA adapters of an engine, loaded into pages of the KV budget.

use std::path::PathBuf;
use std::sync::Arc;

use ruvllm_adapters::{Adapter, LoraFile, Part};
use ruvllm_memory::Request;

use crate::engine::Engine;
use crate::error::{Error, Result};

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
        let request = Request::default().pressure(self.pressure);
        self.model.adapter(&parts, self.kv.pool(), &request).map(Arc::new).map_err(failed)
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
