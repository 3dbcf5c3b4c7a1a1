//! States behind blocks, for models with layers that keep one instead of keys and values.
//!
//! A state stands for all tokens before it, so a prefix of such a model is of use up to its last
//! state. Every leaf of their trees ends with one: blocks behind the last state are taken out with
//! what made them useless.
//!
//! ```text
//! blocks   [ 0 ][ 1 ][ 2 ][ 3 ] ── [ 4 ][ 5 ]
//! states             S              └──── S     a prompt that parts after block 4 begins at block 2
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::nodes::{Node, NodeId, NodeState, Nodes, Parent};
use super::{Evicted, Inserted, Leaves, Match, MatchEnd, PrefixPin, PrefixTree, State, Walk};
use crate::prefix::PrefixKey;

/// Result of [`PrefixTree::lookup_state`].
#[derive(Clone, Debug)]
pub struct StateMatch<B, S> {
    /// The blocks up to the state; no partial block.
    pub found: Match<B>,
    /// The state behind them; `None` without a match.
    pub state: Option<S>,
    /// Tokens in whole blocks that were found, with or without a state behind them: where prompts
    /// part, and a state is worth storing.
    pub known_tokens: usize,
}

/// Place of a state: node, index in its list, tokens before it.
type StatePlace = (NodeId, usize, usize);

impl<B: Clone, L: Leaves<B>, S: Clone> PrefixTree<B, L, S> {
    /// The longest cached prefix of `tokens` that ends with a state, of those that `key` may see.
    /// At least the last token is left to compute.
    #[must_use]
    pub fn lookup_state(&self, key: &PrefixKey, tokens: &[u32]) -> StateMatch<B, S> {
        let wanted = tokens.split_last().map_or(tokens, |(_, wanted)| wanted);
        let found = self.find_state(key, wanted);
        self.counters.count_lookup(tokens.len(), &found.found);
        found
    }

    fn find_state(&self, key: &PrefixKey, wanted: &[u32]) -> StateMatch<B, S> {
        let nothing = |end, known_tokens| {
            let found = Match { blocks: Vec::new(), tokens: 0, partial: None, end, pin: None };
            StateMatch { found, state: None, known_tokens }
        };
        if wanted.is_empty() {
            return nothing(MatchEnd::TooShort, 0);
        }
        let tree = self.state.read();
        let nodes = &tree.nodes;
        let roots = key.visible().filter_map(|key| tree.roots.get(&key));
        let walks = roots.map(|&root| {
            let walk = self.walk(nodes, root, wanted);
            (last_state(nodes, &walk, self.block_tokens), walk)
        });
        let ends = |(place, walk): &(Option<StatePlace>, Walk)| {
            (place.map_or(0, |(.., tokens)| tokens), walk.agreeing())
        };
        let Some((place, walk)) = walks.max_by_key(ends) else { return nothing(MatchEnd::UnknownKey, 0) };
        let now = self.leaves.now();
        walk.path.iter().for_each(|&id| nodes.get(id).touch(now));
        let Some((last, index, tokens)) = place else {
            let end = if walk.agreeing() == 0 { walk.end } else { MatchEnd::Ended { at: 0 } };
            return nothing(end, walk.tokens);
        };
        let node = nodes.get(last);
        let kept = &node.states[index];
        kept.turn.fetch_max(now.turn, Relaxed);
        let mut blocks = Vec::with_capacity(tokens / self.block_tokens);
        for &id in walk.path.iter().take_while(|&&id| id != last) {
            blocks.extend_from_slice(&nodes.get(id).blocks);
        }
        blocks.extend_from_slice(&node.blocks[..kept.blocks]);
        let end = if tokens == walk.agreeing() { walk.end } else { MatchEnd::Ended { at: tokens } };
        let pin = Some(PrefixPin(Arc::clone(node.usage())));
        StateMatch {
            found: Match { blocks, tokens, partial: None, end, pin },
            state: Some(kept.state.clone()),
            known_tokens: walk.tokens,
        }
    }

    /// True if the tree has the state behind all of `tokens`, visible to `key`; this counts as a
    /// use.
    #[must_use]
    pub fn touch_state(&self, key: &PrefixKey, tokens: &[u32]) -> bool {
        let tree = self.state.read();
        let now = self.leaves.now();
        let roots = key.visible().filter_map(|key| tree.roots.get(&key));
        let mut is_known = false;
        for &root in roots {
            let walk = self.walk(&tree.nodes, root, tokens);
            if let Some((id, index, known)) = last_state(&tree.nodes, &walk, self.block_tokens)
                && known == tokens.len()
            {
                walk.path.iter().for_each(|&id| tree.nodes.get(id).touch(now));
                tree.nodes.get(id).states[index].turn.fetch_max(now.turn, Relaxed);
                is_known = true;
            }
        }
        is_known
    }

