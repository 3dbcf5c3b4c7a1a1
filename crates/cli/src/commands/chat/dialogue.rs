//! A conversation with its messages: what is asked, answered, forgotten, saved.

use std::ops::ControlFlow;
use std::path::Path;

use ruvllm::{CancelToken, Completion, Conversation, Engine, FinishReason, GenerateRequest, Message, Prompt};
use serde::Serialize;

use super::adapters::Adapters;
use super::saved;
use super::settings::{SavedSettings, Settings};
use super::window::{Room, oldest_sent};
use crate::commands::generate::GenerationTimings;
use crate::error::Result;
use crate::output;

/// Messages, settings, and the sequence that keeps what was computed for them.
pub(super) struct Dialogue<'e> {
    engine: &'e Engine,
    conversation: Conversation<'e>,
    /// All of them; the first one may be the system prompt.
    messages: Vec<Message>,
    /// The first one behind the system prompt that still is sent.
    oldest: usize,
    pub(super) settings: Settings,
    pub(super) adapters: Adapters<'e>,
    turns: Vec<Turn>,
}

/// Record of a turn: the completion of a user message.
struct Turn {
    completion: Completion,
    /// True if tokens were drawn at random, so that the seed matters.
    drawn: bool,
    /// Messages that are not sent any more since this turn.
    forgotten_messages: usize,
}

/// End of an answer, for remarks to the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) finish: FinishReason,
    /// True if it ended because the context is full.
    pub(super) context_full: bool,
    /// True if there is no answer: it was stopped before it began, and the message is taken back.
    pub(super) taken_back: bool,
    /// Messages that are not sent any more since this turn.
    pub(super) forgotten_messages: usize,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    messages: &'a [Message],
    settings: SavedSettings,
    turns: Vec<TurnDocument>,
    load_ms: f64,
}

#[derive(Serialize)]
struct TurnDocument {
    prompt_tokens: usize,
    cached_tokens: usize,
    tokens: usize,
    finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    forgotten_messages: usize,
    timings: GenerationTimings,
}

impl From<&Turn> for TurnDocument {
    fn from(turn: &Turn) -> Self {
        let Turn { completion, drawn, forgotten_messages } = turn;
        Self {
            prompt_tokens: completion.prompt_tokens,
            cached_tokens: completion.cached_tokens,
            tokens: completion.tokens.len(),
            finish_reason: completion.finish_reason.name(),
            seed: drawn.then_some(completion.seed),
            forgotten_messages: *forgotten_messages,
            timings: completion.timings.into(),
        }
    }
}

impl<'e> Dialogue<'e> {
    pub(super) fn new(
        engine: &'e Engine,
        system: Option<&str>,
        settings: Settings,
        adapters: Adapters<'e>,
    ) -> Self {
        let messages: Vec<_> = system.map(Message::system).into_iter().collect();
        let oldest = messages.len();
        let conversation = engine.conversation();
        Self { engine, conversation, messages, oldest, settings, adapters, turns: Vec::new() }
    }

