//! `POST /v1/feedback`: a rating or a correction of an answer, from which an adapter learns.

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::extract::State;
use ruvllm::crates::sona::Rating;
use ruvllm::crates::sona::instant::Lesson;
use ruvllm::crates::sona::online::{Taught, TaughtText};
use ruvllm::crates::sona::trajectory::Feedback;
use ruvllm::crates::text::tokenizer::EncodeOptions;
use ruvllm::{Engine, OnlineAdapter, Prompt, TokenId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::blocking;
use super::learning::{learning_model, learning_of, no_request, refused, unusable};
use crate::api_error::ApiError;
use crate::app::App;
use crate::auth::Caller;
use crate::body::Json;
use crate::learning::{ModelLearning, choice_id, now_ms};
use crate::models::LoadedModel;
use crate::openai::chat::{ChatMessage, messages_of};
use crate::routing::ArmReward;
use crate::tenant::tenant_of;

/// Adapter that is taught if the feedback names none.
const ADAPTER: &str = "learned";

/// Feedback on an answer: of a request that the server has recorded, or one that is given here with
/// its prompt.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct FeedbackRequest {
    model: Option<String>,
    /// Adapter that learns; absent: `learned`. Requests name it to use it.
    adapter: Option<String>,
    /// Header `x-request-id` of the reply that the feedback is about.
    request_id: Option<String>,
    /// Choice of that reply, from 0 on.
    choice: Option<usize>,
    /// Prompt of the answer, in place of `request_id`.
    prompt: Option<String>,
    /// Conversation before the answer, in place of `request_id` and `prompt`.
    messages: Option<Vec<ChatMessage>>,
    tools: Option<Vec<Value>>,
    /// The answer that is rated; only with `prompt` or `messages`.
    response: Option<String>,
    /// Rating of the answer, -1 to 1.
    rating: Option<f32>,
    /// True: as rating 1, false: as rating -1; only with `request_id`.
    accepted: Option<bool>,
    /// The right answer.
    correction: Option<String>,
}

/// Fate of the feedback.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct FeedbackObject {
    object: &'static str,
    model: String,
    adapter: String,
    /// `learned`; `outlier`: the correction is so improbable that it is taken for noise;
    /// `quarantined`: the adapter has done harm and learns nothing until it is released.
    result: &'static str,
    /// Reward of the arm that a router had chosen; null without one.
    router: Option<RouterReward>,
    /// Position of the lesson in the log; null if nothing was learned.
    lesson: Option<u64>,
    /// Mean log-probability of the answer's tokens before and after the lesson, in nats.
    log_probability_before: Option<f64>,
    log_probability_after: Option<f64>,
    /// Mean divergence from the model without adapters at these tokens, in nats.
    divergence: Option<f64>,
}

/// Reward of an arm.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RouterReward {
    name: String,
    arm: String,
    /// 0 to 1, by outcome and time of the answer.
    reward: f64,
}

