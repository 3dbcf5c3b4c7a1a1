//! `POST /v1/chat/completions`.

mod logprobs;
mod message;
mod reply;
mod request;
mod stream;

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use ruvllm::GenerateRequest;

pub(crate) use self::logprobs::{TokenLogprob, token_logprobs};
pub(crate) use self::message::{
    CallParam, ChatMessage, Content, FunctionParam, Part, messages_of, text_of_content,
};
pub(crate) use self::reply::ChatCompletion;
pub(crate) use self::request::{ChatRequest, ResponseFormat, choose_tools, set_effort, top_logprobs};
pub(crate) use self::stream::ChatChunk;
use super::{Common, MemoryField, MemoryUse, Target};
use crate::api_error::ApiError;
use crate::app::App;
use crate::body::{JsonBytes, parse};
use crate::generation::{Endpoint, Generation, Ticket, stream as reply_stream};
use crate::models::LoadedModel;

/// A call that is ready to be generated.
struct Prepared {
    common: Common,
    model: Arc<LoadedModel>,
    request: GenerateRequest,
    n: usize,
    /// Lessons of the prompt, for the reply.
    memory: Option<MemoryUse>,
}

/// Answers a conversation, whole or as a stream of chunks.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    mut ticket: Ticket,
    JsonBytes(body): JsonBytes,
) -> Result<Response, ApiError> {
    ticket.set_endpoint(Endpoint::Chat);
    ticket.set_request(&body, &["messages", "chat_template_kwargs"]);
    let prepared = prepare(&app, &mut ticket, &body).await;
    let (ticket, Prepared { common, model, request, n, memory }) = ticket.check(prepared)?;
    let with_logprobs = request.logprobs.is_some();
    let generation = Generation::start(ticket, Arc::clone(&model), vec![request], n).await?;
    if common.streams() {
        let writer = stream::ChunkWriter::new(model, n, with_logprobs, common.includes_usage());
        return reply_stream(generation, writer.with_memory(memory)).await;
    }
    let completions = generation.complete().await?;
    let tokenizer = model.tokenizer();
    let reply = reply::ChatCompletion::new(model.name(), &completions, tokenizer);
    Ok(axum::Json(reply.with_memory(memory)).into_response())
}

/// Reads and checks a body.
async fn prepare(app: &App, ticket: &mut Ticket, body: &[u8]) -> Result<Prepared, ApiError> {
    let (common, request): (Common, ChatRequest) = (parse(body)?, parse(body)?);
    let memory: MemoryField = parse(body)?;
    let n = common.choices()?;
    let build = |target: &Target<'_>| request.generate_request(target, &common);
    let chosen = app.choose(ticket, common.model.as_deref(), build).await?;
    let mut request = build(&Target::new(app, &chosen, &ticket.caller)?)?;
    let memory = memory.add_to_chat(ticket, &chosen.model, &mut request.prompt).await?;
    Ok(Prepared { common, model: chosen.model, request, n, memory })
}
