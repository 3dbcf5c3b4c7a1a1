//! Leaves of the tree: the ends of prefixes that can be evicted, and their order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use ruvllm_memory::Use;

use super::Evicted;

/// A leaf of the tree: the end of one or more cached prompts. Another leaf may get the number
/// later.
pub type LeafId = u32;

/// An eviction order, to which a [`PrefixTree`](super::PrefixTree) offers its leaves: that of a
/// page pool, or [`Lru`].
pub trait Leaves<B>: Send + Sync {
    /// The present time.
    fn now(&self) -> Use;

    /// A leaf with these blocks can be evicted; it was last used at `used`. Called with the tree's
    /// lock held.
    ///
    /// Later uses are not reported: [`PrefixTree::evict_leaf`](super::PrefixTree::evict_leaf)
    /// returns them.
    fn offer(&self, leaf: LeafId, blocks: &[B], used: Use);

    /// Bytes on the heap.
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// Result of [`PrefixTree::evict_leaf`](super::PrefixTree::evict_leaf).
#[derive(Clone, Debug)]
pub enum LeafEviction<B, S = ()> {
    /// Blocks were taken out.
    Evicted {
        /// The blocks.
        evicted: Evicted<B, S>,
        /// `true` if the leaf has more.
        has_rest: bool,
    },
    /// A state was taken out whose blocks stay for states behind it. The leaf has more.
    State(S),
    /// The leaf was used later than asked for.
    Used(Use),
    /// A [`PrefixPin`](super::PrefixPin) holds it.
    Pinned,
    /// It is no longer a leaf.
    Gone,
}

/// The least recently used leaf first, for a tree without a page pool.
#[derive(Debug, Default)]
pub struct Lru {
    turn: AtomicU64,
    queue: Mutex<Queue>,
}

/// Offered leaves, the oldest on top. Each has at most one entry, which may be behind its last use.
#[derive(Debug, Default)]
struct Queue {
    heap: BinaryHeap<Reverse<(u64, LeafId)>>,
    is_queued: Vec<bool>,
}

impl Lru {
    /// The leaf that was offered with the least recent use, and the turn of that use.
    pub(super) fn pop(&self) -> Option<(u64, LeafId)> {
        let mut queue = self.queue.lock();
        let Reverse((turn, leaf)) = queue.heap.pop()?;
        queue.is_queued[leaf as usize] = false;
        Some((turn, leaf))
    }

    /// Puts a leaf into the queue, unless it is there.
    pub(super) fn push(&self, turn: u64, leaf: LeafId) {
        let mut queue = self.queue.lock();
        let index = leaf as usize;
        if queue.is_queued.len() <= index {
            queue.is_queued.resize(index + 1, false);
        }
        if !std::mem::replace(&mut queue.is_queued[index], true) {
            queue.heap.push(Reverse((turn, leaf)));
        }
    }

    #[cfg(test)]
    pub(super) fn holds(&self, leaf: LeafId) -> bool {
        let queue = self.queue.lock();
        let entries = queue.heap.iter().filter(|Reverse((_, other))| *other == leaf).count();
        let is_queued = queue.is_queued.get(leaf as usize) == Some(&true);
        assert_eq!(entries, usize::from(is_queued));
        is_queued
    }
}

impl<B> Leaves<B> for Lru {
    fn now(&self) -> Use {
        Use { inflation: 0, turn: self.turn.fetch_add(1, Relaxed) }
    }

    fn offer(&self, leaf: LeafId, _: &[B], used: Use) {
        self.push(used.turn, leaf);
    }

    fn heap_bytes(&self) -> usize {
        let queue = self.queue.lock();
        queue.heap.capacity() * size_of::<Reverse<(u64, LeafId)>>() + queue.is_queued.capacity()
    }
}