/// `POST /v1/feedback`
///
/// # Errors
/// 403 for a tenant without learning, 404 for a request that is not recorded, 400 for feedback that
/// says nothing or too much, 429 beyond the lessons per minute, 503 for a store that cannot be
/// used.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<FeedbackRequest>,
) -> Result<axum::Json<FeedbackObject>, ApiError> {
    let routed = match request.request_id.clone() {
        Some(id) => {
            let (routers, tenant) = (Arc::clone(&app.routers), Arc::clone(&caller.tenant));
            blocking(move || Ok(routers.answered(&tenant, &id))).await?
        }
        None => None,
    };
    let name = request.model.as_deref();
    // Clients name the router, the model that has answered, or none.
    let is_routers = |name: &str| app.routers.find(name).is_some();
    let name = match &routed {
        Some((_, arm)) if name.is_none_or(is_routers) => Some(arm.model.as_str()),
        _ => name,
    };
    let model = learning_model(&app, &caller, name).await?;
    let routed = routed.filter(|(_, arm)| *arm.model == **model.name());
    let most = app.limits().items;
    let taught = match caller.limits.admit_lesson(Instant::now()) {
        Err(limited) => Err(limited.into()),
        Ok(()) => {
            let (model, metrics) = (Arc::clone(&model), Arc::clone(&app.metrics));
            blocking(move || {
                let mut object = teach(&model, &caller, &request, most)?;
                if let (Some((router, _)), Some(id)) = (routed, &request.request_id) {
                    let reward = router.learn(&caller.tenant, id, request.outcome());
                    let reward = reward.map_err(|error| ApiError::internal(&error))?;
                    object.router = reward.map(|ArmReward { router, arm, reward }| {
                        metrics.count_reward(&router, &arm, reward);
                        RouterReward { name: router.to_string(), arm: arm.to_string(), reward }
                    });
                }
                Ok(object)
            })
            .await
        }
    };
    if let Some(learning) = model.learning() {
        learning.counters().count(taught.as_ref().map_or("refused", |taught| taught.result));
    }
    taught.map(axum::Json)
}

/// Reads an adapter for metrics beside the reply, since the next lesson may hold it for seconds.
fn observe(model: &Arc<LoadedModel>, owner: &str, name: &str, adapter: Arc<OnlineAdapter>) {
    let (model, owner, name) = (Arc::clone(model), owner.to_owned(), name.to_owned());
    tokio::task::spawn_blocking(move || {
        if let Some(learning) = model.learning() {
            learning.observe(&owner, &name, &adapter);
        }
    });
}

fn teach(
    model: &Arc<LoadedModel>,
    caller: &Caller,
    request: &FeedbackRequest,
    most: usize,
) -> Result<FeedbackObject, ApiError> {
    let (engine, learning) = (model.engine()?, learning_of(model)?);
    let tenant = tenant_of(engine, caller)?;
    let name = request.adapter.as_deref().unwrap_or(ADAPTER);
    let lesson = request.lesson(engine, most)?;
    let owner = OnlineAdapter::owner(&tenant);
    let adapter = || learning.adapter(engine, &tenant, name).map_err(refused);
    let (taught, adapter) = match (&request.request_id, lesson) {
        (None, Some(text)) => {
            let adapter = adapter()?;
            (adapter.teach(engine, &text, &[]).map_err(refused)?, adapter)
        }
        (Some(id), None) => {
            let id = choice_id(id, request.choice.unwrap_or(0));
            let feedback = request.feedback(engine, learning, owner, &id)?;
            let stored = learning.recorder().feedback(owner, &id, feedback);
            let stored = stored.and_then(|number| learning.store().trajectory(owner, number));
            let stored = stored.map_err(unusable)?.ok_or_else(no_request)?;
            let adapter = adapter()?;
            let taught = adapter.teach_trajectory(engine, &stored).map_err(refused)?;
            (taught.ok_or_else(says_nothing)?, adapter)
        }
        _ => return Err(ApiError::invalid("send either request_id, or prompt or messages")),
    };
    let is_quarantined = matches!(taught, Taught::Quarantined);
    learning.counters().set_adapter(owner, name, is_quarantined, None);
    observe(model, owner, name, adapter);
    let object = FeedbackObject {
        object: "feedback",
        model: model.name().to_string(),
        adapter: name.to_owned(),
        ..FeedbackObject::default()
    };
    Ok(match taught {
        Taught::Learned { sequence, update, .. } => FeedbackObject {
            result: "learned",
            lesson: Some(sequence),
            log_probability_before: Some(update.log_probability_before),
            log_probability_after: Some(update.log_probability_after),
            divergence: Some(update.divergence),
            ..object
        },
        Taught::Outlier { log_probability } => {
            FeedbackObject { result: "outlier", log_probability_before: Some(log_probability), ..object }
        }
        Taught::Quarantined => FeedbackObject { result: "quarantined", ..object },
    })
}

