//! The nodes of all trees in one arena: finding a child, splitting an edge, adding and shortening
//! leaves.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use ruvllm_memory::Use;

use crate::prefix::PrefixKey;

/// Index of a node in [`Nodes`].
pub(super) type NodeId = u32;

/// The last use of a node. Pins hold further references: a node is pinned while there is more than
/// one.
#[derive(Debug)]
pub(super) struct Usage {
    inflation: AtomicU64,
    turn: AtomicU64,
}

/// Parent of a node.
#[derive(Debug)]
pub(super) enum Parent {
    /// Nothing: the node is the root of this key's tree, with an empty label.
    Key(Arc<PrefixKey>),
    Node(NodeId),
}

/// State behind some blocks of an edge.
#[derive(Debug)]
pub(super) struct NodeState<S> {
    /// Blocks of the edge before it: at least one.
    pub(super) blocks: usize,
    pub(super) state: S,
    /// Turn of the last use.
    pub(super) turn: AtomicU64,
}

/// An edge and the node at its end.
#[derive(Debug)]
pub(super) struct Node<B, S> {
    pub(super) parent: Parent,
    /// Tokens of the edge: `[blocks.len() * block_tokens]`, fewer where the last block of a leaf is
    /// not full.
    pub(super) label: Vec<u32>,
    pub(super) blocks: Vec<B>,
    /// States behind blocks of the edge, in their order.
    pub(super) states: Vec<NodeState<S>>,
    /// Sorted by label. The first block of one is never the beginning of another's.
    pub(super) children: Vec<NodeId>,
    usage: Arc<Usage>,
}

impl<B, S> Node<B, S> {
    pub(super) fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    pub(super) fn used(&self) -> Use {
        Use { inflation: self.usage.inflation.load(Relaxed), turn: self.usage.turn.load(Relaxed) }
    }

    /// Both only grow with time, so that the greatest are those of the last use.
    pub(super) fn touch(&self, used: Use) {
        self.usage.inflation.fetch_max(used.inflation, Relaxed);
        self.usage.turn.fetch_max(used.turn, Relaxed);
    }

    /// Pins of this node.
    pub(super) fn pins(&self) -> usize {
        Arc::strong_count(&self.usage) - 1
    }

    pub(super) fn is_pinned(&self) -> bool {
        // New references are made from the node under the lock, or from another pin: while the lock
        // is held for writing, a count of one stays one.
        Arc::strong_count(&self.usage) > 1
    }
}

/// All nodes.
#[derive(Debug)]
pub(super) struct Nodes<B, S> {
    block_tokens: usize,
    slots: Vec<Option<Node<B, S>>>,
    free: Vec<NodeId>,
}

impl<B: Clone, S> Nodes<B, S> {
    pub(super) fn new(block_tokens: usize) -> Self {
        Self { block_tokens, slots: Vec::new(), free: Vec::new() }
    }

    pub(super) fn get(&self, id: NodeId) -> &Node<B, S> {
        self.slots[id as usize].as_ref().expect("a node's id is dropped with the node")
    }

