//! Routes and layers.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::routing::{get, post};

use super::App;
use crate::api_error::{self, ApiError};
use crate::{anthropic, openai, request_id};

/// All routes. Callers, limits and the listener's layers are added outside.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(openai::chat::create))
        .route("/v1/completions", post(openai::completions::create))
        .route("/v1/responses", post(openai::responses::create))
        .route("/v1/messages", post(anthropic::create))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{*name}", get(openai::models::retrieve))
        .route("/health", get(|| async { StatusCode::OK }))
        .method_not_allowed_fallback(|| async { ApiError::method_not_allowed() })
        .fallback(|| async { ApiError::not_found("there is no such path") })
        .layer(from_fn(api_error::render))
        .layer(from_fn(request_id::set))
        .with_state(app)
}
