//! `POST /v1/completions`.

mod logprobs;
mod reply;
mod request;
mod stream;

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use ruvllm::{Completion, GenerateRequest, Prompt, TextCodec, TokenId, Tokenizer};

pub(crate) use self::reply::TextCompletion;
pub(crate) use self::request::{CompletionRequest, Prompts};
pub(crate) use self::stream::TextChunk;
use super::{Common, MemoryField, MemoryUse, Target};
use crate::api_error::ApiError;
use crate::app::App;
use crate::body::{JsonBytes, parse};
use crate::generation::{Endpoint, Generation, Ticket, stream as reply_stream};
use crate::models::LoadedModel;

/// A prompt that is repeated before its output.
#[derive(Debug, Clone)]
struct Echo {
    text: String,
    tokens: Vec<TokenId>,
}

impl Echo {
    /// Adds the prompt's tokens to the log-probabilities of a choice; nothing predicts the first
    /// one.
    fn write_logprobs(
        &self,
        completion: &Completion,
        tokenizer: &Tokenizer,
        out: &mut logprobs::TextLogprobs,
        offset: &mut usize,
    ) {
        let predicted = completion.prompt_logprobs.iter().map(Some);
        for (&token, logprobs) in self.tokens.iter().zip(std::iter::once(None).chain(predicted)) {
            out.push(token, logprobs, tokenizer, offset);
        }
    }
}

/// A call that is ready to be generated.
struct Prepared {
    common: Common,
    model: Arc<LoadedModel>,
    requests: Vec<GenerateRequest>,
    /// The prompts, if they are repeated.
    echoes: Option<Vec<Echo>>,
    wants_logprobs: bool,
    /// Choices of each prompt in the reply, and of those that are generated.
    n: usize,
    best_of: usize,
    /// Lessons of the prompt, for the reply.
    memory: Option<MemoryUse>,
}

/// Continues prompts, whole or as a stream of chunks.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    mut ticket: Ticket,
    JsonBytes(body): JsonBytes,
) -> Result<Response, ApiError> {
    ticket.set_endpoint(Endpoint::Completions);
    ticket.set_request(&body, &["prompt"]);
    let prepared = prepare(&app, &mut ticket, &body).await;
    let (ticket, prepared) = ticket.check(prepared)?;
    let Prepared { common, model, requests, echoes, wants_logprobs, n, best_of, memory } = prepared;
    let generation = Generation::start(ticket, Arc::clone(&model), requests, best_of).await?;
    if common.streams() {
        let usage = common.includes_usage();
        let writer = stream::ChunkWriter::new(model, echoes, n, generation.choices(), wants_logprobs, usage);
        return reply_stream(generation, writer.with_memory(memory)).await;
    }
    let all = generation.complete().await?;
    let usage = super::Usage::of(&all, best_of);
    let completions = best(all, n, best_of);
    let reply =
        reply::TextCompletion::new(&model, &completions, echoes.as_deref(), n, usage, wants_logprobs)?;
    Ok(axum::Json(reply.with_memory(memory)).into_response())
}

/// Reads and checks a body.
async fn prepare(app: &App, ticket: &mut Ticket, body: &[u8]) -> Result<Prepared, ApiError> {
    let (common, request): (Common, CompletionRequest) = (parse(body)?, parse(body)?);
    let memory: MemoryField = parse(body)?;
    let n = common.choices()?;
    let best_of = request.best_of(n, common.streams())?;
    let mut prompts = request.prompts(app, best_of)?;
    // A router decides by the first prompt: all choices of a call are from one model.
    let first = |target: &Target<'_>| {
        let prompt =
            prompts.first().ok_or_else(|| ApiError::invalid_param("prompt", "there is no prompt"))?;
        common.request(target, prompt.clone())
    };
    let chosen = app.choose(ticket, common.model.as_deref(), first).await?;
    let codec = chosen.model.backend()?.codec();
    let memory = memory.add_to_prompts(ticket, &chosen.model, &mut prompts).await?;
    let target = Target::new(app, &chosen, &ticket.caller)?;
    let requests = prompts.iter().map(|prompt| {
        let base = common.request(&target, prompt.clone())?;
        request.complete(app, &common, base, best_of > n)
    });
    let requests = requests.collect::<Result<_, _>>()?;
    let echoes = if request.echoes() { Some(echoes(codec, &prompts)?) } else { None };
    let wants_logprobs = request.wants_logprobs();
    Ok(Prepared { common, model: chosen.model, requests, echoes, wants_logprobs, n, best_of, memory })
}

/// Of each prompt's choices the `n` with the highest mean log-probability, the highest first.
fn best(mut all: Vec<Completion>, n: usize, best_of: usize) -> Vec<Completion> {
    if n == best_of {
        return all;
    }
    let rank = |choice: &Completion| choice.mean_logprob().unwrap_or(f64::NEG_INFINITY);
    for choices in all.chunks_mut(best_of) {
        choices.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
    }
    let is_chosen = |(index, choice)| (index % best_of < n).then_some(choice);
    all.into_iter().enumerate().filter_map(is_chosen).collect()
}

/// Texts and ids of prompts.
fn echoes(codec: &TextCodec, prompts: &[Prompt]) -> Result<Vec<Echo>, ApiError> {
    let echo = |prompt: &Prompt| {
        let tokens = codec.encode_prompt(prompt)?;
        let text = match prompt {
            Prompt::Text(text) => text.clone(),
            _ => codec.tokenizer().decode(&tokens, true).unwrap_or_default(),
        };
        Ok(Echo { text, tokens })
    };
    prompts.iter().map(echo).collect()
}
