//! Changes of a tree's whole blocks, in their order, for those who keep a copy of its index.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::nodes::{NodeId, Nodes};
use super::{Leaves, PrefixTree};
use crate::prefix::PrefixKey;

/// Most tokens of changes that wait for a watch.
const MAX_WAITING_TOKENS: usize = 1 << 20;

/// Change of the whole blocks of a [`PrefixTree`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefixChange {
    /// Everything told before is void: the blocks of the tree follow. The first change of each
    /// watch, and of one that has fallen behind.
    Cleared,
    /// Blocks that are new.
    Stored(PrefixBlocks),
    /// Blocks that were evicted; those before them are still there.
    Removed(PrefixBlocks),
}

/// The last whole blocks of a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixBlocks {
    /// Key of their tree.
    pub key: Arc<PrefixKey>,
    /// The prefix from its first token on: whole blocks.
    pub tokens: Vec<u32>,
    /// Index of the first of the blocks; they reach to the end of the prefix.
    pub first: usize,
}

/// Changes that wait for their reader. The tree forgets a watch that is dropped.
#[derive(Clone, Debug)]
pub struct PrefixWatch {
    waiting: Arc<Waiting>,
}

#[derive(Debug)]
pub(super) struct Waiting {
    queue: Mutex<Queue>,
    is_changed: Condvar,
}

#[derive(Debug)]
struct Queue {
    changes: VecDeque<PrefixChange>,
    tokens: usize,
    /// True if changes were dropped, or none was read yet: the next ones are those of the whole
    /// tree.
    is_behind: bool,
}

/// Watches of a tree.
#[derive(Debug, Default)]
pub(super) struct Watches(Mutex<Vec<Weak<Waiting>>>);

impl Watches {
    /// Tells all watches of a change; `change` is called once if there is a watch. The caller holds
    /// the lock of the tree for writing.
    pub(super) fn tell(&self, change: impl FnOnce() -> Option<PrefixChange>) {
        let mut watches = self.0.lock();
        watches.retain(|watch| watch.strong_count() > 0);
        if watches.is_empty() {
            return;
        }
        let Some(change) = change() else { return };
        for watch in watches.iter().filter_map(Weak::upgrade) {
            watch.push(change.clone());
        }
    }
}

impl PrefixBlocks {
    /// Whole blocks from `first` on; none if there is no such block.
    pub(super) fn new(
        key: &Arc<PrefixKey>,
        tokens: &[u32],
        first: usize,
        block_tokens: usize,
    ) -> Option<Self> {
        let whole = tokens.len() / block_tokens;
        let tokens = &tokens[..whole * block_tokens];
        (first < whole).then(|| Self { key: Arc::clone(key), tokens: tokens.to_vec(), first })
    }
}

impl PrefixChange {
    fn tokens(&self) -> usize {
        match self {
            Self::Cleared => 0,
            Self::Stored(blocks) | Self::Removed(blocks) => blocks.tokens.len(),
        }
    }
}

impl Waiting {
    fn push(&self, change: PrefixChange) {
        let mut queue = self.queue.lock();
        if queue.is_behind {
            return;
        }
        queue.tokens += change.tokens();
        if queue.tokens > MAX_WAITING_TOKENS {
            *queue = Queue { changes: VecDeque::new(), tokens: 0, is_behind: true };
        } else {
            queue.changes.push_back(change);
        }
        self.is_changed.notify_one();
    }
}

impl<B: Clone, L: Leaves<B>, S> PrefixTree<B, L, S> {
    /// Watch of the changes from now on, after those that describe the whole tree.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ruvllm_kv_cache::prefix::{PrefixChange, PrefixKey, PrefixTree, Scope};
    ///
    /// # let key = PrefixKey { model: [0; 32], adapter: None, kv_format: "f16".into(),
    /// #     rope_scaling: "none".into(), scope: Scope::Shared };
    /// let tree = PrefixTree::new(2);
    /// let watch = tree.watch();
    /// let _pin = tree.insert(&key, &[1, 2, 3, 4, 5], &["a", "b", "c"]).pin;
    /// let changes = tree.next_changes(&watch, Duration::ZERO);
    /// let [PrefixChange::Cleared, PrefixChange::Stored(blocks)] = &changes[..] else { panic!() };
    /// assert_eq!((&blocks.tokens[..], blocks.first), (&[1, 2, 3, 4][..], 0));
    /// ```
    #[must_use]
    pub fn watch(&self) -> PrefixWatch {
        let queue = Queue { changes: VecDeque::new(), tokens: 0, is_behind: true };
        let waiting = Arc::new(Waiting { queue: Mutex::new(queue), is_changed: Condvar::new() });
        self.watches.0.lock().push(Arc::downgrade(&waiting));
        PrefixWatch { waiting }
    }

    /// Changes that a watch has not read yet, in the order in which they were made; waits up to
    /// `patience` for the first one. Empty if there was none.
    #[must_use]
    pub fn next_changes(&self, watch: &PrefixWatch, patience: Duration) -> Vec<PrefixChange> {
        let until = Instant::now() + patience;
        let waiting = &watch.waiting;
        let mut queue = waiting.queue.lock();
        while queue.changes.is_empty() && !queue.is_behind {
            if waiting.is_changed.wait_until(&mut queue, until).timed_out() {
                return Vec::new();
            }
        }
        if !queue.is_behind {
            queue.tokens = 0;
            return std::mem::take(&mut queue.changes).into();
        }
        // Changes are told under the lock of the tree, which comes before that of the queue.
        drop(queue);
        let state = self.state.read();
        *waiting.queue.lock() = Queue { changes: VecDeque::new(), tokens: 0, is_behind: false };
        let mut changes = vec![PrefixChange::Cleared];
        for (key, &root) in &state.roots {
            changes.extend(self.below(&state.nodes, key, root));
        }
        changes
    }

