//! Counters of the tree.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Match, MatchEnd};

/// Counters and present size of a [`PrefixTree`](super::PrefixTree).
///
/// The lookups are the full hits and those that ended for one of the other reasons:
/// `lookups = full_hits + too_short + unknown_key + unknown_start + diverged + ended`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TreeStatistics {
    /// Lookups made.
    pub lookups: u64,
    /// Lookups that found all tokens but the last.
    pub full_hits: u64,
    /// Lookups that found some tokens, but not all.
    pub partial_hits: u64,
    /// Lookups of fewer than two tokens.
    pub too_short: u64,
    /// Lookups for which nothing was cached under the key.
    pub unknown_key: u64,
    /// Lookups whose first block was not known as a whole.
    pub unknown_start: u64,
    /// Lookups that diverged from cached prefixes after at least one block.
    pub diverged: u64,
    /// Lookups longer than the cached prefixes.
    pub ended: u64,
    /// Tokens found in whole blocks, to be shared.
    pub hit_tokens: u64,
    /// Tokens found in parts of blocks, to be copied.
    pub partial_tokens: u64,
    /// Tokens looked up and not found; the last token of every lookup is among them.
    pub missed_tokens: u64,
    /// Blocks that became part of the tree.
    pub inserted_blocks: u64,
    /// Blocks given to `insert` whose tokens the tree already had blocks for.
    pub known_blocks: u64,
    /// Blocks that were not full, replaced by fuller ones.
    pub replaced_blocks: u64,
    /// Blocks taken out by `evict`.
    pub evicted_blocks: u64,
    /// States that became part of the tree.
    pub inserted_states: u64,
    /// States taken out by `evict`.
    pub evicted_states: u64,
    /// Keys with a tree now.
    pub keys: usize,
    /// Nodes in all trees now, roots included.
    pub nodes: usize,
    /// Blocks in all trees now.
    pub blocks: usize,
    /// States in all trees now.
    pub states: usize,
    /// Tokens of these blocks.
    pub tokens: usize,
    /// Bytes on the heap that the trees take now, without what the blocks' handles point at.
    pub bytes: usize,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    lookups: AtomicU64,
    full_hits: AtomicU64,
    partial_hits: AtomicU64,
    too_short: AtomicU64,
    unknown_key: AtomicU64,
    unknown_start: AtomicU64,
    diverged: AtomicU64,
    ended: AtomicU64,
    hit_tokens: AtomicU64,
    partial_tokens: AtomicU64,
    missed_tokens: AtomicU64,
    inserted_blocks: AtomicU64,
    known_blocks: AtomicU64,
    replaced_blocks: AtomicU64,
    evicted_blocks: AtomicU64,
    inserted_states: AtomicU64,
    evicted_states: AtomicU64,
}

impl Counters {
    pub(super) fn count_lookup<B>(&self, n_tokens: usize, found: &Match<B>) {
        let partial = found.partial.as_ref().map_or(0, |partial| partial.tokens);
        let hit = found.tokens + partial;
        let end = match found.end {
            MatchEnd::Complete => &self.full_hits,
            MatchEnd::TooShort => &self.too_short,
            MatchEnd::UnknownKey => &self.unknown_key,
            MatchEnd::UnknownStart => &self.unknown_start,
            MatchEnd::Diverged { .. } => &self.diverged,
            MatchEnd::Ended { .. } => &self.ended,
        };
        add(&self.lookups, 1);
        add(end, 1);
        if hit > 0 && found.end != MatchEnd::Complete {
            add(&self.partial_hits, 1);
        }
        add(&self.hit_tokens, found.tokens);
        add(&self.partial_tokens, partial);
        add(&self.missed_tokens, n_tokens - hit);
    }

    pub(super) fn count_insert(&self, known: usize, new: usize, replaced: usize) {
        add(&self.known_blocks, known);
        add(&self.inserted_blocks, new);
        add(&self.replaced_blocks, replaced);
    }

    pub(super) fn count_state(&self) {
        add(&self.inserted_states, 1);
    }

    pub(super) fn count_evicted(&self, blocks: usize, states: usize) {
        add(&self.evicted_blocks, blocks);
        add(&self.evicted_states, states);
    }

    /// The counters, without the present size.
    pub(super) fn read(&self) -> TreeStatistics {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        TreeStatistics {
            lookups: get(&self.lookups),
            full_hits: get(&self.full_hits),
            partial_hits: get(&self.partial_hits),
            too_short: get(&self.too_short),
            unknown_key: get(&self.unknown_key),
            unknown_start: get(&self.unknown_start),
            diverged: get(&self.diverged),
            ended: get(&self.ended),
            hit_tokens: get(&self.hit_tokens),
            partial_tokens: get(&self.partial_tokens),
            missed_tokens: get(&self.missed_tokens),
            inserted_blocks: get(&self.inserted_blocks),
            known_blocks: get(&self.known_blocks),
            replaced_blocks: get(&self.replaced_blocks),
            evicted_blocks: get(&self.evicted_blocks),
            inserted_states: get(&self.inserted_states),
            evicted_states: get(&self.evicted_states),
            ..TreeStatistics::default()
        }
    }
}

fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Relaxed);
}
