//! Routes and layers.

use std::sync::Arc;

use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{delete, get, post};
use axum::{Extension, Router};

use crate::api_error::{self, ApiError};
use crate::app::App;
use crate::gate::{self, Gate};
use crate::telemetry::{Metrics, access, live, metrics};
use crate::{anthropic, generation, native, openai, openapi, request_id, web};

/// All routes behind a gate.
pub(crate) fn router(app: Arc<App>, gate: Arc<Gate>) -> Router {
    let counted = Arc::clone(&app.metrics);
    let observers = Extension(Arc::new(app.observers()));
    let figures = (Extension(Arc::clone(&app.metrics)), Extension(Arc::clone(&app.live)));
    let routes = Router::new()
        .route("/v1/chat/completions", post(openai::chat::create))
        .route("/v1/completions", post(openai::completions::create))
        .route("/v1/responses", post(openai::responses::create))
        .route("/v1/messages", post(anthropic::create))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/v1/embeddings", post(openai::embeddings::create))
        .route("/v1/rerank", post(native::rerank::create))
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{*name}", get(openai::models::retrieve))
        .route("/v1/adapters", get(native::adapters::list).post(native::adapters::load))
        .route("/v1/adapters/{name}", delete(native::adapters::unload))
        .route("/v1/feedback", post(native::feedback::create))
        .route("/v1/sona/adapters", get(native::sona::list))
        .route("/v1/sona/adapters/{name}", get(native::sona::retrieve))
        .route("/v1/sona/adapters/{name}/release", post(native::sona::release))
        .route("/v1/sona/adapters/{name}/replay", post(native::sona::replay))
        .route("/v1/sona/routers", get(native::routers::list))
        .route("/v1/sona/forget", post(native::sona::forget))
        .route("/v1/sona/bank", get(native::bank::list).post(native::bank::add).delete(native::bank::clear))
        .route("/v1/sona/bank/{id}", delete(native::bank::remove))
        .route("/v1/sona/bank/search", post(native::bank::search))
        .route("/v1/sona/bank/outcome", post(native::bank::outcome))
        .route("/v1/sessions", get(native::sessions::list))
        .route("/v1/sessions/{id}", get(native::sessions::retrieve).delete(native::sessions::remove))
        .route("/v1/sessions/{id}/fork", post(native::sessions::fork))
        .route("/tokenize", post(native::tokens::tokenize))
        .route("/detokenize", post(native::tokens::detokenize))
        .route("/props", get(native::state::props))
        .route("/openapi.json", get(openapi::serve))
        .route("/health", get(native::state::health))
        .route("/ready", get(native::state::ready))
        .route("/v1/live", get(live::live))
        .route("/metrics", get(metrics::metrics))
        .merge(web::routes())
        .method_not_allowed_fallback(|| async { ApiError::method_not_allowed() })
        .fallback(|| async { ApiError::not_found("there is no such path") })
        .layer(from_fn(generation::name_arm))
        .layer((observers, figures.0, figures.1))
        .with_state(app);
    layered(routes, gate, counted)
}

/// Routes with the layers of every server, the outermost last.
pub(crate) fn layered(routes: Router, gate: Arc<Gate>, metrics: Arc<Metrics>) -> Router {
    routes
        .layer(from_fn_with_state(Arc::clone(&gate), gate::admit))
        .layer(from_fn_with_state(gate, gate::share))
        .layer(from_fn(api_error::render))
        .layer(from_fn_with_state(metrics, access::observe))
        .layer(from_fn(request_id::set))
}
