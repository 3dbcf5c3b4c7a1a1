//! `/v1/sona/bank`: lessons of the caller's tenant that its prompts may get (ADR-0092).

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use ruvllm::crates::sona::bank::{
    Counts, DistillConfig, Item, ItemText, NewItem, Receipt, RetrievalLimits, Uplift, Verdict,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Deleted, ModelQuery};
use crate::api_error::ApiError;
use crate::app::App;
use crate::auth::Caller;
use crate::learning::recall::{MOST_ITEMS, embed, refused, similarity_of, with_bank};
use crate::models::LoadedModel;
use crate::openai::{arm_name, now};
use crate::request_id::random_id;

/// Items that a search finds unless it says a number.
const FOUND_ITEMS: usize = 5;

/// Quality of an item unless its request says one.
const QUALITY: f32 = 0.5;

/// Outcomes of requests.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OutcomeCounts {
    uses: u64,
    wins: u64,
    losses: u64,
}

/// Success rate with memory minus that without, with its 95 % interval.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UpliftObject {
    difference: f64,
    low: f64,
    high: f64,
}

/// A lesson.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BankItem {
    id: u64,
    object: &'static str,
    title: String,
    description: String,
    body: String,
    /// `success`, `failure` or `partial`: outcome of the task that it is from.
    verdict: &'static str,
    quality: f32,
    /// Times that it was added, near-duplicates included.
    sources: u64,
    /// Seconds since the Unix epoch.
    created: u64,
    /// Time after which no prompt gets it.
    expires: Option<u64>,
    /// Outcomes of requests that were given the item.
    with: OutcomeCounts,
    /// Outcomes of requests that it was withheld from.
    without: OutcomeCounts,
    /// Absent until both have an outcome.
    uplift: Option<UpliftObject>,
}

/// The items of the tenant, and the outcomes of its requests for which an item matched.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BankList {
    object: &'static str,
    model: String,
    data: Vec<BankItem>,
    with: OutcomeCounts,
    without: OutcomeCounts,
    uplift: Option<UpliftObject>,
}

/// A lesson to add.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct AddRequest {
    model: Option<String>,
    /// Short name, at most 120 characters.
    title: String,
    /// Situation in which the lesson applies, at most 300 characters.
    description: String,
    /// Advice in one to three sentences, at most 1200 characters.
    body: String,
    /// Task that the lesson is from, which later tasks are compared with; absent: the description.
    task: Option<String>,
    /// Outcome of that task: `success`, `failure` or `partial`; absent: `success`.
    verdict: Option<String>,
    /// 0 to 1; absent: 0.5.
    quality: Option<f32>,
}

/// A lesson that was added.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AddedObject {
    id: u64,
    object: &'static str,
    model: String,
    /// True if the bank had nearly this text: the item of this id now stands for both.
    merged: bool,
}

/// A text to find lessons for.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct SearchRequest {
    model: Option<String>,
    text: String,
    /// Largest number of items, 1 to 16; absent: 5.
    items: Option<usize>,
    /// Smallest similarity, 0 to 1; absent: that of the tenant's prompts.
    similarity: Option<f32>,
}

/// Lessons that were found, best first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FoundList {
    object: &'static str,
    data: Vec<FoundItem>,
}

/// A lesson with its similarity.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FoundItem {
    /// Similarity, corrected by outcomes and age.
    score: f32,
    /// Cosine similarity of the text and the item's task.
    similarity: f32,
    item: BankItem,
}

/// Outcome of a request that asked for lessons.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct OutcomeRequest {
    model: Option<String>,
    /// `memory.request_id` of its reply.
    request_id: String,
    /// `memory.items` of its reply.
    items: Vec<u64>,
    /// `success`, `failure` or `partial`.
    verdict: String,
}

/// An outcome that was counted.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OutcomeObject {
    object: &'static str,
    request_id: String,
    /// Arm that it counts for: `memory` or `control`.
    arm: &'static str,
    /// False if the outcome of this request was known; nothing has changed then.
    recorded: bool,
}

/// Items that were removed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClearedObject {
    object: &'static str,
    /// Their number.
    items: usize,
}

impl From<Counts> for OutcomeCounts {
    fn from(counts: Counts) -> Self {
        Self { uses: counts.uses, wins: counts.wins, losses: counts.losses }
    }
}

impl From<Uplift> for UpliftObject {
    fn from(uplift: Uplift) -> Self {
        Self { difference: uplift.difference, low: uplift.low, high: uplift.high }
    }
}