    /// Makes whole blocks of `tokens` and the state behind them known under `key`. Where the tree
    /// has a block or a state for the same tokens already, it keeps its own.
    ///
    /// # Shapes
    /// `blocks`: `[tokens.len() / block_tokens]`
    ///
    /// # Panics
    /// If the tokens are no whole blocks, or the number of blocks is another.
    pub fn insert_state(&self, key: &PrefixKey, tokens: &[u32], blocks: &[B], state: S) -> Inserted<B> {
        assert!(
            tokens.len() == blocks.len() * self.block_tokens,
            "insert_state: {} blocks for {} tokens",
            blocks.len(),
            tokens.len()
        );
        // A surplus state is dropped here, not under the lock.
        self.insert_with(key, tokens, blocks, Some(state)).0
    }

    /// Puts a state behind the last block of a node, or returns it if there is one.
    pub(super) fn add_state(&self, nodes: &mut Nodes<B, S>, id: NodeId, state: S, turn: u64) -> Option<S> {
        let node = nodes.get_mut(id);
        let blocks = node.blocks.len();
        match node.states.last() {
            Some(last) if last.blocks == blocks => {
                last.turn.fetch_max(turn, Relaxed);
                Some(state)
            }
            _ => {
                node.states.push(NodeState { blocks, state, turn: AtomicU64::new(turn) });
                self.counters.count_state();
                None
            }
        }
    }
}

/// The last state on a path.
fn last_state<B: Clone, S>(nodes: &Nodes<B, S>, walk: &Walk, block_tokens: usize) -> Option<StatePlace> {
    let (mut place, mut start) = (None, 0);
    for (i, &id) in walk.path.iter().enumerate() {
        let node = nodes.get(id);
        let agreeing = if i + 1 == walk.path.len() { walk.last_blocks } else { node.blocks.len() };
        let index = node.states.partition_point(|state| state.blocks <= agreeing);
        if let Some(index) = index.checked_sub(1) {
            place = Some((id, index, (start + node.states[index].blocks) * block_tokens));
        }
        start += node.blocks.len();
    }
    place
}

impl<B, S> Node<B, S> {
    /// Blocks at the end of a leaf that its last state alone needs: those behind the state before.
    pub(super) fn blocks_of_last_state(&self) -> usize {
        let before = self.states.iter().rev().nth(1);
        self.blocks.len() - before.map_or(0, |state| state.blocks)
    }
}

impl<B: Clone, S> Nodes<B, S> {
    /// Takes the least recently used state of a leaf's path, unless it is that of the leaf's end;
    /// that one stays if `keeps_end`, whatever its use. None without such a state.
    pub(super) fn take_unneeded_state(&mut self, leaf: NodeId, keeps_end: bool) -> Option<S> {
        let end = self.get(leaf).states.len().checked_sub(1);
        let (mut oldest, mut id) = (None, leaf);
        loop {
            let node = self.get(id);
            for (index, state) in node.states.iter().enumerate() {
                if keeps_end && id == leaf && Some(index) == end {
                    continue;
                }
                let found = (state.turn.load(Relaxed), id, index);
                oldest = oldest.map_or(Some(found), |oldest| Some(found.min(oldest)));
            }
            match node.parent {
                Parent::Node(parent) => id = parent,
                Parent::Key(_) => break,
            }
        }
        let (_, id, index) = oldest?;
        if id == leaf && Some(index) == end {
            return None;
        }
        Some(self.get_mut(id).states.remove(index).state)
    }
}

