//! Observations of a text: hidden state, candidates and target at each of its tokens.

use std::ops::Range;

use ruvllm_models::LogitsRows;
use ruvllm_sona::instant::{Observations, Scratch};
use ruvllm_text::TokenId;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::session::Session;

impl Engine {
    /// Runs a text through the model, without adapters, and keeps what learning needs at `targets`:
    /// positions of tokens that are taught, from 1 on. Each keeps its `candidates` most likely
    /// tokens.
    ///
    /// The forward pass runs in this thread, beside the requests, in chunks of the prefill.
    ///
    /// # Errors
    /// [`Error::ContextTooLong`], [`Error::TokenOutOfRange`], [`Error::PositionOutOfRange`] for
    /// targets that are no positions of the text or begin at 0; [`Error::Learning`];
    /// [`Error::Cache`] and [`Error::Forward`] from the run.
    pub fn observe(
        &self,
        tokens: &[TokenId],
        targets: Range<usize>,
        candidates: usize,
    ) -> Result<Observations> {
        self.check_context("the text", tokens.len())?;
        self.check_tokens(tokens)?;
        let wrong = |position| Error::PositionOutOfRange { position, tokens: tokens.len() };
        if targets.start == 0 && !targets.is_empty() {
            return Err(wrong(0));
        }
        if targets.end > tokens.len() {
            return Err(wrong(targets.end - 1));
        }
        let (config, kernels) = (self.config(), self.kernels());
        let mut observations =
            Observations::new(config.model_dim, candidates).map_err(|source| Error::Learning { source })?;
        if targets.is_empty() {
            return Ok(observations);
        }
        let mut session = Session::without_adapters(self, targets.end)?;
        let mut scratch = Scratch::default();
        // The token before a target predicts it; its state is kept.
        let wanted = targets.start - 1..targets.end - 1;
        for chunk in tokens[..wanted.end].chunks(self.core().prefill_chunk.min(self.scored_at_once())) {
            let start = session.len();
            let first = wanted.start.clamp(start, start + chunk.len());
            let rows = start + chunk.len() - first;
            let logits = if rows == 0 { LogitsRows::None } else { LogitsRows::Tail(rows) };
            session.forward(chunk, logits)?;
            let (hidden, logits) = (session.final_hidden(), session.logits());
            let states = hidden.chunks_exact(config.model_dim).zip(logits.chunks_exact(config.vocab_size));
            for ((state, logits), &target) in states.zip(&tokens[first + 1..]).take(rows) {
                observations
                    .push(&kernels, state, logits, target, &mut scratch)
                    .map_err(|source| Error::Learning { source })?;
            }
        }
        Ok(observations)
    }
}
