//! KV cache of a simulation: blocks, and a prefix cache over chains of block hashes.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use super::random::mix;
use super::traffic::Arrival;

/// Order of eviction: least recently used first, of one chain the last block first.
type Idle = (u64, Reverse<usize>, u64);

#[derive(Debug)]
struct Block {
    references: usize,
    depth: usize,
    /// Prefix of the block; `None` behind the prefix of its request.
    prefix: Option<u64>,
    /// Time of the last release.
    stamp: u64,
}

/// A block that entered the prefix cache, or left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    /// Prefix of the block; `None` behind the prefix of its request.
    pub(super) prefix: Option<u64>,
    pub(super) is_stored: bool,
}

/// Blocks of a fixed number of tokens.
#[derive(Debug)]
pub(super) struct Memory {
    /// Changes since the owner last took them; `None` if nobody wants them.
    pub(super) changes: Option<Vec<Change>>,
    pub(super) block_tokens: usize,
    capacity: usize,
    /// Blocks that belong to one sequence.
    own: usize,
    cached: HashMap<u64, Block>,
    idle: BTreeSet<Idle>,
    clock: u64,
}

/// Blocks of a running sequence.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// First blocks of its chain, in the prefix cache.
    cached: usize,
    own: usize,
}

/// Prefix of a request while block `depth` lies inside it.
fn prefix(arrival: &Arrival, depth: usize, block_tokens: usize) -> Option<u64> {
    arrival.request.prefix.filter(|_| (depth + 1) * block_tokens <= arrival.prefix_tokens)
}

/// Hash of block `depth` of a request: that of its prefix while the block lies inside it.
fn hash(arrival: &Arrival, depth: usize, block_tokens: usize) -> u64 {
    let own = || mix(arrival.request.id.0 ^ 0x5bd1_e995);
    let chain = prefix(arrival, depth, block_tokens).unwrap_or_else(own);
    mix(chain ^ mix(depth as u64 + 1))
}

impl Memory {
    pub(super) fn new(tokens: usize, block_tokens: usize) -> Self {
        let block_tokens = block_tokens.max(1);
        let capacity = tokens / block_tokens;
        Self {
            changes: None,
            block_tokens,
            capacity,
            own: 0,
            cached: HashMap::new(),
            idle: BTreeSet::new(),
            clock: 0,
        }
    }

    /// Tokens of blocks that no sequence holds.
    pub(super) fn free_tokens(&self) -> usize {
        let held = self.own + self.cached.len() - self.idle.len();
        self.capacity.saturating_sub(held) * self.block_tokens
    }

    /// True if no more blocks are in use than there are.
    pub(super) fn is_within_capacity(&self) -> bool {
        self.own + self.cached.len() <= self.capacity
    }

    /// Leading tokens of a request in blocks that sequences hold.
    pub(super) fn held_tokens(&self, arrival: &Arrival) -> usize {
        let is_held = |depth: &usize| {
            let block = self.cached.get(&hash(arrival, *depth, self.block_tokens));
            block.is_some_and(|block| block.references > 0)
        };
        (0..).take_while(is_held).count() * self.block_tokens
    }

    /// Takes the leading blocks of a request that are cached; the number of their tokens, at most
    /// `known - 1`.
    pub(super) fn find(&mut self, arrival: &Arrival, known: usize, table: &mut Table) -> usize {
        let most = known.saturating_sub(1) / self.block_tokens;
        while table.cached < most && self.reference(hash(arrival, table.cached, self.block_tokens)) {
            table.cached += 1;
        }
        table.cached * self.block_tokens
    }

    fn note(&mut self, change: Change) {
        if let Some(changes) = &mut self.changes {
            changes.push(change);
        }
    }

    fn reference(&mut self, hash: u64) -> bool {
        let Some(block) = self.cached.get_mut(&hash) else { return false };
        if block.references == 0 {
            self.idle.remove(&(block.stamp, Reverse(block.depth), hash));
        }
        block.references += 1;
        true
    }

    /// Makes room for `tokens` in all; false if there is none, even after evictions.
    pub(super) fn grow(&mut self, table: &mut Table, tokens: usize) -> bool {
        let wanted = tokens.div_ceil(self.block_tokens).saturating_sub(table.cached + table.own);
        while self.own + self.cached.len() + wanted > self.capacity {
            let Some((_, _, hash)) = self.idle.pop_first() else { return false };
            if let Some(block) = self.cached.remove(&hash) {
                self.note(Change { prefix: block.prefix, is_stored: false });
            }
        }
        (self.own, table.own) = (self.own + wanted, table.own + wanted);
        true
    }

