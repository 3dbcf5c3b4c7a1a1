//! A model in memory.

use std::sync::Arc;

use ruvllm::{Embedder, Engine, LoadProgress, Precision, Tenant};

use super::ModelEntry;
use crate::api_error::ApiError;

/// A loaded model: a decoder, which generates, or an encoder, which only embeds.
pub(crate) struct LoadedModel {
    name: Arc<str>,
    embedder: Embedder,
    bytes: u64,
}

impl LoadedModel {
    /// Loads a model and registers its adapters.
    ///
    /// # Errors
    /// As [`Engine::load`], and [`ruvllm::Error::Adapter`].
    pub(super) fn load(entry: &ModelEntry) -> Result<Self, ruvllm::Error> {
        let embedder = Embedder::load(&entry.source, &entry.options, &mut |_: LoadProgress<'_>| ())?;
        let mut bytes = super::expected_bytes(entry);
        if let Some(engine) = embedder.engine() {
            let weights = engine.model().weight_bytes();
            bytes = weights.private + weights.shared + engine.plan().kv_budget.value as u64;
            for (name, path) in &entry.adapters {
                let registered =
                    engine.adapter_registry().register(&Tenant::root(), name, path, Precision::default());
                registered.map_err(|source| ruvllm::Error::Adapter { source: source.into() })?;
            }
        }
        Ok(Self { name: entry.name.as_str().into(), embedder, bytes })
    }

    /// Name of the model in replies.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Bytes of weights and of the budget for keys and values.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The model for embeddings.
    pub(crate) fn embedder(&self) -> &Embedder {
        &self.embedder
    }

    /// The engine of a model that generates.
    ///
    /// # Errors
    /// 400 for an encoder.
    pub(crate) fn engine(&self) -> Result<&Engine, ApiError> {
        self.embedder.engine().ok_or_else(|| {
            let message = format!("the model {} computes embeddings and generates no text", self.name);
            ApiError::invalid_param("model", message)
        })
    }
}
