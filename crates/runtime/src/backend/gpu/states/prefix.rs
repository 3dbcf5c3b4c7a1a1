//! Prefix of a sequence whose layers keep a state, stored at borders of its prompt (ADR-0120).

use ruvllm_kv_cache::prefix::PrefixKey;
use ruvllm_text::TokenId;

use super::lease::StateLease;
use crate::backend::gpu::blocks::{BlockPool, Lease};
use crate::prefix::borders;

/// Tokens of a sequence that were computed as a prompt, and whom they are stored for.
#[derive(Debug)]
pub(in crate::backend::gpu) struct StatePrefix {
    key: PrefixKey,
    /// First tokens that are stored for all tenants.
    shared: usize,
    tokens: Vec<TokenId>,
}

impl StatePrefix {
    /// Prefix of a sequence that begins with the first `begun` tokens of `prompt`; `known` of them
    /// are stored, with or without a state behind them.
    pub(in crate::backend::gpu) fn new(
        (key, shared): (PrefixKey, usize),
        prompt: &[TokenId],
        (begun, known): (usize, usize),
        (state, block_tokens): (&StateLease, usize),
    ) -> Self {
        state.plan(borders(prompt.len(), [shared, known], begun, block_tokens));
        Self { key, shared, tokens: prompt[..begun].to_vec() }
    }

    /// Notes `tokens` behind the first `start`, which are computed as a prompt now.
    pub(in crate::backend::gpu) fn append(&mut self, start: usize, tokens: &[TokenId]) {
        self.tokens.truncate(start);
        self.tokens.extend_from_slice(tokens);
    }

    /// Forgets the tokens behind `len`.
    pub(in crate::backend::gpu) fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
    }

    /// Stores the borders of the last pass among the first `as_prompt` tokens.
    pub(in crate::backend::gpu) fn keep(
        &self,
        blocks: &BlockPool,
        (lease, state): (&Lease, &StateLease),
        as_prompt: usize,
    ) {
        for (border, slot) in state.take_at_borders() {
            let Some(tokens) = self.tokens.get(..border).filter(|_| border <= as_prompt) else { continue };
            blocks.keep_with_state(lease, &self.key, tokens, border <= self.shared, &slot);
            state.note_stored(border, &slot);
        }
    }
}
