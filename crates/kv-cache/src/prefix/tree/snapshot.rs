//! Shape of the tree for a display, without its tokens.

use std::collections::BinaryHeap;

use super::nodes::{NodeId, Nodes};
use super::{Leaves, PrefixTree};

/// Node of a [`PrefixTree`]: a run of blocks that prefixes have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixNode {
    /// Index of the parent in the list; `None` for the beginning of a prefix.
    pub parent: Option<usize>,
    /// Tokens from the beginning of the prefix to the beginning of the node.
    pub start: usize,
    /// Tokens of the node.
    pub tokens: usize,
    /// Blocks of the node.
    pub blocks: usize,
    /// States behind its blocks.
    pub states: usize,
    /// Nodes below it, whether or not they are in the list.
    pub children: usize,
    /// Pins: sequences that use the node as the end of their prefix.
    pub references: usize,
    /// Number of the last use; larger ones are later.
    pub last_use: u64,
}

impl<B: Clone, L: Leaves<B>, S> PrefixTree<B, L, S> {
    /// The `most` nodes of all keys that were used last, latest first; a parent comes before its
    /// children. Takes time for these nodes and their children alone.
    #[must_use]
    pub fn latest_nodes(&self, most: usize) -> Vec<PrefixNode> {
        let state = self.state.read();
        let nodes = &state.nodes;
        let mut open = BinaryHeap::new();
        let mut list: Vec<PrefixNode> = Vec::new();
        for &root in state.roots.values() {
            push_children(&mut open, nodes, root, None);
        }
        while list.len() < most
            && let Some((last_use, id, parent)) = open.pop()
        {
            let node = nodes.get(id);
            let start = parent.map_or(0, |parent: usize| list[parent].start + list[parent].tokens);
            push_children(&mut open, nodes, id, Some(list.len()));
            list.push(PrefixNode {
                parent,
                start,
                tokens: node.label.len(),
                blocks: node.blocks.len(),
                states: node.states.len(),
                children: node.children.len(),
                references: node.pins(),
                last_use,
            });
        }
        list
    }
}

/// Adds the children of a node, whose index in the list is `index`.
fn push_children<B: Clone, S>(
    open: &mut BinaryHeap<(u64, NodeId, Option<usize>)>,
    nodes: &Nodes<B, S>,
    id: NodeId,
    index: Option<usize>,
) {
    let children = nodes.get(id).children.iter();
    open.extend(children.map(|&child| (nodes.get(child).used().turn, child, index)));
}

#[cfg(test)]
mod tests {
    use ruvllm_testkit::Random;

    use super::*;
    use crate::prefix::tree::tests::tenant as key;

    #[test]
    fn nodes_come_by_last_use_behind_their_parents() {
        let tree = PrefixTree::new(2);
        assert!(tree.latest_nodes(10).is_empty());
        let first = tree.insert(&key("a"), &[1, 2, 3, 4, 5], &[0, 1, 2]);
        let _ = tree.insert(&key("a"), &[1, 2, 8, 9], &[0, 3]);
        let _ = tree.insert(&key("b"), &[7, 7], &[4]);
        let _used = tree.lookup(&key("a"), &[1, 2, 3, 4, 0]);
        let shape = |node: &PrefixNode| (node.parent, node.start, node.tokens, node.blocks, node.children);
        let nodes = tree.latest_nodes(10);
        assert_eq!(
            nodes.iter().map(shape).collect::<Vec<_>>(),
            [(None, 0, 2, 1, 2), (Some(0), 2, 3, 2, 0), (None, 0, 2, 1, 0), (Some(0), 2, 2, 1, 0)]
        );
        // The pins of the first insertion and of the lookup.
        assert_eq!(nodes.iter().map(|node| node.references).collect::<Vec<_>>(), [0, 2, 0, 0]);
        drop(first);
        assert_eq!(tree.latest_nodes(2)[1].references, 1);
        assert_eq!(tree.latest_nodes(2).len(), 2);
    }

    #[test]
    fn all_nodes_hold_all_blocks() {
        let (tree, mut random) = (PrefixTree::new(3), Random::new(5));
        for round in 0..300 {
            let tokens: Vec<u32> = (0..random.below(16)).map(|_| random.below(2) as u32).collect();
            let key = key(["a", "b"][round % 2]);
            let _ = tree.insert(&key, &tokens, &vec![round; tokens.len().div_ceil(3)]);
            if random.below(4) == 0 {
                tree.evict(random.below(5));
            }
            let (nodes, statistics) = (tree.latest_nodes(usize::MAX), tree.statistics());
            assert_eq!(nodes.len() + statistics.keys, statistics.nodes);
            assert_eq!(nodes.iter().map(|node| node.blocks).sum::<usize>(), statistics.blocks);
            assert_eq!(nodes.iter().map(|node| node.tokens).sum::<usize>(), statistics.tokens);
            for (index, node) in nodes.iter().enumerate() {
                let below = nodes.iter().filter(|other| other.parent == Some(index));
                assert_eq!(below.count(), node.children);
                assert!(node.parent.is_none_or(|parent| parent < index));
            }
            assert!(nodes.windows(2).all(|pair| pair[0].last_use >= pair[1].last_use));
        }
    }
}