impl FeedbackRequest {
    /// Outcome of the answer for a router, -1 to 1: one that had to be corrected was wrong.
    fn outcome(&self) -> f64 {
        let accepted = self.accepted.map(|accepted| if accepted { 1.0 } else { -1.0 });
        self.rating.map(f64::from).or(accepted).unwrap_or(-1.0)
    }

    fn rating(&self) -> Result<Option<Rating>, ApiError> {
        let rating = self.rating.map(Rating::new).transpose();
        rating.map_err(|error| ApiError::invalid_param("rating", error.to_string()))
    }

    /// The lesson of a prompt or conversation that is given; `None` if there is none.
    fn lesson(&self, engine: &Engine, most: usize) -> Result<Option<TaughtText>, ApiError> {
        let prompt = match (&self.prompt, &self.messages) {
            (None, None) => return Ok(None),
            (Some(prompt), None) => Prompt::Text(prompt.clone()),
            (None, Some(messages)) => {
                let messages = messages_of(messages, most)?;
                Prompt::Chat { messages, tools: self.tools.clone().map(Value::Array) }
            }
            (Some(_), Some(_)) => return Err(ApiError::invalid("send either prompt or messages")),
        };
        let (answer, param, lesson) = match (&self.correction, &self.response, self.rating()?) {
            (Some(correction), None, None) => (correction, "correction", Lesson::Corrected),
            (None, Some(response), Some(rating)) => (response, "response", Lesson::Rated(rating)),
            _ => return Err(says_nothing()),
        };
        let mut response = encode(engine, answer, param)?;
        if self.messages.is_some() {
            // The end of an answer is part of it.
            response.extend(engine.tokenizer().eos());
        }
        Ok(Some(TaughtText { prompt: engine.encode_prompt(&prompt)?, response, lesson }))
    }

    /// Feedback on the recorded request `id`.
    fn feedback(
        &self,
        engine: &Engine,
        learning: &ModelLearning,
        owner: &str,
        id: &str,
    ) -> Result<Feedback, ApiError> {
        if self.response.is_some() {
            return Err(ApiError::invalid_param("response", "the server knows the answer of a request_id"));
        }
        let rating = self.rating()?;
        let ways = [rating.is_some(), self.accepted.is_some(), self.correction.is_some()];
        if ways.iter().filter(|given| **given).count() != 1 {
            return Err(says_nothing());
        }
        let correction = match &self.correction {
            None => None,
            Some(correction) => {
                let mut tokens = encode(engine, correction, "correction")?;
                // Where the model had ended its answer, the right one ends too.
                learning.recorder().flush().map_err(unusable)?;
                let stored = learning.store().find(owner, id);
                let stored = stored.and_then(|number| learning.store().trajectory(owner, number));
                let stored = stored.map_err(unusable)?.ok_or_else(no_request)?;
                let last = stored.trajectory.response_tokens.last();
                let ends = |token: &&TokenId| engine.tokenizer().is_end_of_generation(**token);
                tokens.extend(last.filter(ends));
                Some(tokens)
            }
        };
        Ok(Feedback {
            rating,
            correction,
            accepted: self.accepted,
            created_ms: now_ms(),
            ..Feedback::default()
        })
    }
}

fn encode(engine: &Engine, text: &str, param: &'static str) -> Result<Vec<TokenId>, ApiError> {
    if text.is_empty() {
        return Err(ApiError::invalid_param(param, "it is empty; there is nothing to learn"));
    }
    let options = EncodeOptions { add_special: false, parse_special: false };
    let tokens = engine.tokenizer().encode(text, options);
    tokens.map_err(|error| ApiError::invalid_param(param, error.to_string()))
}

fn says_nothing() -> ApiError {
    ApiError::invalid("send one of: correction; rating, of a response; with request_id also accepted")
}
