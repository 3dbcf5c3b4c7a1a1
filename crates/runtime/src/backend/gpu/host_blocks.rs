//! Stored prefixes in memory of the host, for which the device has no room (ADR-0154).

use std::sync::Arc;

use ruvllm_kv_cache::prefix::{Evicted, Lru, PrefixKey, PrefixTree, TreeStatistics};
use ruvllm_text::TokenId;

use super::free_blocks::{Block, FreeBlocks};

/// Direction of copies between memory of the device and of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    ToHost,
    ToDevice,
}

/// Copies of blocks between device and host.
pub(super) trait Transfers {
    /// Copies blocks, pairs of the numbers of a source and a target, before anything that is
    /// launched later; false if the device has failed.
    fn copy(&self, direction: Direction, pairs: &[(u32, u32)]) -> bool;
}

/// Blocks in memory of the host and the prefixes in them, each with its beginning.
#[derive(Debug)]
pub(super) struct HostBlocks {
    state: Arc<FreeBlocks>,
    prefixes: PrefixTree<Arc<Block>>,
}

impl HostBlocks {
    /// `blocks` free blocks of `block_tokens` tokens.
    pub(super) fn new(blocks: u32, block_tokens: usize) -> Self {
        Self { state: FreeBlocks::new(blocks), prefixes: PrefixTree::new(block_tokens) }
    }

    /// Counters of the prefixes.
    pub(super) fn statistics(&self) -> TreeStatistics {
        self.prefixes.statistics()
    }

    /// Copies a prefix whose end leaves the device, whose other blocks are in the tree `device`: as
    /// much of it as is not here. Nothing is kept of one that is longer than all blocks.
    pub(super) fn spill<S: Clone>(
        &self,
        evicted: &Evicted<Arc<Block>, S>,
        device: &PrefixTree<Arc<Block>, Lru, S>,
        transfers: &dyn Transfers,
    ) {
        let Evicted { key, tokens, blocks: last, .. } = evicted;
        let whole = tokens.len() / self.prefixes.block_tokens();
        let mut targets = self.prefixes.peek(key, tokens).blocks;
        targets.truncate(whole);
        let mut sources = device.peek(key, tokens).blocks;
        sources.truncate(whole.saturating_sub(last.len()));
        sources.extend(last.iter().map(Arc::clone));
        if sources.len() != whole || targets.len() == whole {
            return;
        }
        let known = targets.len();
        let Some(fresh) = self.take(whole - known) else { return };
        targets.extend(fresh);
        let pairs = || sources.iter().zip(&targets).skip(known).map(|(from, to)| (from.index, to.index));
        if transfers.copy(Direction::ToHost, &pairs().collect::<Vec<_>>()) {
            self.prefixes.insert(key, tokens, &targets);
        }
    }

    /// The blocks of the longest prefix of `prompt` here, the last token left out.
    pub(super) fn find(&self, key: &PrefixKey, prompt: &[TokenId]) -> Vec<Arc<Block>> {
        self.prefixes.lookup(key, prompt).blocks
    }

    /// Takes free blocks, those of the least recently used prefixes if need be.
    fn take(&self, n: usize) -> Option<Vec<Arc<Block>>> {
        loop {
            let missing = match self.state.take(n) {
                Ok(taken) => return Some(taken),
                Err(missing) => missing,
            };
            if self.prefixes.evict(missing).is_empty() {
                return None;
            }
        }
    }
}
