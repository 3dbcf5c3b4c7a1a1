//! Conversation of `ruvllm chat`: messages, answers, statistics, save and load.

use std::path::Path;

use ruvllm::{CancelToken, Completion, FinishReason, GenerateRequest, Message, Prompt, SamplingParams};
use serde::Serialize;

use super::adapters::Adapters;
use super::memory::Memory;
use super::saved;
use super::session::Session;
use super::settings::{SavedSettings, Settings};
use super::tool_use::{ROUNDS, ToolUse};
use super::transcript::Transcript;
use super::window::{Room, oldest_sent};
use crate::answer_filter::{AnswerFilter, OnText, Voice};
use crate::args::{self, ThinkingArgs};
use crate::commands::generate::{GenerationTimings, SpeculationDocument};
use crate::device::{DeviceConversation, Loaded};
use crate::error::{Error, Result};
use crate::output;

/// Messages, settings, and the sequence with the KV cache of earlier turns.
pub(super) struct Dialogue<'e> {
    model: &'e Loaded,
    conversation: DeviceConversation<'e>,
    transcript: Transcript,
    pub(super) settings: Settings,
    pub(super) adapters: Adapters<'e>,
    thinking: ThinkingArgs,
    tools: Option<ToolUse>,
    memory: Memory,
    session: Option<Session>,
    turns: Vec<Turn>,
    /// Parameters of the last answer: their sequence breakers are resolved.
    sampled: SamplingParams,
}

/// Record of a turn: the completion of a user message.
struct Turn {
    completion: Completion,
    /// True if tokens were sampled (temperature above 0), so that the seed matters.
    drawn: bool,
    /// Messages newly left out of the prompt in this turn.
    forgotten_messages: usize,
}

/// Question to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Question {
    /// A new message.
    New(String),
    /// The last message again (`/regenerate`).
    Again,
}

/// Outcome of an answer, for remarks to the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) finish: FinishReason,
    /// True if it ended because the context is full.
    pub(super) context_full: bool,
    /// True if the answer was cancelled before its first text; the conversation is unchanged then.
    pub(super) taken_back: bool,
    /// Messages newly left out of the prompt in this turn.
    pub(super) forgotten_messages: usize,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    messages: &'a [Message],
    settings: SavedSettings,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
    turns: Vec<TurnDocument>,
    load_ms: f64,
}

#[derive(Serialize)]
struct TurnDocument {
    prompt_tokens: usize,
    cached_tokens: usize,
    tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_tokens: Option<usize>,
    finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    forgotten_messages: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    speculation: Option<SpeculationDocument>,
    timings: GenerationTimings,
}

impl From<&Turn> for TurnDocument {
    fn from(turn: &Turn) -> Self {
        let Turn { completion, drawn, forgotten_messages } = turn;
        Self {
            prompt_tokens: completion.prompt_tokens,
            cached_tokens: completion.cached_tokens,
            tokens: completion.tokens.len(),
            reasoning_tokens: (completion.reasoning_tokens > 0).then_some(completion.reasoning_tokens),
            finish_reason: completion.finish_reason.name(),
            seed: drawn.then_some(completion.seed),
            forgotten_messages: *forgotten_messages,
            speculation: SpeculationDocument::of(completion.drafted_tokens, completion.accepted_tokens),
            timings: completion.timings.into(),
        }
    }
}

impl<'e> Dialogue<'e> {
    pub(super) fn new(
        model: &'e Loaded,
        system: Option<&str>,
        settings: Settings,
        thinking: ThinkingArgs,
        (adapters, tools, memory): (Adapters<'e>, Option<ToolUse>, Memory),
    ) -> Self {
        let transcript = Transcript::new(system.map(Message::system).into_iter().collect());
        let conversation = model.conversation();
        let sampled = SamplingParams::default();
        let (session, turns) = (None, Vec::new());
        Self {
            model,
            conversation,
            transcript,
            settings,
            adapters,
            thinking,
            tools,
            memory,
            session,
            turns,
            sampled,
        }
    }

    /// Goes on with the messages of a session, and keeps later ones in it. A system prompt that was
    /// set takes the place of the session's.
    pub(super) fn resume(&mut self, session: Session) {
        let system = self.system().map(str::to_owned);
        self.transcript = session.transcript().clone();
        if let Some(system) = system {
            self.transcript.set_system(&system);
        }
        self.session = Some(session);
    }

    /// Keeps the messages in the session, if there is one.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(super) fn keep(&mut self) -> Result<()> {
        let Self { session, transcript, settings, .. } = self;
        session.as_mut().map_or(Ok(()), |session| session.keep(transcript, settings))
    }

