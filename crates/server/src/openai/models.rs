//! `GET /v1/models`, with the fields of OpenAI's clients and of Anthropic's, which ask the same
//! path.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::extract::{Path, State};
use axum::{Extension, Json};
use ruvllm_witness::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::api_error::ApiError;
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::models::Offered;

/// A model, or an adapter under its own name.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelObject {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// `model`: Anthropic's name of `object`.
    #[serde(rename = "type")]
    kind: &'static str,
    display_name: String,
    #[schema(value_type = String)]
    created_at: Timestamp,
    /// Model of an adapter; default model of a router.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    /// True for a model in memory.
    loaded: bool,
    /// Tokens of prompt and output; absent before the model is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    context_length: Option<usize>,
    /// True if feedback of the caller teaches this model; absent otherwise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    feedback: bool,
}

/// The list of models.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelObject>,
    has_more: bool,
    first_id: Option<String>,
    last_id: Option<String>,
}

impl ModelObject {
    fn new(offered: &Offered<'_>, created: u64, teaches: bool) -> Self {
        let backend = offered.loaded.as_ref().and_then(|model| model.backend().ok());
        Self {
            id: offered.name.clone(),
            object: "model",
            created,
            owned_by: "ruvllm",
            kind: "model",
            display_name: offered.name.clone(),
            created_at: (UNIX_EPOCH + Duration::from_secs(created)).into(),
            parent: offered.parent.map(str::to_owned),
            loaded: offered.loaded.is_some(),
            context_length: backend.map(ruvllm::InferenceBackend::context_length),
            // One that is not loaded has not shown a fault of its store.
            feedback: teaches && offered.loaded.as_ref().is_none_or(|model| model.learning().is_some()),
        }
    }
}

/// True if the caller may send feedback, and models learn from it.
fn teaches(app: &App, caller: &Caller) -> bool {
    app.models.learn() && caller.limits.learns() && caller.require(Scope::Learning).is_ok()
}

/// All names of models, adapters and routers.
fn offered(app: &App) -> impl Iterator<Item = Offered<'_>> {
    let routers = app.routers.all().iter().map(|router| {
        let model = &router.default_arm().model;
        let (name, loaded) = (router.name().to_string(), app.models.in_memory(model));
        Offered { name, parent: Some(model), loaded }
    });
    app.models.offered().chain(routers)
}

/// `GET /v1/models`
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Json<ModelList> {
    let (created, teaches) = (app.models.created(), teaches(&app, &caller));
    let object = |offered: Offered<'_>| ModelObject::new(&offered, created, teaches);
    let data: Vec<_> = offered(&app).map(object).collect();
    let id = |object: Option<&ModelObject>| object.map(|object| object.id.clone());
    let (first_id, last_id) = (id(data.first()), id(data.last()));
    Json(ModelList { object: "list", data, has_more: false, first_id, last_id })
}

/// `GET /v1/models/{name}`
pub(crate) async fn retrieve(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<ModelObject>, ApiError> {
    let (created, teaches) = (app.models.created(), teaches(&app, &caller));
    let found = offered(&app).find(|offered| offered.name == name);
    let object = found.map(|offered| ModelObject::new(&offered, created, teaches));
    object.map(Json).ok_or_else(|| {
        let names: Vec<_> = offered(&app).map(|offered| offered.name).collect();
        ApiError::no_model(&name, &names.join(", "))
    })
}