    /// Generates the answer to a message, streamed to `on_text`.
    ///
    /// # Errors
    /// Whatever the engine says; the message is taken back then.
    pub(super) fn answer(
        &mut self,
        text: String,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Outcome> {
        self.messages.push(Message::user(text));
        let (completion, forgotten_messages) =
            self.generate(cancel, on_text).inspect_err(|_| drop(self.messages.pop()))?;
        let finish = completion.finish_reason;
        let taken_back = finish == FinishReason::Cancelled && completion.text.is_empty();
        if taken_back {
            self.messages.pop();
        } else {
            self.messages.push(Message::assistant(completion.text.as_str()));
        }
        let context_full =
            finish == FinishReason::Length && completion.tokens.len() < self.settings.max_tokens;
        let drawn = self.settings.sampling.temperature > 0.0;
        self.turns.push(Turn { completion, drawn, forgotten_messages });
        Ok(Outcome { finish, context_full, taken_back, forgotten_messages })
    }

    /// The answer to the messages so far, and how many are left out of the prompt from now on.
    fn generate(
        &mut self,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<(Completion, usize)> {
        let room = Room { context: self.engine.context_length(), answer: self.settings.max_tokens };
        let turns: Vec<usize> =
            (self.oldest + 1..self.messages.len()).filter(|&at| self.messages[at].role == "user").collect();
        let oldest = oldest_sent(room, self.oldest, &turns, &mut |first| {
            self.engine.encode_prompt_until(&self.prompt(first), cancel).map(|tokens| tokens.len())
        })?;
        let request = GenerateRequest::new(self.prompt(oldest))
            .with_max_tokens(self.settings.max_tokens)
            .with_sampling(self.settings.sampling.clone())
            .with_stop(self.settings.stop.clone())
            .with_adapter(self.adapters.loaded());
        let completion = self.conversation.generate_with(&request, cancel, on_text)?;
        let forgotten = oldest - self.oldest;
        self.oldest = oldest;
        Ok((completion, forgotten))
    }

    /// The system prompt and the messages from `first` on.
    fn prompt(&self, first: usize) -> Prompt {
        let system = &self.messages[..self.n_system()];
        Prompt::Chat { messages: [system, &self.messages[first..]].concat(), tools: None }
    }

    /// 1 if there is a system prompt.
    fn n_system(&self) -> usize {
        usize::from(self.messages.first().is_some_and(|message| message.role == "system"))
    }

    /// The system prompt.
    pub(super) fn system(&self) -> Option<&str> {
        self.messages[..self.n_system()].first()?.content.as_ref()?.as_str()
    }

    /// Takes another system prompt; an empty one is none.
    pub(super) fn set_system(&mut self, text: &str) {
        let old = self.n_system();
        let new = (!text.is_empty()).then(|| Message::system(text));
        self.oldest = self.oldest - old + usize::from(new.is_some());
        self.messages.splice(..old, new);
    }

    /// Forgets all messages but the system prompt.
    pub(super) fn reset(&mut self) {
        self.messages.truncate(self.n_system());
        self.begin_anew();
    }

    /// Writes messages and settings to a file; how many messages.
    ///
    /// # Errors
    /// A file that cannot be written, or that is something else.
    pub(super) fn save(&self, path: &Path) -> Result<usize> {
        saved::save(path, &self.messages, &self.settings).map(|()| self.messages.len())
    }

    /// Goes on with the conversation in a file; how many messages.
    ///
    /// # Errors
    /// A file that is none; nothing has changed then.
    pub(super) fn load(&mut self, path: &Path) -> Result<usize> {
        (self.messages, self.settings) = saved::load(path, &self.settings)?;
        self.begin_anew();
        Ok(self.messages.len())
    }

    /// Drops what was computed for other messages: the engine's prefix cache may know something of
    /// the new ones.
    fn begin_anew(&mut self) {
        self.oldest = self.n_system();
        self.conversation.clear();
    }

    /// The last answer and what is in the context, for a person.
    pub(super) fn statistics(&self) -> String {
        let mut text = String::new();
        if let Some(Turn { completion, .. }) = self.turns.last() {
            let Completion { prompt_tokens, cached_tokens, tokens, timings, finish_reason, .. } = completion;
            let speed = |speed: Option<f64>| speed.map_or(String::new(), |speed| format!(" at {speed:.1}/s"));
            text.push_str(&format!(
                "answer {}: {prompt_tokens} prompt tokens, {cached_tokens} known, {} computed{}; {} generated{}{}; {}\n",
                self.turns.len(),
                prompt_tokens - cached_tokens,
                speed(timings.prefill_tok_s),
                tokens.len(),
                speed(timings.decode_tok_s),
                timings.ttft_ms.map_or(String::new(), |ms| format!("; first after {ms:.0} ms")),
                finish_reason.name(),
            ));
        }
        let forgotten = self.oldest - self.n_system();
        text.push_str(&format!(
            "context: {} of {} tokens, {} of keys and values as {}; {} messages, {forgotten} of them no longer sent\n",
            self.conversation.len(),
            self.engine.context_length(),
            output::bytes(self.conversation.kv_bytes() as u64),
            self.engine.kv_policy(),
            self.messages.len(),
        ));
        text
    }

    /// Writes the JSON document to standard output.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn write_json(&self) -> Result<()> {
        let Self { messages, settings, turns, engine, .. } = self;
        let load_ms = engine.load_time().as_secs_f64() * 1e3;
        let turns = turns.iter().map(TurnDocument::from).collect();
        output::write_json(&Document { messages, settings: settings.into(), turns, load_ms })
    }
}
