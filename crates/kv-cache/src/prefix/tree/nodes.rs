//! The nodes of all trees in one arena: finding a child, splitting an edge, adding and shortening leaves.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::prefix::PrefixKey;

/// Index of a node in [`Nodes`].
pub(super) type NodeId = u32;

/// When a node was last used. Pins hold further references: a node is pinned while there is more than one.
#[derive(Debug)]
pub(super) struct Usage {
    stamp: AtomicU64,
}

/// What is above a node.
#[derive(Debug)]
pub(super) enum Parent {
    /// Nothing: the node is the root of this key's tree, with an empty label.
    Key(Arc<PrefixKey>),
    Node(NodeId),
}

/// An edge and the node at its end.
#[derive(Debug)]
pub(super) struct Node<B> {
    pub(super) parent: Parent,
    /// Tokens of the edge: `[blocks.len() * block_tokens]`, fewer where the last block of a leaf is not full.
    pub(super) label: Vec<u32>,
    pub(super) blocks: Vec<B>,
    /// Sorted by label. The first block of one is never the beginning of another's.
    pub(super) children: Vec<NodeId>,
    usage: Arc<Usage>,
    /// Whether the node is in [`Nodes::queue`].
    pub(super) queued: bool,
}

impl<B> Node<B> {
    pub(super) fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    pub(super) fn stamp(&self) -> u64 {
        self.usage.stamp.load(Relaxed)
    }

    pub(super) fn touch(&self, stamp: u64) {
        self.usage.stamp.fetch_max(stamp, Relaxed);
    }

    pub(super) fn is_pinned(&self) -> bool {
        // New references are made from the node under the lock, or from another pin: while the lock is held for
        // writing, a count of one stays one.
        Arc::strong_count(&self.usage) > 1
    }
}

/// All nodes, and the leaves in the order in which they were last used.
#[derive(Debug)]
pub(super) struct Nodes<B> {
    block_tokens: usize,
    slots: Vec<Option<Node<B>>>,
    free: Vec<NodeId>,
    /// Every leaf with its stamp when it was queued, the oldest on top. Lookups only change stamps, so an entry may be
    /// behind; it is put right when it comes to the top. A node has at most one entry, and keeps it when it gets
    /// children.
    pub(super) queue: BinaryHeap<Reverse<(u64, NodeId)>>,
}

impl<B: Clone> Nodes<B> {
    pub(super) fn new(block_tokens: usize) -> Self {
        Self { block_tokens, slots: Vec::new(), free: Vec::new(), queue: BinaryHeap::new() }
    }

    pub(super) fn get(&self, id: NodeId) -> &Node<B> {
        self.slots[id as usize].as_ref().expect("a node's id is dropped with the node")
    }

    pub(super) fn get_mut(&mut self, id: NodeId) -> &mut Node<B> {
        self.slots[id as usize].as_mut().expect("a node's id is dropped with the node")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &Node<B>)> {
        (0..).zip(&self.slots).filter_map(|(id, slot)| slot.as_ref().map(|node| (id, node)))
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The child of `parent` that agrees with the most of `tokens`, and with how many; none without children.
    ///
    /// Among sorted labels, one beside the place where `tokens` would stand agrees the longest, so one binary search
    /// finds the child to descend to as well as the one that agrees with less than a block.
    pub(super) fn closest_child(&self, parent: NodeId, tokens: &[u32]) -> Option<(NodeId, usize)> {
        let children = &self.get(parent).children;
        let after = self.place_of(children, tokens);
        [after.checked_sub(1), Some(after)]
            .into_iter()
            .filter_map(|at| children.get(at?).copied())
            .map(|child| (child, common_prefix(&self.get(child).label, tokens, self.block_tokens)))
            .max_by_key(|&(_, common)| common)
    }

    /// How many of `children` are before `tokens`, which need not be a whole block.
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
        self.add(Parent::Key(key), Vec::new(), Vec::new(), 0)
    }

    /// Adds a leaf below `parent`, which must not have a child whose first block begins with the label's, or the other way
    /// round.
    pub(super) fn add_leaf(&mut self, parent: NodeId, label: &[u32], blocks: &[B], stamp: u64) -> NodeId {
        let id = self.add(Parent::Node(parent), label.to_vec(), blocks.to_vec(), stamp);
        let at = self.place_of(&self.get(parent).children, label);
        self.get_mut(parent).children.insert(at, id);
        self.enqueue(id);
        id
    }

