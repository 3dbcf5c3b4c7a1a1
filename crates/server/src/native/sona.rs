//! `/v1/sona`: what the adapters of the caller's tenant have learned.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use ruvllm::crates::sona::online::{OnlineStatus, Standing};
use ruvllm::crates::sona::store::ForgetScope;
use ruvllm::{Engine, OnlineAdapter, Tenant};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::learning::{learning_model, learning_of, refused, unusable};
use super::{ModelQuery, blocking};
use crate::api_error::ApiError;
use crate::app::App;
use crate::auth::Caller;
use crate::hex::hex;
use crate::learning::{ModelLearning, choice_id};
use crate::models::LoadedModel;
use crate::tenant::tenant_of;

/// Adapter that learns, in numbers that were counted or measured.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LearnedObject {
    id: String,
    object: &'static str,
    model: String,
    /// `learning`, or `quarantined`: it has done harm, is back at its last good state, and learns
    /// nothing until it is released.
    standing: &'static str,
    /// Lessons in the log that are in effect.
    lessons: u64,
    /// Steps of updates applied.
    updates: u64,
    /// Running mean of the ratings.
    baseline: f32,
    /// Bounds of the norms of the updates of the hidden state and of the logits.
    norms: [f32; 2],
    /// Version of the snapshot that the state goes back to.
    snapshot: Option<u64>,
    /// Rise of the mean loss at held-out ordinary text when it was last judged, in nats.
    harm: Option<f64>,
    /// Fault of the latest snapshot; it is tried again with the next lesson.
    fault: Option<String>,
    /// Lessons that no consolidation has considered yet.
    new_lessons: u64,
    consolidations: Consolidations,
    /// SHA-256 of the state.
    digest: String,
}

/// Consolidations of an adapter by their result at held-out text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Consolidations {
    accepted: u64,
    rejected: u64,
}

/// The list of learned adapters.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LearnedList {
    object: &'static str,
    data: Vec<LearnedObject>,
}

/// Result of a replay.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReplayObject {
    object: &'static str,
    /// Lessons learned again.
    lessons: u64,
    /// SHA-256 of the state that the log gives.
    digest: String,
    /// True if the current state has the same bits.
    equal: bool,
}

/// Data to forget: one of the fields but `model`.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct ForgetRequest {
    model: Option<String>,
    /// Everything of the tenant.
    all: Option<bool>,
    /// Requests and feedback from this time on, in seconds since the Unix epoch.
    since: Option<u64>,
    /// One request, and what was learned from it.
    request_id: Option<String>,
    /// Choice of that request.
    choice: Option<usize>,
}

/// Data that was forgotten.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ForgottenObject {
    object: &'static str,
    /// Requests, with their feedback.
    requests: usize,
    /// Entries of the log: lessons, quarantines, ordinary text.
    entries: u64,
    /// Lessons of the bank, where everything is forgotten.
    items: usize,
    /// Adapters whose state was built again without them.
    rebuilt: Vec<String>,
}

/// Runs with the learning of a model, in a thread where files may be read.
async fn with_learning<T: Send + 'static>(
    app: &App,
    caller: Caller,
    model: Option<&str>,
    run: impl FnOnce(&LoadedModel, &Engine, &ModelLearning, &Tenant) -> Result<T, ApiError> + Send + 'static,
) -> Result<Json<T>, ApiError> {
    let model = learning_model(app, &caller, model).await?;
    let run = move || {
        let (engine, learning) = (model.engine()?, learning_of(&model)?);
        run(&model, engine, learning, &tenant_of(engine, &caller)?)
    };
    blocking(run).await.map(Json)
}

/// A request about one adapter.
type OfAdapter = (State<Arc<App>>, Extension<Caller>, Path<String>, Query<ModelQuery>);

/// As [`with_learning`], with the adapter that the path names.
///
/// # Errors
/// 404 if the tenant has none of this name.
async fn with_adapter<T: Send + 'static>(
    (State(app), Extension(caller), Path(name), Query(query)): OfAdapter,
    run: impl FnOnce(&str, &LoadedModel, &Engine, &OnlineAdapter) -> Result<T, ApiError> + Send + 'static,
) -> Result<Json<T>, ApiError> {
    with_learning(&app, caller, query.model.as_deref(), move |model, engine, learning, tenant| {
        let adapters = learning.adapters(engine, tenant).map_err(refused)?;
        let absent = || ApiError::not_found("no such adapter learns").with_param("name");
        let adapter = adapters.get(&name).ok_or_else(absent)?;
        let result = run(&name, model, engine, adapter);
        learning.observe(OnlineAdapter::owner(tenant), &name, adapter);
        result
    })
    .await
}

