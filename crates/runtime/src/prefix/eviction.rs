//! Eviction of prefixes under memory pressure, which the page pool selects.

use std::sync::Arc;

use ruvllm_kv_cache::prefix::{Evicted, LeafEviction, LeafId, Leaves};
use ruvllm_kv_cache::{Block, StateSnapshot};
use ruvllm_memory::{Demand, Offer, OwnerId, PagePool, PressureOwner, Release, Rung, Use};

use super::PrefixCache;
use super::cost::ReuseCost;

/// Maximum number of blocks evicted per release call.
const MOST_AT_ONCE: usize = 16;

/// Leaves of the tree, offered to the page pool for eviction.
pub(super) struct PoolLeaves {
    pub(super) pool: PagePool,
    pub(super) owner: OwnerId,
    pub(super) block_tokens: usize,
    pub(super) has_files: bool,
    pub(super) cost: Arc<ReuseCost>,
}

impl Leaves<Block> for PoolLeaves {
    fn now(&self) -> Use {
        self.pool.now(Rung::Prefix)
    }

    /// Blocks of one leaf may be charged to several tenants; the last one, evicted first, decides.
    fn offer(&self, leaf: LeafId, blocks: &[Block], used: Use) {
        let Some(last) = blocks.last() else { return };
        let cost = self.cost.of_mib(last.bytes(), self.block_tokens, self.has_files);
        let offer = Offer { tenant: last.store().tenant(), rung: Rung::Prefix, cost, used };
        // Cannot fail: the block and its tenant are of this pool.
        let _ = self.pool.offer(self.owner, leaf.into(), offer);
    }
}

impl PrefixCache {
    /// Maximum number of blocks to evict now. At a watermark (not urgent) the write queue must have
    /// room for them, so that none is dropped.
    pub(super) fn most_blocks(&self, is_urgent: bool) -> usize {
        match &self.files {
            Some(files) if !files.at_once && !is_urgent => files.writer.queue().room().min(MOST_AT_ONCE),
            _ => MOST_AT_ONCE,
        }
    }

    /// Queues evicted blocks for writing, in spill mode and if reading them back would be faster
    /// than recomputing.
    fn spill(&self, evicted: &Evicted<Block, StateSnapshot>) {
        let Evicted { key, tokens, blocks, states } = evicted;
        let bytes: usize =
            blocks.iter().map(Block::bytes).chain(states.iter().map(StateSnapshot::bytes)).sum();
        let block_tokens = self.tree.block_tokens();
        if let Some(files) = self.files.as_ref().filter(|files| !files.at_once)
            && self.cost.reading_is_quicker(bytes as u64, blocks.len() * block_tokens)
        {
            files.write(key, tokens, blocks, block_tokens);
            for state in states {
                self.queue_state(&files.store, key, &tokens[..state.tokens()], state);
            }
        }
    }
}

impl PressureOwner for PrefixCache {
    fn release(&self, unit: u64, demand: Demand) -> Release {
        let most = self.most_blocks(demand.is_urgent);
        if most == 0 {
            return Release::Refused;
        }
        let Ok(leaf) = LeafId::try_from(unit) else { return Release::Gone };
        let count = |blocks: &[Block]| {
            let mut bytes = 0;
            let is_wanted = |block: &&Block| {
                let is_wanted = bytes < demand.bytes;
                bytes += block.bytes();
                is_wanted
            };
            blocks.iter().rev().take(most).take_while(is_wanted).count()
        };
        match self.tree.evict_leaf(leaf, demand.last_use, count) {
            LeafEviction::Evicted { evicted, has_rest } => {
                self.spill(&evicted);
                Release::Released { has_rest }
            }
            LeafEviction::State(_) => Release::Released { has_rest: true },
            LeafEviction::Used(used) => Release::Used(used),
            LeafEviction::Pinned => Release::Pinned,
            LeafEviction::Gone => Release::Gone,
        }
    }
}