impl From<&Item> for BankItem {
    fn from(item: &Item) -> Self {
        Self {
            id: item.id,
            object: "bank_item",
            title: item.text.title().to_owned(),
            description: item.text.description().to_owned(),
            body: item.text.body().to_owned(),
            verdict: match item.verdict {
                Verdict::Success => "success",
                Verdict::Failure => "failure",
                Verdict::Partial | Verdict::Unknown => "partial",
            },
            quality: item.quality,
            sources: item.sources,
            created: item.created,
            expires: item.expires,
            with: item.with.into(),
            without: item.without.into(),
            uplift: item.uplift().map(Into::into),
        }
    }
}

fn verdict(text: &str) -> Result<Verdict, ApiError> {
    match text {
        "success" => Ok(Verdict::Success),
        "failure" => Ok(Verdict::Failure),
        "partial" => Ok(Verdict::Partial),
        other => {
            let message = format!("verdict is {other:?}, expected success, failure or partial");
            Err(ApiError::invalid_param("verdict", message))
        }
    }
}

/// The model of a request, for a tenant that has memory.
///
/// # Errors
/// 403 for a tenant that has none; errors of the choice.
async fn model_of(app: &App, caller: &Caller, name: Option<&str>) -> Result<Arc<LoadedModel>, ApiError> {
    similarity_of(caller)?;
    let model = app.models.choose(name).await?.model;
    model.engine()?;
    Ok(model)
}

/// `GET /v1/sona/bank`
///
/// # Errors
/// 403 for a tenant without memory, 503 for a bank that cannot be used.
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<ModelQuery>,
) -> Result<Json<BankList>, ApiError> {
    let model = model_of(&app, &caller, query.model.as_deref()).await?;
    let name = model.name().to_string();
    let list = with_bank(&model, &caller, move |bank, tenant| {
        let items = bank.items(tenant).map_err(refused)?;
        let (with, without) = bank.outcomes(tenant).map_err(refused)?;
        Ok(BankList {
            object: "list",
            model: name,
            data: items.iter().map(BankItem::from).collect(),
            with: with.into(),
            without: without.into(),
            uplift: bank.uplift(tenant).map_err(refused)?.map(Into::into),
        })
    });
    list.await.map(Json)
}

/// `POST /v1/sona/bank`: adds a lesson. Above 1,000 items the bank is distilled first.
///
/// # Errors
/// 400 for texts that are refused, 429 beyond the lessons per minute; as [`list`].
pub(crate) async fn add(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    crate::body::Json(request): crate::body::Json<AddRequest>,
) -> Result<Json<AddedObject>, ApiError> {
    let model = model_of(&app, &caller, request.model.as_deref()).await?;
    let AddRequest { title, description, body, .. } = &request;
    let text = ItemText::new(title, description, body).map_err(refused)?;
    let verdict = request.verdict.as_deref().map_or(Ok(Verdict::Success), verdict)?;
    let quality = request.quality.unwrap_or(QUALITY);
    if !(0.0..=1.0).contains(&quality) {
        return Err(ApiError::invalid_param("quality", format!("quality is {quality}, expected 0 to 1")));
    }
    let task = request.task.as_deref().unwrap_or(text.description());
    if task.trim().is_empty() {
        return Err(ApiError::invalid_param("task", "it is empty; leave it out for the description"));
    }
    caller.limits.admit_lesson(Instant::now())?;
    let [query, content] = embed(&model, &caller, [task, &text.joined()]).await?;
    let item = NewItem { text, query, content, verdict, quality, expires: None };
    let name = model.name().to_string();
    let added = with_bank(&model, &caller, move |bank, tenant| {
        let most = DistillConfig::default().max_items;
        if bank.items(tenant).map_err(refused)?.len() >= most {
            let distilled = DistillConfig { max_items: most - 1, ..DistillConfig::default() };
            bank.distill(tenant, &distilled, now()).map_err(refused)?;
        }
        // Each call is a trajectory of its own: a lesson by hand has none.
        let learned = bank.learn(tenant, &random_id("by-hand-"), &[item], now()).map_err(refused)?;
        let merged = learned.added.is_empty();
        let id = learned.added.first().or(learned.merged.first()).copied();
        let lost = || ApiError::internal(&std::io::Error::other("a lesson was neither added nor merged"));
        Ok(AddedObject { id: id.ok_or_else(lost)?, object: "bank_item", model: name, merged })
    });
    added.await.map(Json)
}