impl LearnedObject {
    fn new(name: &str, model: &LoadedModel, adapter: &OnlineAdapter) -> Result<Self, ApiError> {
        let OnlineStatus {
            standing,
            lessons,
            updates,
            baseline,
            norms,
            snapshot,
            harm,
            fault,
            digest,
            new_lessons,
            consolidations,
            ..
        } = adapter.status().map_err(refused)?;
        Ok(Self {
            id: name.to_owned(),
            object: "learned_adapter",
            model: model.name().to_string(),
            standing: match standing {
                Standing::Learning => "learning",
                Standing::Quarantined { .. } => "quarantined",
            },
            lessons,
            updates,
            baseline,
            norms,
            snapshot: snapshot.map(|info| info.version),
            harm,
            fault,
            new_lessons,
            consolidations: Consolidations { accepted: consolidations[0], rejected: consolidations[1] },
            digest: hex(&digest),
        })
    }
}

/// `GET /v1/sona/adapters`
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<ModelQuery>,
) -> Result<Json<LearnedList>, ApiError> {
    with_learning(&app, caller, query.model.as_deref(), |model, engine, learning, tenant| {
        let adapters = learning.adapters(engine, tenant).map_err(refused)?;
        let data = adapters.iter().map(|(name, adapter)| LearnedObject::new(name, model, adapter));
        Ok(LearnedList { object: "list", data: data.collect::<Result<_, _>>()? })
    })
    .await
}

/// `GET /v1/sona/adapters/{name}`
pub(crate) async fn retrieve(of: OfAdapter) -> Result<Json<LearnedObject>, ApiError> {
    with_adapter(of, |name, model, _, adapter| LearnedObject::new(name, model, adapter)).await
}

/// `POST /v1/sona/adapters/{name}/release`: ends a quarantine.
pub(crate) async fn release(of: OfAdapter) -> Result<Json<LearnedObject>, ApiError> {
    with_adapter(of, |name, model, _, adapter| {
        adapter.release().map_err(refused)?;
        LearnedObject::new(name, model, adapter)
    })
    .await
}

/// `POST /v1/sona/adapters/{name}/replay`: learns the whole log again and compares.
pub(crate) async fn replay(of: OfAdapter) -> Result<Json<ReplayObject>, ApiError> {
    with_adapter(of, |_, _, engine, adapter| {
        let replay = adapter.replay(engine).map_err(refused)?;
        let (lessons, digest, equal) = (replay.lessons, hex(&replay.digest), replay.is_equal);
        Ok(ReplayObject { object: "replay", lessons, digest, equal })
    })
    .await
}

/// `POST /v1/sona/forget`: removes data of the tenant and its influence from all its adapters.
///
/// # Errors
/// 400 unless one thing is named, 404 for a request that is not recorded.
pub(crate) async fn forget(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    crate::body::Json(request): crate::body::Json<ForgetRequest>,
) -> Result<Json<ForgottenObject>, ApiError> {
    let ForgetRequest { model, all, since, request_id, choice } = request;
    let (routers, name) = (Arc::clone(&app.routers), Arc::clone(&caller.tenant));
    with_learning(&app, caller, model.as_deref(), move |model, engine, learning, tenant| {
        let owner = OnlineAdapter::owner(tenant);
        learning.recorder().flush().map_err(unusable)?;
        let scope = match (all, since, request_id) {
            (Some(true), None, None) => ForgetScope::All,
            (None, Some(since), None) => ForgetScope::Since(since.saturating_mul(1000)),
            (None, None, Some(id)) => {
                let id = choice_id(&id, choice.unwrap_or(0));
                ForgetScope::Trajectory(learning.store().find(owner, &id).map_err(unusable)?)
            }
            _ => return Err(ApiError::invalid("send one of: all: true, since, request_id")),
        };
        let adapters = learning.adapters(engine, tenant).map_err(refused)?;
        let forgotten = learning.store().forget(owner, scope).map_err(unusable)?;
        // The store has forgotten; an adapter that cannot be built again is logged with its error.
        adapters.values().try_for_each(|adapter| adapter.reload(engine)).map_err(refused)?;
        adapters.iter().for_each(|(name, adapter)| learning.observe(owner, name, adapter));
        if scope == ForgetScope::All {
            // Rewards of single requests cannot be taken out of their sums.
            routers.forget(&name).map_err(unusable)?;
        }
        let items = match (model.memory(), scope) {
            (Some(memory), ForgetScope::All) => memory.forget(engine, owner).map_err(refused)?,
            _ => 0,
        };
        Ok(ForgottenObject {
            object: "forgotten",
            requests: forgotten.trajectories.len(),
            entries: forgotten.events,
            items,
            rebuilt: forgotten.rebuild.into_iter().map(|rebuild| rebuild.adapter).collect(),
        })
    })
    .await
}