impl<B: Clone, S> State<B, S> {
    /// Takes blocks without a state behind them from the ends of leaves that an eviction has made,
    /// from `leaf` on upwards. Returns the leaf that is left, if it is another one than before.
    pub(super) fn take_stateless_end(
        &mut self,
        evicted: &mut Evicted<B, S>,
        mut leaf: Option<NodeId>,
    ) -> Option<NodeId> {
        while let Some(id) = leaf {
            let node = self.nodes.get(id);
            let surplus = node.blocks.len() - node.states.last().map_or(0, |state| state.blocks);
            if surplus == 0 || node.is_pinned() {
                break;
            }
            let is_left = surplus < node.blocks.len();
            let (above, parent) = self.take(id, surplus);
            evicted.blocks.splice(0..0, above.blocks);
            leaf = if is_left { Some(id) } else { parent };
        }
        leaf
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::prefix::tree::Lru;
    use crate::prefix::tree::tests::tenant as key;

    const BLOCK: usize = 2;

    type Tree = PrefixTree<u32, Lru, u32>;

    fn tree() -> Tree {
        PrefixTree::with_leaves(BLOCK, Lru::default())
    }

    /// Blocks and state that name themselves.
    fn insert(tree: &Tree, tokens: &[u32], name: u32) {
        let blocks: Vec<u32> = (name..).take(tokens.len() / BLOCK).collect();
        let _ = tree.insert_state(&key("a"), tokens, &blocks, name);
    }

    fn found(tree: &Tree, tokens: &[u32]) -> (Vec<u32>, Option<u32>, usize) {
        let StateMatch { found, state, known_tokens } = tree.lookup_state(&key("a"), tokens);
        assert_eq!(found.tokens, found.blocks.len() * BLOCK);
        (found.blocks, state, known_tokens)
    }

    /// Checks that every leaf ends with a state, and the order of states.
    fn check(tree: &Tree) {
        let state = tree.state.read();
        let mut states = 0;
        for (_, node) in state.nodes.iter() {
            let ends: Vec<usize> = node.states.iter().map(|state| state.blocks).collect();
            assert!(ends.windows(2).all(|pair| pair[0] < pair[1]) && !ends.contains(&0));
            assert!(ends.last().is_none_or(|&last| last <= node.blocks.len()));
            let is_leaf = node.children.is_empty() && !node.blocks.is_empty();
            assert!(
                !is_leaf || ends.last() == Some(&node.blocks.len()),
                "useless blocks at the end of a leaf"
            );
            states += ends.len();
        }
        drop(state);
        let statistics = tree.statistics();
        assert_eq!(statistics.states, states);
        assert_eq!(statistics.inserted_states - statistics.evicted_states, states as u64);
    }

    #[test]
    fn a_match_ends_with_a_state_and_tells_where_prompts_part() {
        let tree = tree();
        assert_eq!(found(&tree, &[1, 1, 2, 2, 3]), (vec![], None, 0));
        insert(&tree, &[1, 1, 2, 2, 3, 3], 10);
        assert_eq!(found(&tree, &[1, 1, 2, 2, 3, 3, 4]), (vec![10, 11, 12], Some(10), 6));
        // The last token is computed, so the state behind it is of no use.
        assert_eq!(found(&tree, &[1, 1, 2, 2, 3, 3]), (vec![], None, 4));
        assert_eq!(found(&tree, &[1, 1, 2, 2, 9, 9, 9]), (vec![], None, 4));
        let knows = |tokens: &[u32]| tree.touch_state(&key("a"), tokens);
        assert!(knows(&[1, 1, 2, 2, 3, 3]) && !knows(&[1, 1, 2, 2]) && !knows(&[1, 1, 2, 2, 3, 3, 4, 4]));
        assert!(!tree.touch_state(&key("b"), &[1, 1, 2, 2, 3, 3]));
        insert(&tree, &[1, 1, 2, 2], 20);
        assert_eq!(found(&tree, &[1, 1, 2, 2, 9, 9, 9]), (vec![10, 11], Some(20), 4));
        insert(&tree, &[1, 1, 2, 2, 9, 9], 30);
        assert_eq!(found(&tree, &[1, 1, 2, 2, 9, 9, 9]), (vec![10, 11, 32], Some(30), 6));
        // The state that is there stays.
        insert(&tree, &[1, 1, 2, 2, 9, 9], 40);
        assert_eq!(found(&tree, &[1, 1, 2, 2, 9, 9, 9]).1, Some(30));
        let statistics = tree.statistics();
        assert_eq!((statistics.states, statistics.inserted_states, statistics.blocks), (3, 3, 4));
        assert_eq!(
            statistics.lookups,
            statistics.full_hits + statistics.unknown_key + statistics.ended + statistics.diverged
        );
        check(&tree);
    }

    #[test]
    fn states_are_evicted_by_their_last_use_and_blocks_with_the_last_one_that_needs_them() {
        let tree = tree();
        // A conversation, and a prompt that parts from it behind the first block.
        insert(&tree, &[1, 1], 10);
        insert(&tree, &[1, 1, 2, 2, 3, 3], 20);
        insert(&tree, &[1, 1, 2, 2, 3, 3, 4, 4], 30);
        insert(&tree, &[1, 1, 5, 5], 40);
        // Both beginnings of other prompts.
        assert_eq!(found(&tree, &[1, 1, 9]).1, Some(10));
        let evict = || -> Vec<(Vec<u32>, usize)> {
            let evicted = tree.evict(1);
            check(&tree);
            evicted.into_iter().map(|evicted| (evicted.tokens, evicted.blocks.len())).collect()
        };
        // First state 20, whose blocks state 30 needs, then the blocks of state 30 alone.
        assert_eq!(evict(), [(vec![1, 1, 2, 2, 3, 3, 4, 4], 3)]);
        assert_eq!(tree.statistics().evicted_states, 2);
        assert_eq!(evict(), [(vec![1, 1, 5, 5], 1)]);
        assert_eq!(evict(), [(vec![1, 1], 1)]);
        assert_eq!((tree.statistics().blocks, tree.statistics().keys), (0, 0));
    }

    #[test]
    fn a_state_is_evicted_alone_while_another_one_needs_its_blocks() {
        let tree = tree();
        insert(&tree, &[1, 1], 10);
        insert(&tree, &[1, 1, 2, 2], 20);
        insert(&tree, &[5, 5], 30);
        assert_eq!(found(&tree, &[5, 5, 0]).1, Some(30));
        assert_eq!(tree.evict_state(), [10]);
        assert_eq!((tree.statistics().blocks, found(&tree, &[5, 5, 0]).1), (3, Some(30)));
        assert_eq!(tree.evict_state(), [20]);
        assert_eq!(tree.statistics().blocks, 1);
        check(&tree);
        let pin = tree.lookup_state(&key("a"), &[5, 5, 0]).found.pin;
        assert!(tree.evict_state().is_empty(), "it is pinned");
        drop(pin);
        assert_eq!((tree.evict_state(), tree.evict_state()), (vec![30], vec![]));
        assert_eq!(tree.statistics().nodes, 0);
    }

    #[test]
    fn a_pin_keeps_blocks_and_their_state_and_no_other_states() {
        let tree = tree();
        insert(&tree, &[1, 1], 10);
        insert(&tree, &[1, 1, 2, 2], 20);
        let pin = tree.lookup_state(&key("a"), &[1, 1, 2, 2, 3]).found.pin;
        assert!(tree.evict(9).is_empty());
        assert_eq!((tree.statistics().states, tree.statistics().blocks), (1, 2));
        assert_eq!(found(&tree, &[1, 1, 2, 2, 3]).1, Some(20));
        drop(pin);
        assert_eq!(tree.evict(9).len(), 1);
        check(&tree);
    }

    proptest! {
        #[test]
        fn a_lookup_finds_the_longest_prefix_with_a_state(
            steps in prop::collection::vec((prop::collection::vec(0u32..3, 0..11), 0usize..6), 1..60),
        ) {
            let tree = tree();
            // States by their tokens; those that were evicted leave with the first lookup.
            let mut known: HashMap<Vec<u32>, u32> = HashMap::new();
            for (name, (tokens, evicted)) in (0..).zip(steps) {
                let whole = &tokens[..tokens.len() / BLOCK * BLOCK];
                if !whole.is_empty() {
                    insert(&tree, whole, 100 * name);
                    known.entry(whole.to_vec()).or_insert(100 * name);
                    let next = [whole, &[7]].concat();
                    prop_assert_eq!(found(&tree, &next).1, known.get(whole).copied());
                }
                if evicted > 3 {
                    for taken in tree.evict(evicted - 3) {
                        for state in taken.states {
                            known.retain(|_, known| *known != state);
                        }
                    }
                    check(&tree);
                    // States whose blocks stay are evicted as well.
                    let is_there = |tokens: &Vec<u32>| {
                        let StateMatch { found, .. } = tree.lookup_state(&key("a"), &[&tokens[..], &[7]].concat());
                        found.tokens == tokens.len()
                    };
                    known.retain(|tokens, _| is_there(tokens));
                    prop_assert_eq!(known.len(), tree.statistics().states);
                }
                let longest = (0..tokens.len()).rev().find_map(|end| known.get(&tokens[..end]).map(|&state| (end, state)));
                let StateMatch { found, state, known_tokens } = tree.lookup_state(&key("a"), &tokens);
                prop_assert_eq!((found.tokens, state), longest.map_or((0, None), |(end, state)| (end, Some(state))));
                prop_assert!(known_tokens >= found.tokens);
            }
            tree.evict(usize::MAX);
            prop_assert_eq!(tree.statistics().nodes, 0);
        }
    }
}