    /// Generates the answer to a question, streamed to `on_text`.
    ///
    /// # Errors
    /// [`Error::ChatCommand`] if there is no message to answer again; errors of the engine. The
    /// conversation is unchanged then.
    pub(super) fn answer(
        &mut self,
        question: Question,
        cancel: &CancelToken,
        on_text: OnText<'_>,
    ) -> Result<Outcome> {
        let before = self.transcript.clone();
        match question {
            Question::New(text) => self.transcript.ask(text),
            Question::Again if self.transcript.drop_answer() => {}
            Question::Again => return Err(nothing_to("answer again")),
        }
        if let Err(error) = self.memory.find(&self.transcript) {
            self.transcript = before;
            return Err(error);
        }
        let mut forgotten_messages = 0;
        let mut round = 0;
        loop {
            round += 1;
            let (completion, forgotten) = match self.generate(round, cancel, on_text) {
                Ok(answered) => answered,
                Err(error) => {
                    self.transcript = before;
                    return Err(error);
                }
            };
            forgotten_messages += forgotten;
            let finish = completion.finish_reason;
            let taken_back = finish == FinishReason::Cancelled && completion.text.is_empty() && round == 1;
            if taken_back {
                self.transcript = before;
                return Ok(self.ended(completion, taken_back, forgotten_messages, forgotten));
            }
            self.transcript.push(completion.message());
            let results = match &mut self.tools {
                Some(tools) if finish == FinishReason::ToolCalls => tools.run(&completion, cancel),
                _ => None,
            };
            let outcome = self.ended(completion, taken_back, forgotten_messages, forgotten);
            match results {
                Some(results) => results.into_iter().for_each(|result| self.transcript.push(result)),
                None if cancel.is_cancelled() => {
                    return Ok(Outcome { finish: FinishReason::Cancelled, ..outcome });
                }
                None => return Ok(outcome),
            }
            if round == ROUNDS {
                return Ok(outcome);
            }
        }
    }

    /// Records a completion.
    fn ended(
        &mut self,
        completion: Completion,
        taken_back: bool,
        all_forgotten: usize,
        forgotten: usize,
    ) -> Outcome {
        let finish = completion.finish_reason;
        let context_full =
            finish == FinishReason::Length && completion.tokens.len() < self.settings.max_tokens;
        let drawn = self.settings.sampling.temperature > 0.0;
        self.turns.push(Turn { completion, drawn, forgotten_messages: forgotten });
        Outcome { finish, context_full, taken_back, forgotten_messages: all_forgotten }
    }

    /// Generates the answer of a round; also returns the number of messages newly left out of the
    /// prompt.
    fn generate(
        &mut self,
        round: usize,
        cancel: &CancelToken,
        on_text: OnText<'_>,
    ) -> Result<(Completion, usize)> {
        let backend = self.model.backend();
        let room = Room { context: backend.context_length(), answer: self.settings.max_tokens };
        let turns = self.transcript.later_turns();
        let before = self.transcript.oldest();
        let oldest = oldest_sent(room, before, &turns, &mut |first| {
            backend.codec().encode_prompt_until(&self.prompt(first), cancel).map(|tokens| tokens.len())
        })?;
        let sampling = self.settings.sampling.clone();
        let known = &self.sampled.dry_breakers;
        self.sampled = if known.texts() == self.settings.breakers {
            sampling.with_dry_breakers(known.clone())
        } else {
            args::with_breakers(sampling, &self.settings.breakers, backend.codec().tokenizer())?
        };
        let request = GenerateRequest::new(self.prompt(oldest))
            .with_max_tokens(self.settings.max_tokens)
            .with_sampling(self.sampled.clone())
            .with_stop(self.settings.stop.clone())
            .with_constraint(self.settings.output.as_ref().map(|output| output.constraint.clone()))
            .with_adapters(self.adapters.loaded().to_vec());
        let request = self.thinking.apply(request);
        let request = match &self.tools {
            Some(ToolUse { tools, .. }) => tools.apply(request, round == 1),
            None => request,
        };
        let mut filter = AnswerFilter::new(backend.codec(), &request, self.thinking.view(), cancel)?;
        let mut show = |text: &str| filter.push(text, on_text);
        let completion = self.conversation.generate(&request, cancel, &mut show)?;
        // The answer has ended: there is nothing to break off.
        let _ = filter.finish(on_text);
        let ends_line = completion.content().is_empty() || completion.content().ends_with('\n');
        if !completion.tool_calls.is_empty() && !ends_line {
            let _ = on_text(Voice::Answer, "\n");
        }
        self.transcript.forget_before(oldest);
        Ok((completion, oldest - before))
    }

