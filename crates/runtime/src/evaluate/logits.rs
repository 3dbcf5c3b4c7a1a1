//! Logits of given token sequences.

use ruvllm_models::LogitsRows;
use ruvllm_text::TokenId;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::session::Session;

impl Engine {
    /// Logits at `positions` (any order, repeats allowed) of a token sequence: `[positions,
    /// vocab_size]`.
    ///
    /// # Errors
    /// [`Error::ContextTooLong`], [`Error::TokenOutOfRange`], [`Error::PositionOutOfRange`];
    /// [`Error::Cache`] and [`Error::Forward`] from the run.
    pub fn logits(&self, tokens: &[TokenId], positions: &[usize]) -> Result<Vec<f32>> {
        self.check_context("the sequence", tokens.len())?;
        self.check_tokens(tokens)?;
        if let Some(&position) = positions.iter().find(|&&position| position >= tokens.len()) {
            return Err(Error::PositionOutOfRange { position, tokens: tokens.len() });
        }
        let Some(&last) = positions.iter().max() else { return Ok(Vec::new()) };

        let vocab_size = self.config().vocab_size;
        let mut wanted = positions.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let mut out = vec![0.0; positions.len() * vocab_size];
        let mut session = Session::new(self, last + 1)?;
        for inputs in tokens[..=last].chunks(self.prefill_chunk) {
            let start = session.len();
            let first = wanted.partition_point(|&position| position < start);
            let end = wanted.partition_point(|&position| position < start + inputs.len());
            let rows: Vec<usize> = wanted[first..end].iter().map(|position| position - start).collect();
            let logits = session.forward(inputs, LogitsRows::At(&rows))?;
            for (slot, position) in out.chunks_exact_mut(vocab_size).zip(positions) {
                if let Ok(row) = wanted[first..end].binary_search(position) {
                    slot.copy_from_slice(&logits[row * vocab_size..][..vocab_size]);
                }
            }
        }
        Ok(out)
    }
}
