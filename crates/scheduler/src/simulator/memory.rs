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
    /// Time of the last release.
    stamp: u64,
}

/// Blocks of a fixed number of tokens.
#[derive(Debug)]
pub(super) struct Memory {
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

/// Hash of block `depth` of a request: that of its prefix while the block lies inside it.
fn hash(arrival: &Arrival, depth: usize, block_tokens: usize) -> u64 {
    let is_shared = (depth + 1) * block_tokens <= arrival.prefix_tokens;
    let chain = match arrival.request.prefix {
        Some(prefix) if is_shared => prefix,
        _ => mix(arrival.request.id.0 ^ 0x5bd1_e995),
    };
    mix(chain ^ mix(depth as u64 + 1))
}

impl Memory {
    pub(super) fn new(tokens: usize, block_tokens: usize) -> Self {
        let block_tokens = block_tokens.max(1);
        let capacity = tokens / block_tokens;
        Self { block_tokens, capacity, own: 0, cached: HashMap::new(), idle: BTreeSet::new(), clock: 0 }
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
            self.cached.remove(&hash);
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
                self.cached.insert(hash, Block { references: 1, depth, stamp });
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