    /// Blocks of all nodes below a root, parents before children.
    fn below(&self, nodes: &Nodes<B, S>, key: &Arc<PrefixKey>, root: NodeId) -> Vec<PrefixChange> {
        let mut changes = Vec::new();
        let mut open: Vec<(NodeId, Vec<u32>)> = vec![(root, Vec::new())];
        while let Some((id, before)) = open.pop() {
            let node = nodes.get(id);
            let first = before.len() / self.block_tokens;
            let tokens = [before.as_slice(), &node.label].concat();
            let blocks = PrefixBlocks::new(key, &tokens, first, self.block_tokens);
            changes.extend(blocks.map(PrefixChange::Stored));
            open.extend(node.children.iter().map(|&child| (child, tokens.clone())));
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::prefix::tree::tests::tenant as key;

    const BLOCK: usize = 2;

    /// Whole prefixes, as a reader of changes knows them.
    #[derive(Default)]
    struct Copy(HashSet<(PrefixKey, Vec<u32>)>);

    impl Copy {
        fn read(&mut self, changes: Vec<PrefixChange>) {
            for change in changes {
                match change {
                    PrefixChange::Cleared => self.0.clear(),
                    PrefixChange::Stored(blocks) => {
                        for entry in entries(&blocks) {
                            assert!(self.0.insert(entry), "a block was stored twice");
                        }
                    }
                    PrefixChange::Removed(blocks) => {
                        for entry in entries(&blocks) {
                            assert!(self.0.remove(&entry), "a block was removed that was not stored");
                        }
                    }
                }
            }
        }
    }

    fn entries(blocks: &PrefixBlocks) -> impl Iterator<Item = (PrefixKey, Vec<u32>)> + '_ {
        (blocks.first + 1..=blocks.tokens.len() / BLOCK)
            .map(|end| (PrefixKey::clone(&blocks.key), blocks.tokens[..end * BLOCK].to_vec()))
    }

    /// All that the tree has, by a watch that is new.
    fn whole(tree: &PrefixTree<usize>) -> HashSet<(PrefixKey, Vec<u32>)> {
        let mut copy = Copy::default();
        copy.read(tree.next_changes(&tree.watch(), Duration::ZERO));
        copy.0
    }

    proptest! {
        #[test]
        fn a_copy_that_follows_has_what_the_tree_has(
            steps in prop::collection::vec((any::<bool>(), prop::collection::vec(0u32..3, 0..9), 0usize..4), 1..60),
        ) {
            let (tree, mut copy) = (PrefixTree::new(BLOCK), Copy::default());
            let watch = tree.watch();
            for (round, (is_first, tokens, evicted)) in steps.into_iter().enumerate() {
                let key = key(if is_first { "a" } else { "b" });
                let _ = tree.insert(&key, &tokens, &vec![round; tokens.len().div_ceil(BLOCK)]);
                if evicted > 1 {
                    let _ = tree.evict(evicted);
                }
                if evicted != 1 {
                    copy.read(tree.next_changes(&watch, Duration::ZERO));
                    prop_assert_eq!(&copy.0, &whole(&tree));
                }
            }
            copy.read(tree.next_changes(&watch, Duration::ZERO));
            let n_whole: usize = tree.latest_nodes(usize::MAX).iter().map(|node| node.tokens / BLOCK).sum();
            prop_assert_eq!(copy.0.len(), n_whole);
            prop_assert_eq!(copy.0, whole(&tree));
        }
    }

    #[test]
    fn a_reader_that_falls_behind_gets_the_whole_tree() {
        let tree = PrefixTree::new(1 << 10);
        let watch = tree.watch();
        let mut copy = Copy::default();
        copy.read(tree.next_changes(&watch, Duration::ZERO));
        let long: Vec<u32> = (0..1 << 16).collect();
        for first in 0..20 {
            let tokens: Vec<u32> = [first].into_iter().chain(long.iter().copied()).collect();
            let _ = tree.insert(&key("a"), &tokens, &vec![0; tokens.len() >> 10]);
        }
        let changes = tree.next_changes(&watch, Duration::ZERO);
        assert_eq!(changes[0], PrefixChange::Cleared);
        assert_eq!(changes.len(), 21);
        assert!(tree.next_changes(&watch, Duration::ZERO).is_empty());
    }

    #[test]
    fn a_change_wakes_its_reader_and_watches_that_are_gone_are_forgotten() {
        let tree = Arc::new(PrefixTree::new(BLOCK));
        let watch = tree.watch();
        drop(tree.watch());
        assert_eq!(tree.next_changes(&watch, Duration::ZERO), [PrefixChange::Cleared]);
        let reader = std::thread::spawn({
            let tree = Arc::clone(&tree);
            move || tree.next_changes(&watch, Duration::from_secs(60))
        });
        let _ = tree.insert(&key("a"), &[1, 2], &[0]);
        assert_eq!(reader.join().unwrap().len(), 1);
        assert_eq!(tree.watches.0.lock().len(), 1);
    }
}
