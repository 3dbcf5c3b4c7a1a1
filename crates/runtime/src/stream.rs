//! Generated text as an iterator. `next` computes in the caller's thread until there is text;
//! nothing runs between calls, there is no background thread and no queue.

use std::fmt;
use std::iter::FusedIterator;

use ruvllm_text::TokenId;

use crate::cancel::CancelToken;
use crate::engine::Engine;
use crate::error::Result;
use crate::generate::Generation;
use crate::request::{Completion, FinishReason, GenerateRequest};
use crate::session::Session;

impl Engine {
    /// Generates text for a prompt or a [`GenerateRequest`], as an iterator over its pieces.
    ///
    /// The prompt is encoded here; the first call of `next` runs the prefill. TTFT counts from
    /// here.
    ///
    /// # Errors
    /// [`Error`](crate::Error)s of [`generate_with`](Self::generate_with) from before the run.
    /// Errors of the run are the iterator's last item.
    ///
    /// # Examples
    /// ```no_run
    /// # let engine = ruvllm::Engine::open("model.gguf")?;
    /// let mut stream = engine.stream("Once upon a time")?;
    /// for chunk in &mut stream {
    ///     print!("{}", chunk?.text);
    /// }
    /// let completion = stream.completion().expect("the stream has ended without an error");
    /// println!("\n[{}, {} tokens]", completion.finish_reason, completion.tokens.len());
    /// # Ok::<(), ruvllm::Error>(())
    /// ```
    pub fn stream(&self, request: impl Into<GenerateRequest>) -> Result<TextStream<'_>> {
        let (request, cancel) = (request.into(), CancelToken::new());
        let prepared = self.prepare(&request, &cancel)?;
        let session = Session::for_request(self, &request, prepared.capacity())?;
        let generation = Generation::new(prepared, Vec::new());
        Ok(TextStream {
            engine: self,
            running: Some(Running { session, generation, given: 0 }),
            cancel,
            completion: None,
        })
    }
}

/// A piece of generated text.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chunk {
    /// Whole characters outside of stop sequences; never empty.
    pub text: String,
    /// Token ids generated since the previous chunk: mostly one; more after text was held back,
    /// none if the text was held back until the end.
    pub tokens: Vec<TokenId>,
}

impl fmt::Display for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Iterator over the text of a generation: see [`Engine::stream`].
///
/// Yields the pieces of [`Engine::generate_with`]; joined they are the completion's text. An error
/// is the last item. Dropping the stream cancels the generation: its memory is freed, and the
/// computed tokens stay in the prefix cache.
pub struct TextStream<'e> {
    engine: &'e Engine,
    /// `None` after the end.
    running: Option<Running<'e>>,
    cancel: CancelToken,
    completion: Option<Completion>,
}

struct Running<'e> {
    session: Session<'e>,
    generation: Generation<'e>,
    /// Number of generated ids returned in chunks.
    given: usize,
}

impl TextStream<'_> {
    /// Token that cancels this generation from another thread, also during a long prefill.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// The result; `None` before the iterator's end and after an error.
    pub fn completion(&self) -> Option<&Completion> {
        self.completion.as_ref()
    }

    /// Ends the generation and returns its result; `None` after an error. The finish reason is
    /// [`FinishReason::Cancelled`] if the iterator had not ended.
    pub fn finish(mut self) -> Option<Completion> {
        self.end(FinishReason::Cancelled);
        self.completion.take()
    }

    fn end(&mut self, reason: FinishReason) {
        if let Some(Running { mut session, generation, .. }) = self.running.take() {
            self.completion = Some(self.engine.complete(generation, reason, &mut session).0);
        }
    }
}

impl Iterator for TextStream<'_> {
    type Item = Result<Chunk>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let running = self.running.as_mut()?;
            let reason = match running.generation.advance(&mut running.session, &self.cancel) {
                Ok(reason) => reason,
                Err(error) => {
                    self.running = None;
                    return Some(Err(error));
                }
            };
            let chunk = running.chunk();
            if let Some(reason) = reason {
                self.end(reason);
            }
            if let Some(chunk) = chunk {
                return Some(Ok(chunk));
            }
        }
    }
}

impl FusedIterator for TextStream<'_> {}

impl Running<'_> {
    /// Text and new token ids of the last step; `None` without text.
    fn chunk(&mut self) -> Option<Chunk> {
        let text = self.generation.piece();
        if text.is_empty() {
            return None;
        }
        let tokens = self.generation.tokens();
        let chunk = Chunk { text: text.to_owned(), tokens: tokens[self.given..].to_vec() };
        self.given = tokens.len();
        Some(chunk)
    }
}

/// Inserts the computed tokens into the prefix cache, unless the thread panics.
impl Drop for TextStream<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end(FinishReason::Cancelled);
        }
    }
}

/// Prints the number of tokens and the completion.
impl fmt::Debug for TextStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextStream")
            .field("tokens", &self.running.as_ref().map(|running| running.generation.tokens().len()))
            .field("completion", &self.completion)
            .finish_non_exhaustive()
    }
}
