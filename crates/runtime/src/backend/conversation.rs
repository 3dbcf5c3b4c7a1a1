//! Multi-turn conversations with a backend.

use std::fmt;
use std::ops::ControlFlow;

use super::requests::Requests;
use super::{InferenceBackend, measure};
use crate::cancel::CancelToken;
use crate::error::Result;
use crate::request::{Completion, GenerateRequest};
use crate::session_table::SessionId;

/// The one session of a conversation.
const SESSION: SessionId = SessionId(0);

/// Requests to a backend on one sequence, which is kept between them: the common prefix is reused.
///
/// For an engine, [`Conversation`](crate::Conversation) also supports tenants, adapters and quality
/// targets.
pub struct BackendConversation<'b> {
    backend: &'b dyn InferenceBackend,
    requests: Requests<'b, dyn InferenceBackend + 'b>,
    /// Tokens of the kept sequence.
    tokens: usize,
}

impl<'b> BackendConversation<'b> {
    /// An empty conversation, whose sequence has the capacity of the backend's context length.
    pub fn new(backend: &'b dyn InferenceBackend) -> Self {
        Self { backend, requests: Requests::new(backend), tokens: 0 }
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
        let completion = self.requests.run(request, Some(SESSION), cancel, on_text)?;
        self.tokens = completion.sequence.map_or(self.tokens, |sequence| sequence.tokens);
        Ok(completion)
    }

    /// Drops the sequence and frees its memory.
    pub fn clear(&mut self) {
        self.requests.end_session(SESSION);
        self.tokens = 0;
    }

    /// Tokens in the kept sequence.
    pub fn len(&self) -> usize {
        self.tokens
    }

    /// True if the conversation has no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    /// Bytes of keys and values of the kept sequence, in whole blocks.
    pub fn kv_bytes(&self) -> usize {
        measure::kv_bytes(self.backend, self.tokens).unwrap_or_default()
    }
}

/// Prints the number of tokens.
impl fmt::Debug for BackendConversation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendConversation").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}
