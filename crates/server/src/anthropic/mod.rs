//! Anthropic's interface: messages and their numbers of tokens.
//!
//! Requests become those of the chat completions, so that both interfaces generate alike; only
//! names of fields, the shape of replies and the events of streams differ.

mod message;
mod reply;
mod request;
mod stream;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use ruvllm::GenerateRequest;

pub(crate) use self::message::Block;
pub(crate) use self::reply::{ContentBlock, MessageReply, MessageUsage, TokenCount};
pub(crate) use self::request::MessagesRequest;
use crate::api_error::ApiError;
use crate::app::App;
use crate::body::{JsonBytes, parse};
use crate::generation::{Endpoint, Generation, Ticket, stream as reply_stream};
use crate::models::LoadedModel;
use crate::openai::{Common, Target};

/// `POST /v1/messages`: answers a conversation, whole or as a stream of events.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    mut ticket: Ticket,
    JsonBytes(body): JsonBytes,
) -> Result<Response, ApiError> {
    ticket.set_endpoint(Endpoint::Messages);
    ticket.set_request(&body, &["system", "messages"]);
    let prepared = prepare(&app, &mut ticket, &body).await;
    let (ticket, (common, model, generate)) = ticket.check(prepared)?;
    let request_id = ticket.request_id.clone();
    let generation = Generation::start(ticket, Arc::clone(&model), vec![generate], 1).await;
    let generation = generation.map_err(request::renamed)?;
    if common.streams() {
        let writer = stream::EventWriter::new(model, request_id, generation.prompt_tokens());
        return reply_stream(generation, writer).await.map_err(request::renamed);
    }
    let completions = generation.complete().await.map_err(request::renamed)?;
    let completion = completions.first().ok_or(ruvllm::Error::EngineStopped)?;
    Ok(Json(MessageReply::new(model.name(), completion)).into_response())
}

/// Reads and checks a body.
async fn prepare(
    app: &App,
    ticket: &mut Ticket,
    body: &[u8],
) -> Result<(Common, Arc<LoadedModel>, GenerateRequest), ApiError> {
    let (common, request): (Common, MessagesRequest) = (parse(body)?, parse(body)?);
    let common = request.common(common)?;
    let build = |target: &Target<'_>| request.generate_request(target, &common);
    let chosen = app.choose(ticket, common.model.as_deref(), build).await?;
    let generate = build(&Target::new(app, &chosen, &ticket.caller)?)?;
    Ok((common, chosen.model, generate))
}

/// `POST /v1/messages/count_tokens`: the number of tokens of a prompt, without generating.
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    JsonBytes(body): JsonBytes,
) -> Result<Json<TokenCount>, ApiError> {
    let (common, request): (Common, MessagesRequest) = (parse(&body)?, parse(&body)?);
    let prompt = request.prompt(&app)?;
    let chosen = app.models.choose(common.model.as_deref()).await?;
    let tokens = chosen.model.encode(prompt).await.map_err(request::renamed)?;
    Ok(Json(TokenCount { input_tokens: tokens.len() }))
}