    /// Inserts the full blocks of a sequence with `tokens` tokens into the prefix cache.
    pub(super) fn publish(&mut self, arrival: &Arrival, tokens: usize, table: &mut Table) {
        while table.cached < tokens / self.block_tokens {
            let (depth, stamp) = (table.cached, self.clock);
            let hash = hash(arrival, depth, self.block_tokens);
            if !self.reference(hash) {
                let prefix = prefix(arrival, depth, self.block_tokens);
                self.cached.insert(hash, Block { references: 1, depth, prefix, stamp });
                self.note(Change { prefix, is_stored: true });
            }
            (table.own, self.own, table.cached) = (table.own - 1, self.own - 1, table.cached + 1);
        }
    }

    /// Gives the blocks of a sequence back; those in the prefix cache stay until they are evicted.
    pub(super) fn release(&mut self, arrival: &Arrival, table: &mut Table) {
        self.clock += 1;
        self.own -= table.own;
        for depth in 0..table.cached {
            let hash = hash(arrival, depth, self.block_tokens);
            if let Some(block) = self.cached.get_mut(&hash) {
                (block.references, block.stamp) = (block.references - 1, self.clock);
                if block.references == 0 {
                    self.idle.insert((block.stamp, Reverse(block.depth), hash));
                }
            }
        }
        *table = Table::default();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::request::{Request, RequestId, TenantId};

    fn arrival(id: u64, prefix: u64, prefix_tokens: usize, own: usize) -> Arrival {
        let request = Request {
            id: RequestId(id),
            tenant: TenantId(1),
            priority: 0,
            deadline: None,
            prompt_tokens: prefix_tokens + own,
            max_new_tokens: 1,
            prefix: Some(prefix),
        };
        Arrival { at: Duration::ZERO, request, prefix_tokens, output: 1, cancel_at: None }
    }

    /// LRU in a list, the least recently used first: leading blocks of prefixes, and own blocks.
    #[derive(Default)]
    struct Reference {
        blocks: Vec<(u64, usize)>,
    }

    impl Reference {
        /// Uses the `count` blocks of a chain after the `known` ones; of a chain the last block is
        /// older than the ones before it.
        fn use_chains(&mut self, chains: &[(u64, usize)], capacity: usize) {
            let used: Vec<(u64, usize)> =
                chains.iter().flat_map(|&(chain, count)| (0..count).map(move |at| (chain, at))).collect();
            self.blocks.retain(|block| !used.contains(block));
            let room = capacity - used.len();
            let excess = self.blocks.len().saturating_sub(room);
            self.blocks.drain(..excess);
            // The whole sequence is one chain: its own blocks lie behind the prefix.
            self.blocks.extend(used.into_iter().rev());
        }

        fn leading(&self, chain: u64) -> usize {
            (0..).take_while(|&at| self.blocks.contains(&(chain, at))).count()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

        /// Requests one after another: hits, contents and reported changes are those of a list.
        #[test]
        fn eviction_is_least_recently_used(
            requests in prop::collection::vec((0..6_u64, 0..5_usize, 1..40_usize), 1..60),
        ) {
            let (block, capacity) = (16, 12);
            let mut memory = Memory::new(block * capacity, block);
            memory.changes = Some(Vec::new());
            let (mut reference, mut told) = (Reference::default(), HashMap::<u64, i64>::new());
            for (id, &(prefix, blocks, own)) in requests.iter().enumerate() {
                // Own chains have names that no prefix has.
                let arrival = arrival(id as u64, prefix, blocks * block, own);
                let tokens = arrival.request.prompt_tokens;
                let mut table = Table::default();
                let found = memory.find(&arrival, tokens, &mut table);
                let most = ((tokens - 1) / block).min(blocks);
                prop_assert_eq!(found, reference.leading(prefix).min(most) * block);
                prop_assert!(memory.grow(&mut table, tokens));
                memory.publish(&arrival, tokens, &mut table);
                memory.release(&arrival, &mut table);
                // The last block, not full, is free again, but room was made for it.
                let partial = tokens.div_ceil(block) - tokens / block;
                let own_blocks = tokens / block - blocks;
                reference.use_chains(&[(prefix, blocks), (1000 + id as u64, own_blocks)], capacity - partial);
                for change in memory.changes.replace(Vec::new()).into_iter().flatten() {
                    let Some(prefix) = change.prefix else { continue };
                    *told.entry(prefix).or_default() += if change.is_stored { 1 } else { -1 };
                }
                for prefix in 0..6 {
                    let held = reference.blocks.iter().filter(|block| block.0 == prefix).count();
                    prop_assert_eq!(told.get(&prefix).copied().unwrap_or(0), held as i64);
                }
                prop_assert!(memory.is_within_capacity());
            }
        }
    }
}
