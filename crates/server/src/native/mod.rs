//! Interfaces that are the server's own: tokens, adapters, lessons, sessions, state.
//!
//! Where llama.cpp's server has an endpoint, names and fields are those of it.

pub(crate) mod adapters;
pub(crate) mod bank;
pub(crate) mod feedback;
mod learning;
pub(crate) mod rerank;
pub(crate) mod routers;
pub(crate) mod sessions;
pub(crate) mod sona;
pub(crate) mod state;
pub(crate) mod tokens;

use std::sync::Arc;

use serde::Deserialize;
use utoipa::ToSchema;

use crate::api_error::ApiError;
use crate::app::App;
use crate::models::LoadedModel;

#[cfg(test)]
mod tests;

/// Query of endpoints that ask about models in memory.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ModelQuery {
    /// The model; absent: all in memory.
    pub(crate) model: Option<String>,
}

impl ModelQuery {
    /// Models in memory that generate. None is loaded for the sake of a list.
    fn models(&self, app: &App) -> impl Iterator<Item = Arc<LoadedModel>> {
        let is_named = |model: &Arc<LoadedModel>| {
            self.model.as_deref().is_none_or(|name| name == &**model.name()) && model.backend().is_ok()
        };
        let models: Vec<_> = app.models.loaded().into_iter().filter(is_named).collect();
        models.into_iter()
    }

    /// Of [`models`](Self::models) those that compute with adapters.
    fn with_adapters(&self, app: &App) -> impl Iterator<Item = Arc<LoadedModel>> {
        self.models(app).filter(|model| model.adapter_registry().is_some())
    }

    /// Of [`models`](Self::models) those of the engine, which have sessions.
    fn engines(&self, app: &App) -> impl Iterator<Item = Arc<LoadedModel>> {
        self.models(app).filter(|model| model.try_engine().is_some())
    }
}

/// Runs in a thread where files may be read.
async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(run).await.map_err(|panic| ApiError::internal(&panic))?
}

/// Confirmation of a removal.
#[derive(Debug, serde::Serialize, ToSchema)]
pub(crate) struct Deleted {
    id: String,
    object: &'static str,
    deleted: bool,
}

impl Deleted {
    fn new(id: String, object: &'static str) -> Self {
        Self { id, object, deleted: true }
    }
}
