//! Banks as requests use them: the tenant that may, its items, embeddings of texts (ADR-0092).

use std::sync::Arc;
use std::time::Instant;

use ruvllm::crates::sona::Error as SonaError;
use ruvllm::crates::sona::bank::Bank;
use ruvllm::{EmbeddingRequest, OnlineAdapter};

use crate::api_error::{ApiError, with_sources};
use crate::auth::Caller;
use crate::models::LoadedModel;
use crate::tenant::tenant_of;

/// Largest number of items of a prompt.
pub(crate) const MOST_ITEMS: usize = 16;

/// Tokens of a text that its embedding is computed from: a task says what it is at its beginning.
const EMBEDDED_TOKENS: usize = 1024;

/// Refuses a tenant without memory; its smallest similarity otherwise.
///
/// # Errors
/// 403.
pub(crate) fn similarity_of(caller: &Caller) -> Result<f32, ApiError> {
    caller.limits.memory().ok_or_else(|| {
        let message = "memory is off for this tenant; `memory = true` in its section of the server's configuration \
                       turns it on";
        ApiError::forbidden(message)
    })
}

/// Runs with the bank of a model and the caller's tenant in it, in a thread where files may be
/// read.
///
/// # Errors
/// 503 for a bank that cannot be used; errors of `run`.
pub(crate) async fn with_bank<T: Send + 'static>(
    model: &Arc<LoadedModel>,
    caller: &Caller,
    run: impl FnOnce(&Bank, &str) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let (model, caller) = (Arc::clone(model), caller.clone());
    let run = move || {
        let engine = model.engine()?;
        let bank = model.memory().ok_or_else(unusable).and_then(|memory| {
            memory.open(engine).map_err(|error| {
                tracing::error!(model = &**model.name(), error = with_sources(&error), "cannot use a bank");
                unusable()
            })
        })?;
        run(&bank, OnlineAdapter::owner(&tenant_of(engine, &caller)?))
    };
    tokio::task::spawn_blocking(run).await.map_err(|panic| ApiError::internal(&panic))?
}

fn unusable() -> ApiError {
    let message = "the bank of this model cannot be used; the server's log has the reason";
    ApiError::overloaded(message, None)
}

/// Embeddings of texts by the model that the bank belongs to; their tokens count for the caller.
///
/// # Errors
/// 400 for a text without tokens; errors of the pass.
pub(crate) async fn embed<const N: usize>(
    model: &Arc<LoadedModel>,
    caller: &Caller,
    texts: [&str; N],
) -> Result<[Vec<f32>; N], ApiError> {
    let most = model.engine()?.context_length().min(EMBEDDED_TOKENS);
    let computed = model.embed(EmbeddingRequest::new(texts).with_max_tokens(most)).await?.embeddings;
    let tokens = computed.iter().map(|embedding| embedding.tokens as u64).sum();
    caller.limits.charge_tokens(tokens, Instant::now());
    let vectors: Vec<_> = computed.into_iter().map(|embedding| embedding.vector).collect();
    let count = |_| ApiError::internal(&std::io::Error::other("a text has no embedding"));
    vectors.try_into().map_err(count)
}

/// An error of the bank as one of the request.
pub(crate) fn refused(error: SonaError) -> ApiError {
    match error {
        SonaError::ItemText { field, .. } => ApiError::invalid_param(field, error.to_string()),
        SonaError::Setting { name, .. } => ApiError::invalid_param(name, error.to_string()),
        SonaError::NoItem { id, .. } => {
            ApiError::not_found(format!("the bank has no item {id}")).with_param("id")
        }
        error => ApiError::internal(&error),
    }
}
