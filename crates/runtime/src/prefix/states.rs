//! Prefixes of models with layers that keep a state (ADR-0120): blocks up to a border, and the
//! snapshot of the state behind them.
//!
//! They stay in memory: files and transfers hold blocks alone.

use ruvllm_kv_cache::prefix::{PrefixKey, Scope};
use ruvllm_kv_cache::{Result, Sequence};
use ruvllm_text::TokenId;

use super::{PrefixCache, Reused};

impl PrefixCache {
    /// Begins an empty sequence with the longest cached prefix of `tokens` behind which a state is
    /// stored. Nothing if that is fewer than `least` tokens.
    ///
    /// # Errors
    /// If the sequence is not empty, has no room for the tokens or no memory for its state.
    pub(super) fn begin_with_state(
        &self,
        sequence: &mut Sequence,
        adapters: Option<[u8; 32]>,
        tokens: &[TokenId],
        least: usize,
    ) -> Result<Reused> {
        let key = self.key_of(sequence, adapters);
        let matched = self.tree.lookup_state(&key, tokens);
        let known_tokens = matched.known_tokens;
        let Some(state) = matched.state.filter(|_| matched.found.tokens >= least) else {
            return Ok(Reused { known_tokens, ..Reused::default() });
        };
        sequence.begin_with(&matched.found.blocks, &state)?;
        Ok(Reused { tokens: matched.found.tokens, known_tokens, _pin: matched.found.pin })
    }

    /// Stores the blocks of a sequence up to its border and a snapshot of the state there, for all
    /// tenants too if the border is within the first `shared_tokens`. False without a border or
    /// memory.
    pub(crate) fn keep_border(
        &self,
        sequence: &mut Sequence,
        adapters: Option<[u8; 32]>,
        tokens: &[TokenId],
        shared_tokens: usize,
    ) -> bool {
        let border = sequence.border();
        if border == 0 || sequence.released() > 0 {
            return false;
        }
        let tokens = &tokens[..border];
        let own = self.key_of(sequence, adapters);
        let shared = PrefixKey { scope: Scope::Shared, ..own.clone() };
        // A state is large: it is copied once, and only if it is not there.
        let mut snapshot = None;
        for key in [(border <= shared_tokens).then_some(shared), Some(own)].into_iter().flatten() {
            if self.tree.touch_state(&key, tokens) {
                continue;
            }
            if snapshot.is_none() {
                // Without room the prefix is computed again; requests do not wait for it.
                let Ok(Some(taken)) = sequence.border_snapshot() else { return false };
                snapshot = Some(taken);
            }
            let Some(state) = snapshot.clone() else { return false };
            let blocks = &sequence.share()[..border / self.tree.block_tokens()];
            self.tree.insert_state(&key, tokens, blocks, state);
        }
        true
    }
}
