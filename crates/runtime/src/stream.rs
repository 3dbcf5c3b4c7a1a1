//! Generated text as an iterator. Each call of `next` computes, in the caller's thread, until there
//! is text: there is no thread and no queue, and nothing runs between the calls.

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
    /// Generates text for a prompt or a whole [`GenerateRequest`], as an iterator over its pieces.
    ///
    /// The prompt is encoded here and computed with the first call of `next`. Time to first token
    /// counts from here.
    ///
    /// # Errors
    /// [`Error`](crate::Error)s that [`generate_with`](Self::generate_with) reports before anything
    /// is computed. Those of the run come from the iterator, as its last item.
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
    /// Whole characters that belong to no stop string; never empty.
    pub text: String,
    /// Ids generated since the chunk before: mostly one; more if text was held back, none for held
    /// back text at the end.
    pub tokens: Vec<TokenId>,
}

impl fmt::Display for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Iterator over the text of a generation: see [`Engine::stream`].
///
/// The pieces are those of [`Engine::generate_with`], and joined they are the completion's text.
/// After an error there are no more. Dropping the stream ends the generation as cancelling it does:
/// its memory is free, and what was computed can serve as a prefix of later requests.
pub struct TextStream<'e> {
    engine: &'e Engine,
    /// `None` once it has ended.
    running: Option<Running<'e>>,
    cancel: CancelToken,
    completion: Option<Completion>,
}

struct Running<'e> {
    session: Session<'e>,
    generation: Generation<'e>,
    /// Generated ids that chunks have named.
    given: usize,
}

impl TextStream<'_> {
    /// A token that ends this generation from another thread, also during a long prefill.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// The result; `None` before the iterator's end and after an error.
    pub fn completion(&self) -> Option<&Completion> {
        self.completion.as_ref()
    }

    /// Ends the generation where it is and returns the result; `None` after an error. Before the
    /// iterator's end the reason is [`FinishReason::Cancelled`].
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
    /// The text of the last step, if there is any.
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

/// Keeps what was computed as a prefix of later requests, unless the thread panics.
impl Drop for TextStream<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end(FinishReason::Cancelled);
        }
    }
}

/// Prints the state; the model would be too long.
impl fmt::Debug for TextStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextStream")
            .field("tokens", &self.running.as_ref().map(|running| running.generation.tokens().len()))
            .field("completion", &self.completion)
            .finish_non_exhaustive()
    }
}
