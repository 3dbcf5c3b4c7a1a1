//! Multi-turn conversations: the sequence is kept between requests, so that each computes only new
//! tokens.

use std::fmt;
use std::ops::ControlFlow;

use crate::cancel::CancelToken;
use crate::engine::Engine;
use crate::error::Result;
use crate::request::{Completion, GenerateRequest, SequenceSize};
use crate::session_table::SessionId;

impl Engine {
    /// Starts an empty conversation.
    pub fn conversation(&self) -> Conversation<'_> {
        Conversation { engine: self, session: self.new_session(), size: SequenceSize::default() }
    }
}

/// Requests on one sequence, which is kept between them.
///
/// Each request contains its whole prompt, as for [`Engine::generate`], and gets the same answer.
/// The common prefix of the prompt and the kept sequence (earlier prompt and answer) is reused:
/// [`Completion::cached_tokens`] counts it, to the token, where the prefix cache shares whole
/// blocks. The sequence is truncated where the prompt differs.
///
/// # Example
/// ```no_run
/// use ruvllm::{Engine, Message, Prompt};
///
/// # fn main() -> Result<(), ruvllm::Error> {
/// let engine = Engine::open("model.gguf")?;
/// let mut conversation = engine.conversation();
/// let mut messages = Vec::new();
/// for question in ["What is the capital of France?", "And of Italy?"] {
///     messages.push(Message::user(question));
///     let answer = conversation.generate(Prompt::chat(messages.clone()))?;
///     println!("{} ({} tokens were known)", answer.text, answer.cached_tokens);
///     messages.push(Message::assistant(answer.text));
/// }
/// # Ok(())
/// # }
/// ```
pub struct Conversation<'e> {
    engine: &'e Engine,
    session: SessionId,
    /// Size of the kept sequence after the last request.
    size: SequenceSize,
}

impl Conversation<'_> {
    /// Generates text for a prompt or a whole request: see [`Engine::generate`].
    ///
    /// # Errors
    /// As [`generate_with`](Self::generate_with).
    pub fn generate(&mut self, request: impl Into<GenerateRequest>) -> Result<Completion> {
        self.generate_with(&request.into(), &CancelToken::new(), &mut |_| ControlFlow::Continue(()))
    }

    /// Generates text for one request, with a callback and cancellation: see
    /// [`Engine::generate_with`].
    ///
    /// # Errors
    /// As [`Engine::generate_with`]. After an error of the run the next request computes its whole
    /// prompt; a request refused before the run changes nothing.
    pub fn generate_with(
        &mut self,
        request: &GenerateRequest,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        let handle = self.engine.submit_in(request, Some(self.session), cancel)?;
        let before = std::mem::take(&mut self.size);
        let completion = handle.run(on_text)?;
        self.size = completion.sequence.unwrap_or(before);
        Ok(completion)
    }

    /// Drops the sequence and frees its memory. The engine's prefix cache stays.
    pub fn clear(&mut self) {
        self.engine.end_session(self.session);
        self.size = SequenceSize::default();
    }

    /// Tokens in the kept sequence.
    pub fn len(&self) -> usize {
        self.size.tokens
    }

    /// True if the conversation has no tokens.
    pub fn is_empty(&self) -> bool {
        self.size.tokens == 0
    }

    /// Bytes of keys and values of the kept sequence.
    pub fn kv_bytes(&self) -> usize {
        self.size.bytes
    }
}

/// Releases the kept sequence.
impl Drop for Conversation<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Prints the number of tokens.
impl fmt::Debug for Conversation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conversation").field("tokens", &self.size.tokens).finish_non_exhaustive()
    }
}
