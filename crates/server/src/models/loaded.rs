//! A model in memory.

use std::sync::Arc;

use ruvllm::{
    Embedder, EmbeddingRequest, Embeddings, Engine, LoadProgress, Precision, Prompt, Tenant, TokenId,
};
use tokio::sync::Mutex;

use super::ModelEntry;
use crate::api_error::ApiError;

/// A loaded model: a decoder, which generates, or an encoder, which only embeds.
pub(crate) struct LoadedModel {
    name: Arc<str>,
    embedder: Embedder,
    bytes: u64,
    /// Held while embeddings are computed.
    embedding: Arc<Mutex<()>>,
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
        Ok(Self { name: entry.name.as_str().into(), embedder, bytes, embedding: Arc::default() })
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

    /// Computes embeddings in a thread of its own.
    ///
    /// One request at a time for each model, in the order of their arrival: its passes take all
    /// threads of the engine, so that several at once would only divide them, take buffers for
    /// each, and delay every step of the requests that generate.
    ///
    /// # Errors
    /// As [`Embedder::embed`].
    pub(crate) async fn embed(self: &Arc<Self>, request: EmbeddingRequest) -> Result<Embeddings, ApiError> {
        let turn = Arc::clone(&self.embedding).lock_owned().await;
        let model = Arc::clone(self);
        let computed = tokio::task::spawn_blocking(move || {
            // Held to the end, also if the client is gone meanwhile.
            let _turn = turn;
            model.embedder.embed(&request)
        });
        Ok(computed.await.map_err(|panic| ApiError::internal(&panic))??)
    }

    /// Encodes a prompt in a thread of its own: chat templates are programs and may run long.
    ///
    /// # Errors
    /// As [`Engine::encode_prompt`], and 400 for an encoder.
    pub(crate) async fn encode(self: &Arc<Self>, prompt: Prompt) -> Result<Vec<TokenId>, ApiError> {
        let model = Arc::clone(self);
        let encoded = tokio::task::spawn_blocking(move || {
            let tokens = model.engine()?.encode_prompt(&prompt)?;
            Ok::<_, ApiError>(tokens)
        });
        encoded.await.map_err(|panic| ApiError::internal(&panic))?
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
