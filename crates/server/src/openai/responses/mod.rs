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

pub(crate) use self::input::InputItem;
pub(crate) use self::reply::{OutputItem, ResponseObject};
pub(crate) use self::request::ResponsesRequest;
use self::request::{Echo, renamed};
use super::Common;
use crate::api_error::ApiError;
use crate::app::App;
use crate::body::{JsonBytes, parse};
use crate::generation::{Endpoint, Generation, Ticket, stream as reply_stream};

/// Answers a conversation, whole or as a stream of events.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    mut ticket: Ticket,
    JsonBytes(body): JsonBytes,
) -> Result<Response, ApiError> {
    ticket.set_endpoint(Endpoint::Responses);
    let (common, request): (Common, ResponsesRequest) = (parse(&body)?, parse(&body)?);
    let echo: Echo = parse(&body)?;
    ticket.set_request(&body, &["instructions", "input"]);
    let common = request.common(common)?;
    let chosen = app.models.choose(common.model.as_deref()).await?;
    let engine = chosen.model.engine()?;
    let generate = request.generate_request(&app, engine, &common, &ticket.caller, chosen.adapter)?;
    let object = ResponseObject::new(chosen.model.name(), echo, &generate);
    let generation = Generation::start(ticket, chosen.model, vec![generate], 1).await.map_err(renamed)?;
    if common.streams() {
        return reply_stream(generation, stream::EventWriter::new(object)).await.map_err(renamed);
    }
    let completions = generation.complete().await.map_err(renamed)?;
    let completion = completions.first().ok_or(ruvllm::Error::EngineStopped)?;
    Ok(Json(object.complete(completion)).into_response())
}
