//! `/health`, `/ready` and `/props`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use serde::Serialize;
use utoipa::ToSchema;

use super::ModelQuery;
use crate::api_error::ApiError;
use crate::app::App;

/// State of the server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    status: &'static str,
}

/// Properties of a model in memory.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Props {
    model_alias: String,
    default_generation_settings: GenerationSettings,
    chat_template: Option<String>,
    bos_token: Option<String>,
    eos_token: Option<String>,
    build_info: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GenerationSettings {
    /// Context length in tokens.
    n_ctx: usize,
}

/// `GET /health`: the process runs.
pub(crate) async fn health() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// `GET /ready`: the kept models are loaded, and the server does not shut down.
///
/// # Errors
/// 503 before and after.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Result<Json<Health>, ApiError> {
    match app.is_ready() {
        true => Ok(Json(Health { status: "ok" })),
        false => Err(ApiError::overloaded("the server loads models or shuts down", None)),
    }
}

/// `GET /props`
///
/// # Errors
/// 404 if no such model is in memory.
pub(crate) async fn props(
    State(app): State<Arc<App>>,
    Query(query): Query<ModelQuery>,
) -> Result<Json<Props>, ApiError> {
    let model = query.models(&app).next();
    let model = model.ok_or_else(|| ApiError::not_found("no such model is in memory"))?;
    let backend = model.backend()?;
    let (codec, tokenizer) = (backend.codec(), model.tokenizer());
    let token = |id: Option<ruvllm::TokenId>| id.and_then(|id| tokenizer.id_to_token(id));
    Ok(Json(Props {
        model_alias: model.name().to_string(),
        default_generation_settings: GenerationSettings { n_ctx: backend.context_length() },
        chat_template: codec.chat_template().ok().map(|template| template.source().to_owned()),
        bos_token: token(tokenizer.bos()),
        eos_token: token(tokenizer.eos()),
        build_info: concat!("ruvllm-", env!("CARGO_PKG_VERSION")),
    }))
}
