//! A generation as a stream of events.
//!
//! The engine's thread puts text into the mailbox of each request and wakes the task that reads it;
//! nothing is copied into channels, and a reader that is slow holds back its own text alone.
//! Dropping a [`Generation`], as when the client is gone, cancels its requests.

mod arrival;
mod event_stream;
mod routed;
mod ticket;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use ruvllm::{
    AnswerEvent, AnswerParser, Chunk, Completion, GenerateRequest, KvPolicy, Logprobs, OnlineAdapter,
    RequestHandle, TokenId, ToolCallEvent,
};

use self::arrival::Arrival;
pub(crate) use self::event_stream::{StreamWriter, stream, write_event};
pub(crate) use self::routed::{Routed, name_arm};
pub(crate) use self::ticket::{CallRecord, Endpoint, Observer, Observers, Room, Ticket};
use crate::api_error::ApiError;
use crate::auth::Caller;
use crate::learning::Circumstances;
use crate::models::LoadedModel;
use crate::tenant::tenant_of;

/// Event of one choice of a generation.
#[derive(Debug)]
pub(crate) struct Event {
    /// Number of the choice: prompts in their order, the choices of each together.
    pub(crate) index: usize,
    pub(crate) kind: EventKind,
}

/// Text of an answer or of its thinking, with the tokens and log-probabilities that arrived with
/// it. The text is empty where the tokens belong to a tool call.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) text: String,
    pub(crate) tokens: Vec<TokenId>,
    /// One for each of `tokens`, if the request asks for them; else empty.
    pub(crate) logprobs: Vec<Logprobs>,
}

impl From<Chunk> for Piece {
    fn from(chunk: Chunk) -> Self {
        let Chunk { text, tokens, logprobs, .. } = chunk;
        Self { text, tokens, logprobs }
    }
}

#[derive(Debug)]
pub(crate) enum EventKind {
    /// Thinking, which comes before the text.
    Reasoning(Piece),
    /// Text outside of thinking and calls.
    Text(Piece),
    /// Part of a tool call; never [`ToolCallEvent::Content`].
    ToolCall(ToolCallEvent),
    /// The choice is complete.
    End(Box<Completion>),
}

/// One running request of the engine.
struct Choice {
    handle: RequestHandle,
    parser: Option<AnswerParser>,
    /// Arrival of the latest tokens.
    last_tokens: Option<Instant>,
    has_ended: bool,
}

/// The requests of one call of the API.
pub(crate) struct Generation {
    choices: Vec<Choice>,
    /// Choices of each prompt.
    n: usize,
    /// Choice that is looked at next.
    next: usize,
    events: VecDeque<Event>,
    parsed: Vec<AnswerEvent>,
    arrival: Arc<Arrival>,
    ticket: Ticket,
    /// Model whose choices are recorded for feedback.
    recorded: Option<Arc<LoadedModel>>,
    /// KV policies of the requests; `None` for that of the engine.
    kv: Vec<Option<KvPolicy>>,
}

impl Generation {
    /// Submits requests, each with `n` choices.
    ///
    /// # Errors
    /// As [`ruvllm::Engine::submit_many`].
    pub(crate) async fn start(
        mut ticket: Ticket,
        model: Arc<LoadedModel>,
        requests: Vec<GenerateRequest>,
        n: usize,
    ) -> Result<Self, ApiError> {
        ticket.set_model(model.name());
        let is_recorded = ticket.caller.limits.learns() && model.learning().is_some();
        let recorded = is_recorded.then(|| Arc::clone(&model));
        let learner = is_recorded.then(|| ticket.caller.clone());
        let kv = requests.iter().map(|request| request.kv).collect();
        // Rendering and encoding a prompt takes milliseconds.
        let submitted =
            tokio::task::spawn_blocking(move || submit(&model, learner.as_ref(), requests, n)).await;
        let submitted = submitted.unwrap_or_else(|panic| Err(ApiError::internal(&panic)));
        let handles = submitted.inspect_err(|error| ticket.set_error(error))?;
        let arrival = Arc::new(Arrival::default());
        let choices = handles.into_iter().map(|handle| {
            let arrival = Arc::clone(&arrival);
            handle.on_arrival(move || arrival.announce());
            Choice { parser: handle.answer_parser(), handle, last_tokens: None, has_ended: false }
        });
        Ok(Self {
            choices: choices.collect(),
            n,
            next: 0,
            events: VecDeque::new(),
            parsed: Vec::new(),
            arrival,
            ticket,
            recorded,
            kv,
        })
    }

    /// The account of the call.
    pub(crate) fn ticket(&mut self) -> &mut Ticket {
        &mut self.ticket
    }

    /// Number of choices of all prompts.
    pub(crate) fn choices(&self) -> usize {
        self.choices.len()
    }