/// `DELETE /v1/sona/bank/{id}`
///
/// # Errors
/// 404 if the tenant has no such item; as [`list`].
pub(crate) async fn remove(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<ModelQuery>,
) -> Result<Json<Deleted>, ApiError> {
    let model = model_of(&app, &caller, query.model.as_deref()).await?;
    let absent = || ApiError::not_found(format!("the bank has no item {id:?}")).with_param("id");
    let number: u64 = id.parse().map_err(|_| absent())?;
    with_bank(&model, &caller, move |bank, tenant| bank.remove(tenant, number).map_err(refused)).await?;
    Ok(Json(Deleted::new(id, "bank_item")))
}

/// `DELETE /v1/sona/bank`: removes all items and counts of the tenant.
///
/// # Errors
/// As [`list`].
pub(crate) async fn clear(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<ModelQuery>,
) -> Result<Json<ClearedObject>, ApiError> {
    let model = model_of(&app, &caller, query.model.as_deref()).await?;
    let cleared =
        with_bank(&model, &caller, |bank, tenant| bank.forget_tenant(tenant).map_err(refused)).await?;
    Ok(Json(ClearedObject { object: "cleared", items: cleared }))
}

/// `POST /v1/sona/bank/search`: lessons that prompts of this text may get; counts nothing.
///
/// # Errors
/// 400 for values out of range, 429 beyond the lessons per minute; as [`list`].
pub(crate) async fn search(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    crate::body::Json(request): crate::body::Json<SearchRequest>,
) -> Result<Json<FoundList>, ApiError> {
    let model = model_of(&app, &caller, request.model.as_deref()).await?;
    let max_items = request.items.unwrap_or(FOUND_ITEMS);
    if !(1..=MOST_ITEMS).contains(&max_items) {
        let message = format!("items is {max_items}, expected 1 to {MOST_ITEMS}");
        return Err(ApiError::invalid_param("items", message));
    }
    let min_similarity = request.similarity.map_or_else(|| similarity_of(&caller), Ok)?;
    if !(0.0..=1.0).contains(&min_similarity) {
        let message = format!("similarity is {min_similarity}, expected 0 to 1");
        return Err(ApiError::invalid_param("similarity", message));
    }
    if request.text.trim().is_empty() {
        return Err(ApiError::invalid_param("text", "it is empty; lessons are found by a text"));
    }
    caller.limits.admit_lesson(Instant::now())?;
    let [query] = embed(&model, &caller, [&request.text]).await?;
    let found = with_bank(&model, &caller, move |bank, tenant| {
        let limits = RetrievalLimits { max_items, min_similarity, control_share: 0.0 };
        let found = bank.retrieve_within(tenant, "search", &query, limits, now()).map_err(refused)?;
        let item = |found: &ruvllm::crates::sona::bank::Retrieved| FoundItem {
            score: found.score,
            similarity: found.similarity,
            item: BankItem::from(&found.item),
        };
        Ok(FoundList { object: "list", data: found.items.iter().map(item).collect() })
    });
    found.await.map(Json)
}

/// `POST /v1/sona/bank/outcome`: counts the outcome of a request, once, for its arm.
///
/// The arm follows from tenant and request, so that no request has to be kept for it. Items that
/// the bank does not have any more are passed over.
///
/// # Errors
/// 400 for values out of range, 404 if the tenant has none of the items; as [`list`].
pub(crate) async fn outcome(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    crate::body::Json(request): crate::body::Json<OutcomeRequest>,
) -> Result<Json<OutcomeObject>, ApiError> {
    let model = model_of(&app, &caller, request.model.as_deref()).await?;
    let OutcomeRequest { request_id, mut items, verdict: given, .. } = request;
    let given = verdict(&given)?;
    items.sort_unstable();
    items.dedup();
    if !(1..=MOST_ITEMS).contains(&items.len()) {
        let message = format!("there are {} different items, expected 1 to {MOST_ITEMS}", items.len());
        return Err(ApiError::invalid_param("items", message));
    }
    if !(1..=128).contains(&request_id.len()) {
        let message = format!("it has {} bytes, expected memory.request_id of the reply", request_id.len());
        return Err(ApiError::invalid_param("request_id", message));
    }
    let outcome = with_bank(&model, &caller, move |bank, tenant| {
        let has = |&id: &u64| bank.item(tenant, id).map_err(refused).map(|item| item.is_some());
        if !items.iter().map(has).collect::<Result<Vec<_>, _>>()?.contains(&true) {
            return Err(ApiError::not_found("the bank has none of these items").with_param("items"));
        }
        let arm = bank.arm(tenant, &request_id);
        let receipt = Receipt { tenant: tenant.to_owned(), request: request_id.clone(), arm, items };
        let recorded = bank.record_outcome(&receipt, given, now()).map_err(refused)?;
        Ok(OutcomeObject { object: "outcome", request_id, arm: arm_name(arm), recorded })
    });
    outcome.await.map(Json)
}
