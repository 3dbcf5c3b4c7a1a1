//! `/v1/sona/routers`: what feedback of the caller's tenant has taught the routers (ADR-0094).

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use serde::Serialize;
use utoipa::ToSchema;

use super::blocking;
use super::learning::{require_learning, unusable};
use crate::api_error::ApiError;
use crate::app::App;
use crate::auth::Caller;
use crate::routing::{ModelRouter, RouterFigures};

/// An arm in numbers that were counted.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ArmObject {
    name: String,
    model: String,
    adapter: Option<String>,
    kv: Option<String>,
    /// Requests of the tenant that it was chosen for since feedback teaches the router.
    decisions: u64,
    /// Number of these whose outcome is known.
    rewards: u64,
    /// Mean of their rewards, each 0 to 1; null without one.
    mean_reward: Option<f64>,
}

/// A router.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RouterObject {
    id: String,
    object: &'static str,
    /// Arm that answers where no rule holds and nothing is learned.
    default: String,
    arms: Vec<ArmObject>,
    /// Prompts for which a single outcome is remembered.
    policies: usize,
}

/// The list of routers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RouterList {
    object: &'static str,
    data: Vec<RouterObject>,
}

impl RouterObject {
    fn new(router: &ModelRouter, tenant: &str) -> Result<Self, ApiError> {
        let RouterFigures { arms, default, policies } = router.figures(tenant).map_err(unusable)?;
        let arms = arms.into_iter().map(|(arm, figures)| ArmObject {
            name: arm.name.to_string(),
            model: arm.model,
            adapter: arm.adapter,
            kv: arm.kv.map(|kv| kv.to_string()),
            decisions: figures.decisions,
            rewards: figures.rewards,
            mean_reward: figures.mean_reward(),
        });
        let (id, default) = (router.name().to_string(), default.to_string());
        Ok(Self { id, object: "router", default, arms: arms.collect(), policies })
    }
}

/// `GET /v1/sona/routers`
///
/// # Errors
/// 403 for a tenant without learning.
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<RouterList>, ApiError> {
    require_learning(&caller)?;
    blocking(move || {
        let data = app.routers.all().iter().map(|router| RouterObject::new(router, &caller.tenant));
        Ok(Json(RouterList { object: "list", data: data.collect::<Result<_, _>>()? }))
    })
    .await
}