    /// The node with an id that may be gone.
    pub(super) fn find(&self, id: NodeId) -> Option<&Node<B, S>> {
        self.slots.get(id as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: NodeId) -> &mut Node<B, S> {
        self.slots[id as usize].as_mut().expect("a node's id is dropped with the node")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &Node<B, S>)> {
        (0..).zip(&self.slots).filter_map(|(id, slot)| slot.as_ref().map(|node| (id, node)))
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The child of `parent` that agrees with the most of `tokens`, and with how many; none without
    /// children.
    ///
    /// Among sorted labels, one beside the place where `tokens` would stand agrees the longest, so
    /// one binary search finds the child to descend to as well as the one that agrees with less
    /// than a block.
    pub(super) fn closest_child(&self, parent: NodeId, tokens: &[u32]) -> Option<(NodeId, usize)> {
        let children = &self.get(parent).children;
        let after = self.place_of(children, tokens);
        [after.checked_sub(1), Some(after)]
            .into_iter()
            .filter_map(|at| children.get(at?).copied())
            .map(|child| (child, common_prefix(&self.get(child).label, tokens, self.block_tokens)))
            .max_by_key(|&(_, common)| common)
    }

    /// Number of `children` that are before `tokens`, which need not be a whole block.
    fn place_of(&self, children: &[NodeId], tokens: &[u32]) -> usize {
        let block = &tokens[..tokens.len().min(self.block_tokens)];
        children.partition_point(|&child| {
            #[cfg(test)]
            super::tests::COMPARISONS.set(super::tests::COMPARISONS.get() + 1);
            let label = &self.get(child).label;
            &label[..label.len().min(self.block_tokens)] < block
        })
    }

    pub(super) fn add_root(&mut self, key: Arc<PrefixKey>) -> NodeId {
        self.add(Parent::Key(key), Vec::new(), Vec::new(), Use::default())
    }

    /// Adds a leaf below `parent`, which must not have a child whose first block begins with the
    /// label's, or the other way round.
    pub(super) fn add_leaf(&mut self, parent: NodeId, label: &[u32], blocks: &[B], used: Use) -> NodeId {
        let id = self.add(Parent::Node(parent), label.to_vec(), blocks.to_vec(), used);
        let at = self.place_of(&self.get(parent).children, label);
        self.get_mut(parent).children.insert(at, id);
        id
    }

    /// Cuts the edge of `id` behind its first `n_blocks` and returns the new node at the cut. The
    /// lower part keeps the id and the pins.
    pub(super) fn split(&mut self, id: NodeId, n_blocks: usize) -> NodeId {
        let cut = n_blocks * self.block_tokens;
        let node = self.get(id);
        let used = node.used();
        let Parent::Node(parent) = node.parent else {
            unreachable!("a root has no edge to split");
        };
        let at = self.place_of(&self.get(parent).children, &node.label);
        let node = self.get_mut(id);
        let lower = (node.label.split_off(cut), node.blocks.split_off(n_blocks));
        let mut below = node.states.split_off(node.states.partition_point(|state| state.blocks <= n_blocks));
        below.iter_mut().for_each(|state| state.blocks -= n_blocks);
        let states = std::mem::replace(&mut node.states, below);
        let mut label = std::mem::replace(&mut node.label, lower.0);
        let mut blocks = std::mem::replace(&mut node.blocks, lower.1);
        label.shrink_to_fit();
        blocks.shrink_to_fit();
        let upper = self.add(Parent::Node(parent), label, blocks, used);
        self.get_mut(upper).states = states;
        self.get_mut(parent).children[at] = upper;
        self.get_mut(upper).children.push(id);
        self.get_mut(id).parent = Parent::Node(upper);
        upper
    }

    /// Makes a leaf of one block that is not full another one, whose label begins with its own;
    /// returns the block. It keeps the id and the pins.
    pub(super) fn replace(&mut self, id: NodeId, label: &[u32], blocks: &[B]) -> Vec<B> {
        let node = self.get_mut(id);
        debug_assert!(node.children.is_empty() && node.blocks.len() == 1 && label.starts_with(&node.label));
        node.label = label.to_vec();
        std::mem::replace(&mut node.blocks, blocks.to_vec())
    }

    /// Takes the last `n_blocks` of a leaf that has more, and the states behind them.
    pub(super) fn shorten(&mut self, id: NodeId, n_blocks: usize) -> (Vec<B>, Vec<NodeState<S>>) {
        let block_tokens = self.block_tokens;
        let node = self.get_mut(id);
        let kept = node.blocks.len() - n_blocks;
        let taken = node.blocks.split_off(kept);
        node.blocks.shrink_to_fit();
        node.label.truncate(kept * block_tokens);
        node.label.shrink_to_fit();
        let states = node.states.split_off(node.states.partition_point(|state| state.blocks <= kept));
        (taken, states)
    }

    /// Removes a node that has no children.
    pub(super) fn remove(&mut self, id: NodeId) -> Node<B, S> {
        let node = self.get(id);
        debug_assert!(node.children.is_empty());
        if let Parent::Node(parent) = node.parent {
            let at = self.place_of(&self.get(parent).children, &node.label);
            self.get_mut(parent).children.remove(at);
        }
        self.free.push(id);
        self.slots[id as usize].take().expect("a node's id is dropped with the node")
    }

    /// The key of the tree that `id` is in, and all tokens from its root to the end of `id`'s edge.
    pub(super) fn path_of(&self, mut id: NodeId) -> (Arc<PrefixKey>, Vec<u32>) {
        let mut labels = Vec::new();
        loop {
            let node = self.get(id);
            match &node.parent {
                Parent::Key(key) => {
                    labels.reverse();
                    return (Arc::clone(key), labels.concat());
                }
                Parent::Node(parent) => {
                    labels.push(node.label.as_slice());
                    id = *parent;
                }
            }
        }
    }

    /// Bytes on the heap, from the capacities of all that is allocated; the blocks themselves are
    /// not the tree's.
    pub(super) fn heap_bytes(&self) -> usize {
        // An `Arc` has two counters before its content.
        const USAGE: usize = size_of::<Usage>() + 2 * size_of::<usize>();
        let of_node = |node: &Node<B, S>| {
            node.label.capacity() * size_of::<u32>()
                + node.blocks.capacity() * size_of::<B>()
                + node.states.capacity() * size_of::<NodeState<S>>()
                + node.children.capacity() * size_of::<NodeId>()
                + USAGE
        };
        self.slots.capacity() * size_of::<Option<Node<B, S>>>()
            + self.free.capacity() * size_of::<NodeId>()
            + self.iter().map(|(_, node)| of_node(node)).sum::<usize>()
    }

    fn add(&mut self, parent: Parent, label: Vec<u32>, blocks: Vec<B>, used: Use) -> NodeId {
        let (inflation, turn) = (AtomicU64::new(used.inflation), AtomicU64::new(used.turn));
        let usage = Arc::new(Usage { inflation, turn });
        let node = Node { parent, label, blocks, states: Vec::new(), children: Vec::new(), usage };
        if let Some(id) = self.free.pop() {
            self.slots[id as usize] = Some(node);
            return id;
        }
        let id = NodeId::try_from(self.slots.len()).expect("memory ends before 2^32 nodes");
        self.slots.push(Some(node));
        id
    }
}

/// Number of equal tokens at the start. Compares block by block: equality of slices is vectorized.
fn common_prefix(a: &[u32], b: &[u32], block_tokens: usize) -> usize {
    let whole =
        a.chunks_exact(block_tokens).zip(b.chunks_exact(block_tokens)).take_while(|(a, b)| a == b).count()
            * block_tokens;
    whole + a[whole..].iter().zip(&b[whole..]).take_while(|(a, b)| a == b).count()
}
