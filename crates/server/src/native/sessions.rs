//! `/v1/sessions`: the sessions of the caller's tenant.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use ruvllm::{SessionInfo, Tenant};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Deleted, ModelQuery};
use crate::api_error::ApiError;
use crate::app::App;
use crate::auth::Caller;
use crate::models::LoadedModel;
use crate::tenant::tenant_of;

/// A session.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionObject {
    id: String,
    object: &'static str,
    model: String,
    /// Tokens of its sequence.
    tokens: usize,
    /// Last message of its last prompt.
    last_message: String,
    /// Seconds since the Unix epoch.
    last_used: u64,
}

/// The list of sessions.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionList {
    object: &'static str,
    data: Vec<SessionObject>,
}

/// The session that a fork makes.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ForkRequest {
    id: String,
}

impl SessionObject {
    fn new(session: &SessionInfo, model: &LoadedModel) -> Self {
        let last_used = session.last_used.duration_since(UNIX_EPOCH);
        Self {
            id: session.id.clone(),
            object: "session",
            model: model.name().to_string(),
            tokens: session.tokens.len(),
            last_message: session.last_message.to_string(),
            last_used: last_used.map_or(0, |time| time.as_secs()),
        }
    }
}

/// The model in memory that has a session of the caller's tenant.
///
/// # Errors
/// 404 if there is none.
fn find(
    app: &App,
    query: &ModelQuery,
    caller: &Caller,
    id: &str,
) -> Result<(Arc<LoadedModel>, Tenant, SessionInfo), ApiError> {
    for model in query.engines(app) {
        let tenant = tenant_of(model.engine()?, caller)?;
        if let Some(session) = model.engine()?.sessions().get(&tenant, id) {
            return Ok((model, tenant, session));
        }
    }
    Err(ApiError::not_found("there is no such session").with_param("id"))
}

/// `GET /v1/sessions`
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<ModelQuery>,
) -> Result<Json<SessionList>, ApiError> {
    let mut data = Vec::new();
    for model in query.engines(&app) {
        let engine = model.engine()?;
        let sessions = engine.sessions().list(&tenant_of(engine, &caller)?);
        data.extend(sessions.iter().map(|session| SessionObject::new(session, &model)));
    }
    Ok(Json(SessionList { object: "list", data }))
}

/// `GET /v1/sessions/{id}`
pub(crate) async fn retrieve(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<ModelQuery>,
) -> Result<Json<SessionObject>, ApiError> {
    let (model, _, session) = find(&app, &query, &caller, &id)?;
    Ok(Json(SessionObject::new(&session, &model)))
}

/// `DELETE /v1/sessions/{id}`
pub(crate) async fn remove(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<ModelQuery>,
) -> Result<Json<Deleted>, ApiError> {
    let (model, tenant, _) = find(&app, &query, &caller, &id)?;
    model.engine()?.sessions().remove(&tenant, &id);
    Ok(Json(Deleted::new(id, "session")))
}

/// `POST /v1/sessions/{id}/fork`: a session with the state of another one.
///
/// # Errors
/// 409 if the id is taken, 404 if there is nothing to fork.
pub(crate) async fn fork(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<ModelQuery>,
    crate::body::Json(request): crate::body::Json<ForkRequest>,
) -> Result<Json<SessionObject>, ApiError> {
    let (model, tenant, _) = find(&app, &query, &caller, &id)?;
    let sessions = model.engine()?.sessions();
    if sessions.get(&tenant, &request.id).is_some() {
        return Err(ApiError::conflict("there is a session of this id already").with_param("id"));
    }
    sessions
        .fork(&tenant, &id, &request.id)
        .map_err(|error| ApiError::from(error).renamed(&[("session", "id")]))?;
    let made = sessions.get(&tenant, &request.id);
    let made = made.ok_or_else(|| ApiError::not_found("the session is gone").with_param("id"))?;
    Ok(Json(SessionObject::new(&made, &model)))
}
