//! `POST /v1/responses`, without a store: a request holds its whole conversation.

mod input;
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

pub(crate) use self::input::InputItem;
pub(crate) use self::reply::{OutputItem, ResponseObject};
pub(crate) use self::request::ResponsesRequest;
use self::request::{Echo, renamed};
use super::{Common, Target};
use crate::api_error::ApiError;
use crate::app::App;
use crate::body::{JsonBytes, parse};
use crate::generation::{Endpoint, Generation, Ticket, stream as reply_stream};
use crate::models::LoadedModel;

/// A call that is ready to be generated.
struct Prepared {
    streams: bool,
    model: Arc<LoadedModel>,
    generate: GenerateRequest,
    object: ResponseObject,
}

/// Answers a conversation, whole or as a stream of events.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    mut ticket: Ticket,
    JsonBytes(body): JsonBytes,
) -> Result<Response, ApiError> {
    ticket.set_endpoint(Endpoint::Responses);
    ticket.set_request(&body, &["instructions", "input"]);
    let prepared = prepare(&app, &mut ticket, &body).await;
    let (ticket, Prepared { streams, model, generate, object }) = ticket.check(prepared)?;
    let generation = Generation::start(ticket, Arc::clone(&model), vec![generate], 1).await;
    let generation = generation.map_err(renamed)?;
    if streams {
        return reply_stream(generation, stream::EventWriter::new(object, model)).await.map_err(renamed);
    }
    let completions = generation.complete().await.map_err(renamed)?;
    let completion = completions.first().ok_or(ruvllm::Error::EngineStopped)?;
    Ok(Json(object.complete(completion, model.tokenizer())).into_response())
}

/// Reads and checks a body.
async fn prepare(app: &App, ticket: &mut Ticket, body: &[u8]) -> Result<Prepared, ApiError> {
    let (common, request): (Common, ResponsesRequest) = (parse(body)?, parse(body)?);
    let echo: Echo = parse(body)?;
    let common = request.common(common)?;
    let build = |target: &Target<'_>| request.generate_request(target, &common);
    let chosen = app.choose(ticket, common.model.as_deref(), build).await?;
    let generate = build(&Target::new(app, &chosen, &ticket.caller)?)?;
    let object = ResponseObject::new(chosen.model.name(), echo, &generate);
    Ok(Prepared { streams: common.streams(), model: chosen.model, generate, object })
}
