//! Changes of the prefixes that requests can reuse, for routers of several engines.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ruvllm_kv_cache::prefix::{PrefixBlocks, PrefixChange, PrefixKey, PrefixWatch, Scope};
use ruvllm_memory::Tenant;
use ruvllm_text::TokenId;
use sha2::{Digest as _, Sha256};

use super::PrefixCache;

/// Number of a block: of its tokens and all before them, whoever computed it. It is the start of a
/// SHA-256.
pub type BlockHash = u64;

/// Change of the prefixes in memory that requests of a tenant can reuse.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrefixEvent {
    /// Everything told before is void: all blocks follow. The first event, and that of a reader who
    /// has fallen behind by a million tokens.
    Cleared,
    /// Blocks that are new, each behind the one before it.
    Stored {
        /// Block before the first; `None` at the beginning of a prompt.
        parent: Option<BlockHash>,
        /// The blocks.
        hashes: Vec<BlockHash>,
        /// Their tokens: as many as [`PrefixEvents::block_tokens`] each.
        tokens: Vec<TokenId>,
    },
    /// Blocks that were evicted.
    Removed {
        /// The blocks.
        hashes: Vec<BlockHash>,
    },
}

/// Reader of the changes of an engine's prefixes, made by
/// [`Engine::prefix_events`](crate::Engine::prefix_events).
///
/// Blocks are those of the model without adapters, in the engine's own KV policy, of one tenant and
/// of those shared by all. Blocks in a folder alone do not count: reading them back costs time.
pub struct PrefixEvents {
    cache: Arc<PrefixCache>,
    watch: PrefixWatch,
    tenant: Arc<str>,
    /// Number of scopes that have a block: it is there until the last one has lost it.
    scopes: HashMap<BlockHash, u32>,
}

impl PrefixCache {
    /// Changes from now on, after the blocks that are there.
    pub(crate) fn events(self: Arc<Self>, tenant: &Tenant) -> PrefixEvents {
        let watch = self.tree.watch();
        PrefixEvents { cache: self, watch, tenant: tenant.path().into(), scopes: HashMap::new() }
    }
}

impl PrefixEvents {
    /// Tokens of a block.
    pub fn block_tokens(&self) -> usize {
        self.cache.tree.block_tokens()
    }

    /// Events since the last call, in order; waits up to `patience` for the first change.
    pub fn next(&mut self, patience: Duration) -> Vec<PrefixEvent> {
        let changes = self.cache.tree.next_changes(&self.watch, patience);
        // Kernels that are swapped change the key.
        let own = self.cache.own_key(&self.tenant);
        let shared = PrefixKey { scope: Scope::Shared, ..own.clone() };
        let is_visible = |blocks: &PrefixBlocks| *blocks.key == own || *blocks.key == shared;
        let mut events = Vec::new();
        for change in changes {
            match change {
                PrefixChange::Cleared => {
                    self.scopes.clear();
                    events.push(PrefixEvent::Cleared);
                }
                PrefixChange::Stored(blocks) if is_visible(&blocks) => self.stored(&blocks, &mut events),
                PrefixChange::Removed(blocks) if is_visible(&blocks) => self.removed(&blocks, &mut events),
                PrefixChange::Stored(_) | PrefixChange::Removed(_) => {}
            }
        }
        events
    }

    fn stored(&mut self, blocks: &PrefixBlocks, events: &mut Vec<PrefixEvent>) {
        let size = self.block_tokens();
        let hashes = chain(&blocks.tokens, size);
        // Another scope may have the first ones already.
        let mut first = blocks.first;
        for (index, &hash) in hashes.iter().enumerate().skip(blocks.first) {
            let count = self.scopes.entry(hash).or_default();
            *count += 1;
            if *count > 1 && first == index {
                first += 1;
            }
        }
        if first < hashes.len() {
            events.push(PrefixEvent::Stored {
                parent: first.checked_sub(1).map(|before| hashes[before]),
                hashes: hashes[first..].to_vec(),
                tokens: blocks.tokens[first * size..].to_vec(),
            });
        }
    }

    fn removed(&mut self, blocks: &PrefixBlocks, events: &mut Vec<PrefixEvent>) {
        let hashes = chain(&blocks.tokens, self.block_tokens());
        let mut gone = Vec::new();
        for hash in hashes.into_iter().skip(blocks.first) {
            match self.scopes.get_mut(&hash) {
                Some(count) if *count > 1 => *count -= 1,
                Some(_) => {
                    self.scopes.remove(&hash);
                    gone.push(hash);
                }
                // Of a time when kernels were others.
                None => {}
            }
        }
        if !gone.is_empty() {
            events.push(PrefixEvent::Removed { hashes: gone });
        }
    }
}

impl fmt::Debug for PrefixEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefixEvents").field("blocks", &self.scopes.len()).finish_non_exhaustive()
    }
}

/// Hashes of the blocks of a prefix.
fn chain(tokens: &[TokenId], block_tokens: usize) -> Vec<BlockHash> {
    let mut before = [0; 8];
    let hash = |block: &[TokenId]| {
        let mut sha = Sha256::new_with_prefix(before);
        block.iter().for_each(|token| sha.update(token.to_le_bytes()));
        let digest: [u8; 32] = sha.finalize().into();
        before.copy_from_slice(&digest[..8]);
        BlockHash::from_le_bytes(before)
    };
    tokens.chunks_exact(block_tokens).map(hash).collect()
}
