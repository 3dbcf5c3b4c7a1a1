//! A request that runs: its text as an iterator, its result, and its end.

use std::fmt;
use std::iter::FusedIterator;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use ruvllm_text::TokenId;
use ruvllm_text::reasoning::AnswerParser;

use super::inbox::{Inbox, Pieces};
use crate::answer::OutputParser;
use crate::cancel::CancelToken;
use crate::error::{Error, Result};
use crate::request::{Completion, FinishReason};
use crate::sampler::Logprobs;

/// A piece of generated text.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Chunk {
    /// Whole characters that belong to no stop sequence; never empty.
    pub text: String,
    /// Ids generated since the chunk before: mostly one; more if text was held back, none for held
    /// back text at the end.
    pub tokens: Vec<TokenId>,
    /// Log-probabilities at the positions of `tokens`, as many; empty unless
    /// [`GenerateRequest::logprobs`](crate::GenerateRequest::logprobs) asks for them.
    pub logprobs: Vec<Logprobs>,
}

impl fmt::Display for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A submitted request: see [`Engine::submit`](crate::Engine::submit).
///
/// An iterator over the pieces of its text as they are generated: `next` waits for one. The pieces
/// joined are the completion's text. The request runs whether or not anybody reads. The first piece
/// is handed over at once; with steps below half a millisecond, those of 1 ms together. After an
/// error there are no more pieces. Dropping the handle cancels the request: within one
/// step its memory is free, and its computed tokens can serve as a prefix of later requests.
pub struct RequestHandle {
    pub(super) inbox: Arc<Inbox>,
    cancel: CancelToken,
    pieces: Pieces,
    /// Pieces that were read.
    read: usize,
    /// Length of the text and number of the ids that were read in all.
    given: (usize, usize),
    end: Option<Completion>,
    has_ended: bool,
    parser: Option<OutputParser>,
    prompt_tokens: usize,
}

impl RequestHandle {
    /// The handle of a request with a prompt of so many tokens, which `parser` divides.
    pub(crate) fn new(
        inbox: Arc<Inbox>,
        cancel: CancelToken,
        parser: Option<OutputParser>,
        prompt_tokens: usize,
    ) -> Self {
        let (pieces, end) = (Pieces::default(), None);
        Self { inbox, cancel, pieces, read: 0, given: (0, 0), end, has_ended: false, parser, prompt_tokens }
    }

    /// Tokens of the encoded prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// A parser that divides the pieces of text into thinking, content and tool calls, with the
    /// identifiers of [`Completion::tool_calls`]; `None` if all of the text is content.
    ///
    /// ```no_run
    /// # let engine = ruvllm::Engine::open("model.gguf")?;
    /// # let request = ruvllm::GenerateRequest::new("");
    /// let mut handle = engine.submit(request)?;
    /// let mut parser = handle.answer_parser();
    /// let mut events = Vec::new();
    /// for chunk in &mut handle {
    ///     if let Some(parser) = &mut parser {
    ///         parser.push(&chunk?.text, &mut events);
    ///     }
    ///     for event in events.drain(..) {
    ///         println!("{event:?}"); // a delta of the chat-completions API
    ///     }
    /// }
    /// # Ok::<(), ruvllm::Error>(())
    /// ```
    /// [`AnswerParser::finish`] gives what is held back at the end.
    pub fn answer_parser(&self) -> Option<AnswerParser> {
        self.parser.as_ref().map(OutputParser::start)
    }

    /// A token that ends the request from another thread, also during a long prefill.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// Log-probabilities of the prompt ([`Completion::prompt_logprobs`]), from the first piece on;
    /// `None` before the prompt is computed, and if the request does not ask for them.
    pub fn prompt_logprobs(&self) -> Option<Arc<[Logprobs]>> {
        self.inbox.prompt_logprobs()
    }

    /// The result; `None` before the iterator's end and after an error.
    pub fn completion(&self) -> Option<&Completion> {
        self.end.as_ref()
    }

    /// Takes the result, once the iterator has ended.
    pub(super) fn take_completion(&mut self) -> Option<Completion> {
        self.end.take()
    }

    /// The next piece if it is there already; `None` if not. At the end of the text
    /// [`has_ended`](Self::has_ended) is true.
    pub fn try_next(&mut self) -> Option<Result<Chunk>> {
        self.advance(false).map(|range| range.map(|range| self.chunk(range)))
    }

