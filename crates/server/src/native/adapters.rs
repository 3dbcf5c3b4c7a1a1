//! `/v1/adapters`: adapters of the models in memory, and those of the configured folder.
//!
//! No path of a file comes from a request: files are named by [`AdapterStore`], whose names are
//! one part of a path and which follows no links.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use ruvllm::crates::adapters::{AdapterStore, AdapterVersion, CompactFile, Error, Layout, RegisteredAdapter};
use ruvllm::{Precision, Registry, Tenant, Tier};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Deleted, ModelQuery, blocking};
use crate::api_error::{ApiError, with_sources};
use crate::app::App;
use crate::auth::Caller;
use crate::models::LoadedModel;

/// An adapter of a model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AdapterObject {
    id: String,
    object: &'static str,
    model: String,
    /// `hot`, `warm` or `cold`.
    tier: &'static str,
    /// Largest rank of a site, the sum over its modules; null if the file cannot be read.
    rank: Option<usize>,
    /// Bytes of the factors in F16; null likewise.
    bytes: Option<usize>,
    /// True if all tenants may use it.
    shared: bool,
}

/// The list of adapters.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AdapterList {
    object: &'static str,
    data: Vec<AdapterObject>,
}

/// An adapter to load.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct LoadRequest {
    /// Name that requests use.
    name: String,
    /// Name in the folder of adapters; absent: `name`.
    adapter: Option<String>,
    model: Option<String>,
    /// Replaces an adapter of this name; requests that run with it finish on it.
    #[serde(default)]
    replace: bool,
}

impl AdapterObject {
    /// Reads the header of the file.
    fn new(version: &AdapterVersion, tier: Tier, model: &LoadedModel) -> Self {
        let file = CompactFile::open(version.path()).ok();
        let layout = file.as_ref().map(CompactFile::layout);
        let rank_of = |layout: &Arc<Layout>| layout.sites().iter().map(|site| site.factors.rank()).max();
        Self {
            id: version.name().to_owned(),
            object: "adapter",
            model: model.name().to_string(),
            tier: match tier {
                Tier::Hot => "hot",
                Tier::Warm => "warm",
                Tier::Cold => "cold",
            },
            rank: layout.and_then(rank_of),
            bytes: layout.map(|layout| layout.bytes()),
            shared: version.tenant().path().is_empty(),
        }
    }
}

/// Adapters that requests of a tenant may name: its own, and those of all tenants.
fn visible(registry: &Registry, tenant: &Tenant) -> Vec<RegisteredAdapter> {
    let mut adapters = registry.list(tenant);
    if !tenant.path().is_empty() {
        let is_hidden = |shared: &RegisteredAdapter| {
            adapters.iter().any(|own| own.version.name() == shared.version.name())
        };
        let shared: Vec<_> =
            registry.list(&Tenant::root()).into_iter().filter(|shared| !is_hidden(shared)).collect();
        adapters.extend(shared);
    }
    adapters
}

/// `GET /v1/adapters`
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<ModelQuery>,
) -> Result<Json<AdapterList>, ApiError> {
    let data = blocking(move || {
        let mut data = Vec::new();
        for model in query.with_adapters(&app) {
            let adapters = visible(model.adapters()?, &model.tenant_of(&caller)?);
            data.extend(adapters.iter().map(|found| AdapterObject::new(&found.version, found.tier, &model)));
        }
        Ok(data)
    });
    Ok(Json(AdapterList { object: "list", data: data.await? }))
}

/// `POST /v1/adapters`: registers an adapter of the configured folder for the caller's tenant.
///
/// # Errors
/// 403 without a folder, 404 for an adapter that is not in it, 409 for a name that is taken, 400
/// for an adapter of another model.
pub(crate) async fn load(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    crate::body::Json(request): crate::body::Json<LoadRequest>,
) -> Result<Json<AdapterObject>, ApiError> {
    let Some(store) = app.adapter_store().cloned() else {
        let message = "this server loads no adapters by request; set folders.adapters in its configuration";
        return Err(ApiError::forbidden(message));
    };
    let model = app.models.choose(request.model.as_deref()).await?.model;
    let object = blocking(move || register(&store, &model, &caller, &request));
    object.await.map(Json)
}

fn register(
    store: &AdapterStore,
    model: &LoadedModel,
    caller: &Caller,
    request: &LoadRequest,
) -> Result<AdapterObject, ApiError> {
    let LoadRequest { name, adapter, replace, .. } = request;
    let registry = model.adapters()?;
    let tenant = model.tenant_of(caller)?;
    let (param, stored) = adapter.as_ref().map_or(("name", name), |adapter| ("adapter", adapter));
    let stored = store.get(stored).map_err(|error| refused(&error, param))?;
    let path = stored.file.path();
    let registered = match replace {
        true => registry.replace(&tenant, name, path, Precision::default()),
        false => registry.register(&tenant, name, path, Precision::default()),
    };
    let version = registered.map_err(|error| refused(&error, "name"))?;
    tracing::info!(adapter = %name, tenant = tenant.path(), "registered an adapter");
    Ok(AdapterObject::new(&version, registry.residency().tier(&version), model))
}

/// `DELETE /v1/adapters/{name}`: removes an adapter that the caller's tenant has registered.
/// Requests that run with it finish on it.
///
/// # Errors
/// 404 if the tenant has none of this name in a model in memory.
pub(crate) async fn unload(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    Query(query): Query<ModelQuery>,
) -> Result<Json<Deleted>, ApiError> {
    let mut has_removed = false;
    for model in query.with_adapters(&app) {
        let tenant = model.tenant_of(&caller)?;
        has_removed |= model.adapters()?.unload(&tenant, &name).is_ok();
    }
    match has_removed {
        true => Ok(Json(Deleted::new(name, "adapter"))),
        false => Err(ApiError::not_found("there is no such adapter").with_param("name")),
    }
}

/// An error without the server's paths; these are in the log.
fn refused(error: &Error, param: &str) -> ApiError {
    let refused = match error {
        Error::UnknownAdapter { .. } => ApiError::not_found(error.to_string()),
        Error::NameTaken { .. } => ApiError::conflict(error.to_string()),
        Error::Name { .. } | Error::Quota { .. } => ApiError::invalid(error.to_string()),
        Error::BaseModel { .. } => ApiError::invalid("the adapter is for another model"),
        _ => {
            tracing::warn!(error = with_sources(error), "cannot load an adapter");
            ApiError::invalid("the adapter cannot be used; the server's log has the reason")
        }
    };
    refused.with_param(param)
}