    /// The system prompt and the messages from `first` on.
    fn prompt(&self, first: usize) -> Prompt {
        let tools = self.tools.as_ref().map(|tools| tools.tools.definitions.clone());
        Prompt::Chat { messages: self.memory.add_to(self.transcript.from(first)), tools }
    }

    /// The system prompt.
    pub(super) fn system(&self) -> Option<&str> {
        self.transcript.system()
    }

    /// Sets the system prompt; an empty one removes it.
    pub(super) fn set_system(&mut self, text: &str) {
        self.transcript.set_system(text);
    }

    /// Drops the last user message and its answer; returns the number of messages left.
    ///
    /// # Errors
    /// [`Error::ChatCommand`] if there is no user message.
    pub(super) fn undo(&mut self) -> Result<usize> {
        self.transcript.undo().ok_or_else(|| nothing_to("undo"))?;
        Ok(self.transcript.messages().len())
    }

    /// Drops all messages but the system prompt.
    pub(super) fn clear(&mut self) {
        self.transcript.clear();
        self.conversation.clear();
        self.memory.clear();
    }

    /// Writes messages and settings to a file; returns the number of messages.
    ///
    /// # Errors
    /// A file that cannot be written, or an existing one that is no saved conversation.
    pub(super) fn save(&self, path: &Path) -> Result<usize> {
        let messages = self.transcript.messages();
        saved::save(path, messages, &self.settings).map(|()| messages.len())
    }

    /// Replaces the conversation with a saved one; returns the number of messages.
    ///
    /// # Errors
    /// A file that cannot be read or is no saved conversation; nothing has changed then.
    pub(super) fn load(&mut self, path: &Path) -> Result<usize> {
        let (messages, settings) = saved::load(path, &self.settings)?;
        (self.transcript, self.settings) = (Transcript::new(messages), settings);
        // The engine's prefix cache may still hold a prefix of the new messages.
        self.conversation.clear();
        self.memory.clear();
        Ok(self.transcript.messages().len())
    }

    /// Statistics of the last answer and of the context, as text (`/stats`).
    pub(super) fn statistics(&self) -> String {
        let mut text = String::new();
        if let Some(Turn { completion, .. }) = self.turns.last() {
            let Completion { prompt_tokens, cached_tokens, tokens, timings, finish_reason, .. } = completion;
            let speed = |speed: Option<f64>| speed.map_or(String::new(), |speed| format!(" at {speed:.1}/s"));
            text.push_str(&format!(
                "answer {}: {prompt_tokens} prompt tokens, {cached_tokens} known, {} computed{}; {} generated{}{}{}{}; {}\n",
                self.turns.len(),
                prompt_tokens - cached_tokens,
                speed(timings.prefill_tok_s),
                tokens.len(),
                speed(timings.decode_tok_s),
                thought(completion),
                drafts(completion),
                timings.ttft_ms.map_or(String::new(), |ms| format!("; first after {ms:.0} ms")),
                finish_reason.name(),
            ));
        }
        let forgotten = self.transcript.forgotten();
        text.push_str(&format!(
            "context: {} of {} tokens, {} of keys and values as {}; {} messages, {forgotten} of them no longer sent\n",
            self.conversation.len(),
            self.model.backend().context_length(),
            output::bytes(self.conversation.kv_bytes() as u64),
            self.model.backend().kv_policy(),
            self.transcript.messages().len(),
        ));
        text
    }

    /// Writes the JSON document to standard output.
    ///
    /// # Errors
    /// Standard output that cannot be written.
    pub(super) fn write_json(&self) -> Result<()> {
        let Self { transcript, settings, turns, model, session, .. } = self;
        let load_ms = output::rounded(model.load_time().as_secs_f64() * 1e3);
        let turns = turns.iter().map(TurnDocument::from).collect();
        output::write_json(&Document {
            messages: transcript.messages(),
            settings: settings.into(),
            session: session.as_ref().map(Session::id),
            turns,
            load_ms,
        })
    }
}

/// Tokens of an answer's thinking, as text; empty without any.
fn thought(completion: &Completion) -> String {
    match completion.reasoning_tokens {
        0 => String::new(),
        tokens => format!(", {tokens} of them thinking"),
    }
}

/// Drafts of an answer, as text; empty without any.
fn drafts(completion: &Completion) -> String {
    match completion {
        Completion { drafted_tokens: 0, .. } => String::new(),
        Completion { drafted_tokens, accepted_tokens, .. } => {
            format!(", {accepted_tokens} of {drafted_tokens} drafts accepted")
        }
    }
}

fn nothing_to(action: &str) -> Error {
    Error::ChatCommand {
        reason: format!("there is nothing to {action}: the conversation has no message yet"),
    }
}
