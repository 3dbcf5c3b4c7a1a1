//! Adapters of an engine: read from files into the memory that keys and values share.

use std::path::PathBuf;
use std::sync::Arc;

use ruvllm_adapters::{Adapter, LoraFile, Part};
use ruvllm_memory::Request;

use crate::engine::Engine;
use crate::error::{Error, Result};

/// A LoRA adapter on disk, and how much of it counts.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterSource {
    /// A PEFT folder, its `.safetensors` file, or a GGUF adapter.
    pub path: PathBuf,
    /// Multiplier of the adapter's update; 1 = as trained.
    pub scale: f32,
}

impl Engine {
    /// Makes adapters ready for requests: all of `sources` together, whose changes add up.
    ///
    /// Their factors take pages of the KV budget until the last request that names them has ended
    /// and this handle is dropped. Where there is no room for them, prefixes that nobody uses are
    /// evicted as the engine's pressure policy says.
    ///
    /// # Errors
    /// [`Error::Adapter`] for files that cannot be read, are damaged, no LoRA or for another model,
    /// and where there is no room.
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

    /// Sets the default adapter: that of requests which name none, and of measurements.
    pub fn set_adapter(&mut self, adapter: Option<Arc<Adapter>>) {
        self.adapter = adapter;
    }

    /// The adapter of requests that name none.
    pub fn adapter(&self) -> Option<&Arc<Adapter>> {
        self.adapter.as_ref()
    }
}
