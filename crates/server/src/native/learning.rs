//! Choice of the model that learns, and errors, for `/v1/feedback` and `/v1/sona`.

use std::sync::Arc;

use ruvllm::crates::sona::Error as SonaError;

use crate::api_error::ApiError;
use crate::app::App;
use crate::auth::Caller;
use crate::learning::ModelLearning;
use crate::models::LoadedModel;

/// The model of a request, for a tenant that learns.
///
/// # Errors
/// 403 for a tenant that does not; errors of the choice.
pub(super) async fn learning_model(
    app: &App,
    caller: &Caller,
    name: Option<&str>,
) -> Result<Arc<LoadedModel>, ApiError> {
    require_learning(caller)?;
    Ok(app.models.choose(name).await?.model)
}

/// Refuses a tenant that does not learn.
///
/// # Errors
/// 403.
pub(super) fn require_learning(caller: &Caller) -> Result<(), ApiError> {
    if caller.limits.learns() {
        return Ok(());
    }
    let message = "learning is off for this tenant; `learning = true` in its section of the server's configuration \
                   turns it on";
    Err(ApiError::forbidden(message))
}

/// Learning of a model.
///
/// # Errors
/// 503 if its store cannot be used.
pub(super) fn learning_of(model: &LoadedModel) -> Result<&ModelLearning, ApiError> {
    model.learning().ok_or_else(|| {
        let message = "this model learns nothing: its store cannot be used; the server's log has the reason";
        ApiError::overloaded(message, None)
    })
}

/// A request that is not recorded.
pub(super) fn no_request() -> ApiError {
    let message = "no such request is recorded: unknown, too old, or without learning when it ran";
    ApiError::not_found(message).with_param("request_id")
}

/// An error of the engine or of its learning.
pub(super) fn refused(error: ruvllm::Error) -> ApiError {
    match error {
        ruvllm::Error::Learning { source } => unusable(source),
        ruvllm::Error::ContextTooLong { .. } => ApiError::invalid(error.to_string()),
        ruvllm::Error::Adapter { .. } if !error.kv_memory_short() => {
            ApiError::from(error).renamed(&[("adapters", "adapter")])
        }
        error => error.into(),
    }
}

/// An error of learning. The requests of others do not exist for a tenant.
pub(super) fn unusable(error: SonaError) -> ApiError {
    match error {
        SonaError::UnknownRequest { .. } | SonaError::ForeignRequest { .. } => no_request(),
        SonaError::Empty { .. } | SonaError::Record { .. } | SonaError::NotFinite { .. } => {
            ApiError::invalid(error.to_string())
        }
        SonaError::Foreign { .. } | SonaError::EventLogFull { .. } => ApiError::conflict(error.to_string()),
        SonaError::Model { source } => match source.downcast::<ruvllm::Error>() {
            Ok(error) => refused(*error),
            Err(source) => ApiError::internal(&*source),
        },
        error => ApiError::internal(&error),
    }
}