    /// Cuts the edge of `id` behind its first `n_blocks` and returns the new node at the cut. The lower part keeps the
    /// id and the pins.
    pub(super) fn split(&mut self, id: NodeId, n_blocks: usize) -> NodeId {
        let cut = n_blocks * self.block_tokens;
        let node = self.get(id);
        let stamp = node.stamp();
        let Parent::Node(parent) = node.parent else {
            unreachable!("a root has no edge to split");
        };
        let at = self.place_of(&self.get(parent).children, &node.label);
        let node = self.get_mut(id);
        let lower = (node.label.split_off(cut), node.blocks.split_off(n_blocks));
        let mut label = std::mem::replace(&mut node.label, lower.0);
        let mut blocks = std::mem::replace(&mut node.blocks, lower.1);
        label.shrink_to_fit();
        blocks.shrink_to_fit();
        let upper = self.add(Parent::Node(parent), label, blocks, stamp);
        self.get_mut(parent).children[at] = upper;
        self.get_mut(upper).children.push(id);
        self.get_mut(id).parent = Parent::Node(upper);
        upper
    }

    /// Makes a leaf of one block that is not full another one, whose label begins with its own; returns the block. It keeps
    /// the id, the pins and its place in the queue.
    pub(super) fn replace(&mut self, id: NodeId, label: &[u32], blocks: &[B]) -> Vec<B> {
        let node = self.get_mut(id);
        debug_assert!(node.children.is_empty() && node.blocks.len() == 1 && label.starts_with(&node.label));
        node.label = label.to_vec();
        std::mem::replace(&mut node.blocks, blocks.to_vec())
    }

    /// Takes the last `n_blocks` of a leaf that has more.
    pub(super) fn shorten(&mut self, id: NodeId, n_blocks: usize) -> Vec<B> {
        let block_tokens = self.block_tokens;
        let node = self.get_mut(id);
        let kept = node.blocks.len() - n_blocks;
        let taken = node.blocks.split_off(kept);
        node.blocks.shrink_to_fit();
        node.label.truncate(kept * block_tokens);
        node.label.shrink_to_fit();
        taken
    }

    /// Removes a node that has no children.
    pub(super) fn remove(&mut self, id: NodeId) -> Node<B> {
        let node = self.get(id);
        debug_assert!(node.children.is_empty() && !node.queued);
        if let Parent::Node(parent) = node.parent {
            let at = self.place_of(&self.get(parent).children, &node.label);
            self.get_mut(parent).children.remove(at);
        }
        self.free.push(id);
        self.slots[id as usize].take().expect("a node's id is dropped with the node")
    }

    /// Puts a leaf where eviction finds it, unless it is there.
    pub(super) fn enqueue(&mut self, id: NodeId) {
        let node = self.get_mut(id);
        if !std::mem::replace(&mut node.queued, true) {
            let stamp = node.stamp();
            self.queue.push(Reverse((stamp, id)));
        }
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

    /// Bytes on the heap, from the capacities of all that is allocated; the blocks themselves are not the tree's.
    pub(super) fn heap_bytes(&self) -> usize {
        // An `Arc` has two counters before its content.
        const USAGE: usize = size_of::<Usage>() + 2 * size_of::<usize>();
        let of_node = |node: &Node<B>| {
            node.label.capacity() * size_of::<u32>()
                + node.blocks.capacity() * size_of::<B>()
                + node.children.capacity() * size_of::<NodeId>()
                + USAGE
        };
        self.slots.capacity() * size_of::<Option<Node<B>>>()
            + self.free.capacity() * size_of::<NodeId>()
            + self.queue.capacity() * size_of::<Reverse<(u64, NodeId)>>()
            + self.iter().map(|(_, node)| of_node(node)).sum::<usize>()
    }

    fn add(&mut self, parent: Parent, label: Vec<u32>, blocks: Vec<B>, stamp: u64) -> NodeId {
        let usage = Arc::new(Usage { stamp: AtomicU64::new(stamp) });
        let node = Node { parent, label, blocks, children: Vec::new(), usage, queued: false };
        if let Some(id) = self.free.pop() {
            self.slots[id as usize] = Some(node);
            return id;
        }
        let id = NodeId::try_from(self.slots.len()).expect("memory ends before 2^32 nodes");
        self.slots.push(Some(node));
        id
    }
}

/// How many tokens at the start are equal. Compares block by block, because equality of slices runs at the speed of
/// memory.
fn common_prefix(a: &[u32], b: &[u32], block_tokens: usize) -> usize {
    let whole =
        a.chunks_exact(block_tokens).zip(b.chunks_exact(block_tokens)).take_while(|(a, b)| a == b).count()
            * block_tokens;
    whole + a[whole..].iter().zip(&b[whole..]).take_while(|(a, b)| a == b).count()
}