    /// Tokens of all prompts.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.choices.iter().step_by(self.n).map(|choice| choice.handle.prompt_tokens()).sum()
    }

    /// The next event, in the order of arrival; `None` after the end of all choices and after an
    /// error.
    pub(crate) async fn next(&mut self) -> Option<Result<Event, ApiError>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`next`](Self::next), for one poll.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Event, ApiError>>> {
        if let Some(event) = self.take_event() {
            return Poll::Ready(event);
        }
        // Arrivals from here on wake the task, so the mailboxes are looked at once more.
        self.arrival.register(context.waker());
        match self.take_event() {
            Some(event) => Poll::Ready(event),
            None => Poll::Pending,
        }
    }

    /// Waits for the end of all choices.
    ///
    /// # Errors
    /// Error of the first choice that fails; the others are cancelled.
    pub(crate) async fn complete(mut self) -> Result<Vec<Completion>, ApiError> {
        let mut completions: Vec<Option<Completion>> = self.choices.iter().map(|_| None).collect();
        while let Some(event) = self.next().await {
            let Event { index, kind } = event?;
            if let EventKind::End(completion) = kind {
                completions[index] = Some(*completion);
            }
        }
        Ok(completions.into_iter().flatten().collect())
    }

    /// An event that is there already; `Some(None)` if nothing follows.
    fn take_event(&mut self) -> Option<Option<Result<Event, ApiError>>> {
        if let Some(event) = self.events.pop_front() {
            return Some(Some(Ok(event)));
        }
        for _ in 0..self.choices.len() {
            let index = self.next;
            self.next = (index + 1) % self.choices.len();
            // A piece may be held back by the parser and give no event.
            while self.events.is_empty() {
                match self.read(index) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        self.ticket.set_error(&error);
                        self.choices.clear();
                        return Some(Some(Err(error)));
                    }
                }
            }
            if let Some(event) = self.events.pop_front() {
                return Some(Some(Ok(event)));
            }
        }
        let has_ended = self.choices.iter().all(|choice| choice.has_ended);
        if has_ended && !self.ticket.has_failed() {
            self.ticket.set_complete();
        }
        has_ended.then_some(None)
    }

    /// Moves the next piece of a choice, or its end, to the events; false if nothing was there.
    fn read(&mut self, index: usize) -> Result<bool, ApiError> {
        let choice = &mut self.choices[index];
        if choice.has_ended {
            return Ok(false);
        }
        if let Some(chunk) = choice.handle.try_next() {
            let piece = Piece::from(chunk?);
            self.ticket.count_tokens(piece.tokens.len(), &mut choice.last_tokens);
            self.ticket.add_text(index, &piece.text);
            match &mut choice.parser {
                None => self.events.push_back(Event { index, kind: EventKind::Text(piece) }),
                Some(parser) => {
                    parser.push(&piece.text, &mut self.parsed);
                    self.push_parsed(index, piece);
                }
            }
        } else if choice.handle.has_ended() {
            choice.has_ended = true;
            if let Some(mut parser) = choice.parser.take() {
                parser.finish(&mut self.parsed);
                self.push_parsed(index, Piece::default());
            }
            if let Some(completion) = self.choices[index].handle.completion().cloned() {
                self.ticket.add_completion(&completion, index.is_multiple_of(self.n));
                self.record(index, &completion);
                self.events.push_back(Event { index, kind: EventKind::End(Box::new(completion)) });
            }
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Records a complete choice, if its tenant learns.
    fn record(&self, index: usize, completion: &Completion) {
        let Some((learning, engine)) =
            self.recorded.as_ref().and_then(|model| Some((model.learning()?, model.engine().ok()?)))
        else {
            return;
        };
        if let Ok(tenant) = tenant_of(engine, &self.ticket.caller) {
            let request = (self.ticket.request_id.as_str(), index);
            let routed = self.ticket.routed.as_ref();
            let circumstances = Circumstances {
                route: routed.map(Routed::label),
                embedding: routed.and_then(|routed| routed.embedding.as_deref()),
                kv: self.kv.get(index / self.n).copied().flatten(),
            };
            learning.record(engine, OnlineAdapter::owner(&tenant), request, circumstances, completion);
        }
    }

    /// Moves what the parser gave to the events. Tokens and log-probabilities of the piece go with
    /// its first text, or with an empty one.
    fn push_parsed(&mut self, index: usize, piece: Piece) {
        let Piece { mut tokens, mut logprobs, .. } = piece;
        let mut piece_of = |text| Piece {
            text,
            tokens: std::mem::take(&mut tokens),
            logprobs: std::mem::take(&mut logprobs),
        };
        for event in self.parsed.drain(..) {
            let kind = match event {
                AnswerEvent::Reasoning(text) => EventKind::Reasoning(piece_of(text)),
                AnswerEvent::Content(text) => EventKind::Text(piece_of(text)),
                AnswerEvent::ToolCall(event) => EventKind::ToolCall(event),
                _ => continue,
            };
            self.events.push_back(Event { index, kind });
        }
        if !logprobs.is_empty() {
            let kind = EventKind::Text(Piece { text: String::new(), tokens, logprobs });
            self.events.push_back(Event { index, kind });
        }
    }
}

/// Submits all requests; those before one that is refused are cancelled by their handles. The
/// adapters that `learner` has taught can be named.
fn submit(
    model: &LoadedModel,
    learner: Option<&Caller>,
    requests: Vec<GenerateRequest>,
    n: usize,
) -> Result<Vec<RequestHandle>, ApiError> {
    if let (Some(caller), Some(learning)) = (learner, model.learning()) {
        let engine = model.engine()?;
        learning.open_tenant(engine, &tenant_of(engine, caller)?)?;
    }
    let mut handles = Vec::with_capacity(requests.len() * n);
    for request in requests {
        handles.extend(model.submit_many(request, n)?);
    }
    Ok(handles)
}

/// Text of a token; bytes that are no whole characters become U+FFFD.
pub(crate) fn token_text(tokenizer: &ruvllm::Tokenizer, token: TokenId) -> String {
    String::from_utf8_lossy(&tokenizer.token_bytes(token).unwrap_or_default()).into_owned()
}