    /// True once the iterator has ended.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Calls `notify` from a thread of the engine whenever a piece or the result has arrived, and
    /// now if something is there: the way to wake an async task, which then calls
    /// [`try_next`](Self::try_next). It must be quick, and must not call the engine.
    pub fn on_arrival(&self, notify: impl Fn() + Send + Sync + 'static) {
        self.inbox.set_notify(Arc::new(notify));
    }

    /// Waits for the whole text; pieces that were not read are part of the result.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn wait(mut self) -> Result<Completion> {
        match self.end.take() {
            Some(completion) => Ok(completion),
            None if self.has_ended => Err(Error::EngineStopped),
            None => {
                self.has_ended = true;
                self.inbox.wait_for_end()
            }
        }
    }

    /// Ends the request and returns the result. If the iterator has not ended, the text is that of
    /// the pieces that were read, and the reason is [`FinishReason::Cancelled`].
    ///
    /// # Errors
    /// Errors of the run; [`Error::EngineStopped`] after an error that the iterator has given.
    pub fn finish(mut self) -> Result<Completion> {
        if self.has_ended {
            return self.end.take().ok_or(Error::EngineStopped);
        }
        self.cancel.cancel();
        self.has_ended = true;
        let mut completion = self.inbox.wait_for_end()?;
        let (text, tokens) = self.given;
        completion.text.truncate(text);
        completion.tokens.truncate(tokens);
        completion.logprobs.truncate(tokens);
        completion.reasoning_tokens = completion.reasoning_tokens.min(tokens);
        completion.finish_reason = FinishReason::Cancelled;
        completion.stop_sequence = None;
        if let Some(parser) = self.parser.take() {
            completion.parse(&parser);
        }
        Ok(completion)
    }

    /// Gives each piece to `on_text` until the end, or until it breaks, which ends the request.
    ///
    /// # Errors
    /// Errors of the run.
    pub(crate) fn run(mut self, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) -> Result<Completion> {
        while let Some(range) = self.advance(true) {
            let (text, _) = range?;
            if on_text(&self.pieces.text[text]).is_break() {
                return self.finish();
            }
        }
        self.finish()
    }

    /// Gives the pieces that have arrived to `on_text`, until it breaks.
    ///
    /// # Errors
    /// Errors of the run.
    pub(crate) fn drain(
        &mut self,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        while let Some(range) = self.advance(false) {
            let (text, _) = range?;
            if on_text(&self.pieces.text[text]).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Places of the next piece in the buffers.
    fn advance(&mut self, wait: bool) -> Option<Result<(Range<usize>, Range<usize>)>> {
        if self.has_ended {
            return None;
        }
        if self.read == self.pieces.ends.len() {
            self.read = 0;
            match self.inbox.take(&mut self.pieces, wait) {
                Some(Ok(completion)) => {
                    (self.end, self.has_ended) = (Some(completion), true);
                    return None;
                }
                Some(Err(error)) => {
                    self.has_ended = true;
                    return Some(Err(error));
                }
                None if self.pieces.ends.is_empty() => return None,
                None => {}
            }
        }
        let start = self.read.checked_sub(1).map_or((0, 0), |before| self.pieces.ends[before]);
        let end = self.pieces.ends[self.read];
        self.read += 1;
        let (text, tokens) = (start.0..end.0, start.1..end.1);
        self.given = (self.given.0 + text.len(), self.given.1 + tokens.len());
        Some(Ok((text, tokens)))
    }

    fn chunk(&self, (text, tokens): (Range<usize>, Range<usize>)) -> Chunk {
        let Pieces { text: all, tokens: ids, logprobs, .. } = &self.pieces;
        Chunk {
            text: all[text].to_owned(),
            logprobs: logprobs.get(tokens.clone()).unwrap_or_default().to_vec(),
            tokens: ids[tokens].to_vec(),
        }
    }
}

impl Iterator for RequestHandle {
    type Item = Result<Chunk>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance(true).map(|range| range.map(|range| self.chunk(range)))
    }
}

impl FusedIterator for RequestHandle {}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        if !self.has_ended {
            self.cancel.cancel();
        }
    }
}

/// Prints the state; the text would be too long.
impl fmt::Debug for RequestHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHandle")
            .field("read_tokens", &self.given.1)
            .field("completion", &self.end)
            .finish_non_exhaustive()
    }
}
