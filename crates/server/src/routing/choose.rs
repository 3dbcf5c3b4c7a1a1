//! Choice of the model of a request: by its name, or by the router that the name means.

use std::sync::Arc;
use std::time::Instant;

use ruvllm::crates::sona::Error as SonaError;
use ruvllm::crates::sona::routing::{Prompt as RoutedPrompt, Reason};
use ruvllm::{EmbeddingRequest, GenerateRequest, Prompt};

use super::{Arm, ModelRouter};
use crate::api_error::ApiError;
use crate::app::App;
use crate::auth::Caller;
use crate::generation::{Routed, Ticket};
use crate::hex::hex;
use crate::models::{Chosen, LoadedModel, ModelSet};
use crate::openai::{Target, text_of};

/// Tokens of a prompt that its embedding is computed from: a request says what it is at its
/// beginning, and waits for it.
const EMBEDDED_TOKENS: usize = 256;

/// Facts of a request that routers look at.
struct Facts {
    prompt: Prompt,
    /// Text that is embedded: the latest message of the user, or the whole prompt.
    text: String,
    has_tools: bool,
    is_constrained: bool,
    /// Earlier answers of the conversation.
    turns: usize,
}

impl App {
    /// The model of a request that generates: that of its name, or of the arm that the router of
    /// this name chooses. `build` makes the request for a model.
    ///
    /// # Errors
    /// As [`ModelSet::choose`]; those of `build`; 400 for requests that belong to one model.
    pub(crate) async fn choose(
        &self,
        ticket: &mut Ticket,
        name: Option<&str>,
        build: impl Fn(&Target<'_>) -> Result<GenerateRequest, ApiError>,
    ) -> Result<Chosen, ApiError> {
        let Some(router) = name.and_then(|name| self.routers.find(name)) else {
            return self.models.choose(name).await;
        };
        let router = Arc::clone(router);
        let default = self.models.choose(Some(&router.default_arm().model)).await?;
        let facts = Facts::of(build(&Target::new(self, &default, &ticket.caller)?)?)?;
        let arm = self.decide(&router, ticket, default.model, facts).await?;
        let Arm { model, adapter, kv, .. } = router.arms[arm].clone();
        let chosen = self.models.choose(Some(&model)).await?;
        Ok(Chosen { adapter, kv, ..chosen })
    }

    /// Decides a request; its index of an arm.
    async fn decide(
        &self,
        router: &Arc<ModelRouter>,
        ticket: &mut Ticket,
        default: Arc<LoadedModel>,
        facts: Facts,
    ) -> Result<usize, ApiError> {
        let Facts { prompt, text, has_tools, is_constrained, turns } = facts;
        let learns = router.folder.is_some() && ticket.caller.limits.learns() && !text.trim().is_empty();
        let tokens =
            if learns || !router.rules.rules.is_empty() { default.encode(prompt).await?.len() } else { 0 };
        let embedded = if learns { Some(self.embed(router, ticket, text).await?) } else { None };
        let embedding = embedded.as_ref().map(|embedded| Arc::clone(&embedded.vector));
        let (models, caller) = (Arc::clone(&self.models), ticket.caller.clone());
        let (this, request) = (Arc::clone(router), ticket.request_id.as_str().to_owned());
        let decided = tokio::task::spawn_blocking(move || {
            let permitted: Vec<bool> =
                this.arms.iter().map(|arm| is_permitted(&models, &caller, arm)).collect();
            let prompt = RoutedPrompt { embedding: &[], tokens, has_tools, is_constrained, turns };
            match embedded {
                None => {
                    let arm = this.rules.choose(&prompt, |arm| permitted[arm], permitted.len());
                    arm.map(|arm| (arm, Reason::Rule)).ok_or(SonaError::NoArm)
                }
                Some(Embedded { digest, vector }) => {
                    let prompt = RoutedPrompt { embedding: &vector, ..prompt };
                    let permitted = |arm: usize| permitted[arm];
                    this.decide(&caller.tenant, &request, &digest, &prompt, permitted)
                }
            }
        });
        let decided = decided.await.map_err(|panic| ApiError::internal(&panic))?;
        let (arm, reason) = decided.map_err(|error| refused(router, &error))?;
        let (name, arm_name) = (router.name(), &router.arms[arm].name);
        self.metrics.count_decision(name, arm_name, reason_name(reason));
        ticket.set_routed(Routed { router: Arc::clone(name), arm: Arc::clone(arm_name), learns, embedding });
        Ok(arm)
    }

    /// Embedding of a text by the router's embedding model. Its tokens count for the caller.
    async fn embed(&self, router: &ModelRouter, ticket: &Ticket, text: String) -> Result<Embedded, ApiError> {
        let model = self.models.choose(Some(&router.embedder)).await?.model;
        let context = model.try_engine().map_or(EMBEDDED_TOKENS, ruvllm::Engine::context_length);
        let request = EmbeddingRequest::new([text]).with_max_tokens(context.min(EMBEDDED_TOKENS));
        let computed = model.embed(request).await?.embeddings.into_iter().next();
        let computed = computed.ok_or_else(|| {
            ApiError::internal(&std::io::Error::other("the prompt of a router has no embedding"))
        })?;
        ticket.caller.limits.charge_tokens(computed.tokens as u64, Instant::now());
        Ok(Embedded { digest: hex(&model.fingerprint()?), vector: computed.vector.into() })
    }
}

/// Embedding of a prompt, with the digest of the model that computed it.
struct Embedded {
    digest: String,
    vector: Arc<[f32]>,
}

impl Facts {
    /// # Errors
    /// 400 for token ids and sessions, which belong to one model.
    fn of(request: GenerateRequest) -> Result<Self, ApiError> {
        if request.session.is_some() {
            let message = "a session stays with one model: name a model in place of the router";
            return Err(ApiError::invalid_param("session", message));
        }
        let is_constrained = request.constraint.is_some();
        let (text, has_tools, turns) = match &request.prompt {
            Prompt::Text(text) => (text.clone(), false, 0),
            Prompt::Chat { messages, tools } => {
                let user = messages.iter().rev().find(|message| message.role == "user");
                let turns = messages.iter().filter(|message| message.role == "assistant").count();
                (user.and_then(text_of).unwrap_or_default().to_owned(), tools.is_some(), turns)
            }
            // Token ids.
            _ => {
                let message = "token ids belong to one model: name it in place of the router";
                return Err(ApiError::invalid_param("prompt", message));
            }
        };
        Ok(Self { prompt: request.prompt, text, has_tools, is_constrained, turns })
    }
}

/// True if an arm can serve a tenant: it has no adapter, or one of its configuration, or one that
/// the tenant has taught a model that is in memory.
fn is_permitted(models: &ModelSet, caller: &Caller, arm: &Arm) -> bool {
    let Some(adapter) = &arm.adapter else { return true };
    let Some(model) = models.in_memory(&arm.model) else { return models.has_adapter(&arm.model, adapter) };
    let resolve = || {
        let tenant = model.tenant_of(caller)?;
        if let Some(learning) = model.learning().filter(|_| caller.limits.learns()) {
            learning.open_tenant(model.engine()?, &tenant)?;
        }
        Ok::<_, ApiError>(model.adapters()?.resolve(&tenant, adapter).is_ok())
    };
    resolve().unwrap_or(false)
}

fn refused(router: &ModelRouter, error: &SonaError) -> ApiError {
    match error {
        SonaError::NoArm => {
            let message = format!(
                "no arm of the router {} can serve this tenant: their adapters are not there",
                router.name()
            );
            ApiError::invalid_param("model", message)
        }
        error => ApiError::internal(error),
    }
}

/// Name of a reason in metrics.
fn reason_name(reason: Reason) -> &'static str {
    match reason {
        Reason::OnlyArm => "only_arm",
        Reason::Best => "best",
        Reason::Tie => "tie",
        Reason::Explored => "explored",
        Reason::Opinion => "opinion",
        Reason::Rule => "rule",
        _ => "other",
    }
}
