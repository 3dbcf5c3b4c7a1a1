//! Multi-turn conversations with a backend.

use std::fmt;
use std::ops::ControlFlow;

use super::{InferenceBackend, measure, prepare};
use crate::backend::sequence::BackendSession;
use crate::cancel::CancelToken;
use crate::error::Result;
use crate::generate::Generation;
use crate::kept::Kept;
use crate::request::{Completion, GenerateRequest};

/// Requests to a backend on one sequence, which is kept between them: the common prefix is reused.
///
/// For an engine, [`Conversation`](crate::Conversation) also supports tenants, adapters and quality
/// targets.
pub struct BackendConversation<'b> {
    backend: &'b dyn InferenceBackend,
    kept: Kept<Box<dyn BackendSession + 'b>>,
}

impl<'b> BackendConversation<'b> {
    /// An empty conversation, whose sequence has the capacity of the backend's context length.
    pub fn new(backend: &'b dyn InferenceBackend) -> Self {
        Self { backend, kept: Kept::none() }
    }

    /// Generates text for one request: see [`InferenceBackend::generate_with`].
    ///
    /// # Errors
    /// As [`InferenceBackend::generate_with`]. After an error of the run the next request computes
    /// its whole prompt; a request refused before the run changes nothing.
    pub fn generate(
        &mut self,
        request: &GenerateRequest,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        let prepared = prepare(self.backend, request, cancel)?;
        let (mut session, present) = match self.kept.take() {
            Some(kept) => kept,
            None => (self.backend.session(self.backend.context_length())?, Vec::new()),
        };
        let mut generation = Generation::new(prepared, present);
        let reason = generation.run(&mut *session, cancel, on_text)?;
        let (completion, tokens) = generation.complete(reason, &*session);
        self.kept.put(session, tokens);
        Ok(completion)
    }

    /// Drops the sequence and frees its memory.
    pub fn clear(&mut self) {
        self.kept = Kept::none();
    }

    /// Tokens in the kept sequence.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// True if the conversation has no tokens.
    pub fn is_empty(&self) -> bool {
        self.kept.len() == 0
    }

    /// Bytes of keys and values of the kept sequence, in whole blocks.
    pub fn kv_bytes(&self) -> usize {
        measure::kv_bytes(self.backend, self.kept.len()).unwrap_or_default()
    }
}

/// Prints the number of tokens.
impl fmt::Debug for BackendConversation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendConversation").field("tokens", &self.kept.len()).finish_non_exhaustive()
    }
}
