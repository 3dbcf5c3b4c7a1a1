//! The radix tree over tokens, in memory.

mod changes;
mod leaves;
mod nodes;
mod snapshot;
mod states;
mod statistics;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc};

use changes::Watches;
pub use changes::{PrefixBlocks, PrefixChange, PrefixWatch};
pub use leaves::{LeafEviction, LeafId, Leaves, Lru};
use nodes::{NodeId, NodeState, Nodes, Parent, Usage};
use parking_lot::RwLock;
pub use snapshot::PrefixNode;
pub use states::StateMatch;
use statistics::Counters;
pub use statistics::TreeStatistics;

use super::PrefixKey;

/// Finds the blocks of the longest known prefix of a prompt.
///
/// `B` is a cheap, reference-counted handle of a block of [`block_tokens`](Self::block_tokens)
/// tokens. Whole blocks are shared; a last one that is not full can be copied from, and is replaced
/// by a fuller one of the same beginning. One radix tree per [`PrefixKey`]; edges are runs of
/// blocks and split between them.
///
/// Lookups run side by side under a read lock; what they change (time of use, pins, counters) is
/// atomic. Evicted handles are returned, never dropped under the lock. Which leaf is evicted first
/// is decided by `L`, to which the tree offers its leaves: a page pool, or [`Lru`] for a tree
/// alone.
///
/// `S` is a cheap handle of the state that models with such layers need behind the blocks: see
/// [`lookup_state`](Self::lookup_state).
///
/// ```
/// use ruvllm_kv_cache::prefix::{PrefixKey, PrefixTree, Scope};
///
/// let key = PrefixKey {
///     model: [0; 32],
///     adapter: None,
///     kv_format: "f16".into(),
///     rope_scaling: "none".into(),
///     scope: Scope::Shared,
/// };
/// let tree = PrefixTree::new(4);
/// // Two blocks of four tokens, and one that holds the ninth.
/// tree.insert(&key, &[1, 2, 3, 4, 5, 6, 7, 8, 9], &["a", "b", "c"]);
///
/// let found = tree.lookup(&key, &[1, 2, 3, 4, 5, 6, 0, 0, 0]);
/// assert_eq!(found.blocks, ["a"]);
/// // Two tokens of the next block agree: their rows can be copied.
/// let partial = found.partial.unwrap();
/// assert_eq!((partial.block, partial.tokens), ("b", 2));
/// ```
///
/// # Source
/// `RadixAttention` of `SGLang` (arXiv 2312.07104), with whole blocks as in vLLM's prefix caching.
#[derive(Debug)]
pub struct PrefixTree<B, L = Lru, S = ()> {
    block_tokens: usize,
    state: RwLock<State<B, S>>,
    leaves: L,
    counters: Counters,
    watches: Watches,
}

#[derive(Debug)]
struct State<B, S> {
    roots: HashMap<Arc<PrefixKey>, NodeId>,
    nodes: Nodes<B, S>,
}

/// Result of [`PrefixTree::lookup`].
#[derive(Clone, Debug)]
pub struct Match<B> {
    /// The blocks to share, from the first token on.
    pub blocks: Vec<B>,
    /// Tokens in `blocks`: `blocks.len() * block_tokens`.
    pub tokens: usize,
    /// The next block, where some of its tokens agree.
    pub partial: Option<Partial<B>>,
    /// Reason for the end of the match.
    pub end: MatchEnd,
    /// Keeps the matched path in the tree; none if no whole block was found.
    pub pin: Option<PrefixPin>,
}

/// A block whose first tokens agree: to be copied before the rest is overwritten, not shared.
#[derive(Clone, Debug)]
pub struct Partial<B> {
    /// The block.
    pub block: B,
    /// Number of its tokens that agree: at least one, fewer than a block.
    pub tokens: usize,
}

/// Reason for the end of a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchEnd {
    /// All tokens but the last were found. The last is always computed, for its logits.
    Complete,
    /// Fewer than two tokens were looked up.
    TooShort,
    /// Nothing is cached under the key.
    UnknownKey,
    /// No cached prefix begins with the first block of tokens.
    UnknownStart,
    /// Cached prefixes have another token at this position.
    Diverged {
        /// Position in the tokens that were looked up.
        at: usize,
    },
    /// Cached prefixes end before this position.
    Ended {
        /// Position in the tokens that were looked up.
        at: usize,
    },
}

/// Keeps a path from being evicted until it is dropped.
///
/// A pin outlives the tree without harm, needs no lock, and can be cloned for a sequence that
/// forks.
#[derive(Clone, Debug)]
#[must_use = "the prefix may be evicted as soon as its pin is dropped"]
pub struct PrefixPin(
    #[expect(dead_code, reason = "held, not read: the count of references is the pin")] Arc<Usage>,
);

/// Result of [`PrefixTree::insert`].
#[derive(Clone, Debug)]
pub struct Inserted<B> {
    /// The tree's own whole blocks for the part that it knew already. Those that were given for the
    /// same tokens are duplicates, which the caller may replace by these.
    pub known: Vec<B>,
    /// Number of blocks new in the tree: the others that were given, unless the last is not full
    /// and the tree has a block that begins with its tokens.
    pub new_blocks: usize,
    /// Blocks replaced by fuller ones.
    pub replaced: Vec<B>,
    /// Keeps the inserted path in the tree; none if there was no block.
    pub pin: Option<PrefixPin>,
}

/// Blocks that were evicted.
#[derive(Clone, Debug)]
pub struct Evicted<B, S = ()> {
    /// Key of their tree.
    pub key: Arc<PrefixKey>,
    /// The whole prefix, from the first token to the end of the last evicted block, which need not
    /// be full.
    pub tokens: Vec<u32>,
    /// The last blocks of that prefix; those before are still in the tree.
    pub blocks: Vec<B>,
    /// States behind these blocks.
    pub states: Vec<S>,
}

/// Result of an eviction from a leaf.
enum Taken<B, S> {
    Blocks(Evicted<B, S>),
    /// A state whose blocks stay.
    State(S),
}

/// One descent through the tree of a key.
struct Walk {
    /// Nodes of which at least one block agrees.
    path: Vec<NodeId>,
    /// Blocks that agree in the last of `path`; of the others all do.
    last_blocks: usize,
    tokens: usize,
    /// Node, index of the block in its edge, tokens that agree.
    partial: Option<(NodeId, usize, usize)>,
    end: MatchEnd,
}

impl Walk {
    fn agreeing(&self) -> usize {
        self.tokens + self.partial.map_or(0, |(.., tokens)| tokens)
    }
}

impl<B: Clone> PrefixTree<B> {
    /// An empty tree over blocks of `block_tokens` tokens, whose least recently used leaf is
    /// evicted first.
    ///
    /// # Panics
    /// If `block_tokens` is zero.
    #[must_use]
    pub fn new(block_tokens: usize) -> Self {
        Self::with_leaves(block_tokens, Lru::default())
    }
}

impl<B: Clone, S: Clone> PrefixTree<B, Lru, S> {
    /// Evicts `n_blocks` blocks, or as many as there are without a pin: always from the end of the
    /// least recently used leaf, of whatever key. States that were not used for longer yield
    /// first.
    ///
    /// A block is free once its last handle is dropped. To free memory, drop the result, check the
    /// pool, and evict again.
    pub fn evict(&self, n_blocks: usize) -> Vec<Evicted<B, S>> {
        let (mut evicted, mut missing) = (Vec::new(), n_blocks);
        self.evict_while(|taken| {
            if let Some(Taken::Blocks(taken)) = taken {
                missing = missing.saturating_sub(taken.blocks.len());
                evicted.push(taken);
            }
            missing
        });
        evicted
    }

    /// Evicts a state, the least recently used one of the least recently used leaf's path, and the
    /// blocks that no other state needs. Returns the states taken out; none without one to take.
    pub fn evict_state(&self) -> Vec<S> {
        let mut states = Vec::new();
        self.evict_while(|taken| {
            match taken {
                Some(Taken::State(state)) => states.push(state),
                Some(Taken::Blocks(evicted)) => states.extend(evicted.states),
                None => {}
            }
            usize::from(states.is_empty())
        });
        states
    }

    /// Evicts from the least recently used leaves while `missing` returns a number of blocks that
    /// are wanted. It is called before the first one, and gets what was taken.
    fn evict_while(&self, mut missing: impl FnMut(Option<Taken<B, S>>) -> usize) {
        let (mut wanted, mut pinned) = (missing(None), Vec::new());
        while wanted > 0
            && let Some((turn, leaf)) = self.leaves.pop()
        {
            match self.evict_leaf(leaf, turn, |_| wanted) {
                LeafEviction::Evicted { evicted, has_rest } => {
                    wanted = missing(Some(Taken::Blocks(evicted)));
                    if has_rest {
                        self.leaves.push(turn, leaf);
                    }
                }
                LeafEviction::State(state) => {
                    wanted = missing(Some(Taken::State(state)));
                    self.leaves.push(turn, leaf);
                }
                LeafEviction::Used(used) => self.leaves.push(used.turn, leaf),
                LeafEviction::Pinned => pinned.push((turn, leaf)),
                LeafEviction::Gone => {}
            }
        }
        pinned.into_iter().for_each(|(turn, leaf)| self.leaves.push(turn, leaf));
    }
}

impl<B: Clone, L: Leaves<B>, S: Clone> PrefixTree<B, L, S> {
    /// An empty tree over blocks of `block_tokens` tokens that offers its leaves to `leaves`.
    ///
    /// # Panics
    /// If `block_tokens` is zero.
    #[must_use]
    pub fn with_leaves(block_tokens: usize, leaves: L) -> Self {
        assert!(block_tokens > 0, "a block has at least one token");
        let state = State { roots: HashMap::new(), nodes: Nodes::new(block_tokens) };
        let (counters, watches) = (Counters::default(), Watches::default());
        Self { block_tokens, state: RwLock::new(state), leaves, counters, watches }
    }

    /// Tokens per block.
    #[must_use]
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// The longest cached prefix of `tokens` that `key` may see: of its own scope or of
    /// [`Scope::Shared`], whichever is longer. At least the last token is left to compute.
    ///
    /// Prefixes of other tenants change neither the result nor the time.
    ///
    /// [`Scope::Shared`]: super::Scope::Shared
    #[must_use]
    pub fn lookup(&self, key: &PrefixKey, tokens: &[u32]) -> Match<B> {
        let wanted = tokens.split_last().map_or(tokens, |(_, wanted)| wanted);
        let found = self.find(key, wanted);
        self.counters.count_lookup(tokens.len(), &found);
        found
    }

    /// As [`lookup`](Self::lookup), of all tokens, and not counted: for callers that compute
    /// nothing.
    #[must_use]
    pub fn peek(&self, key: &PrefixKey, tokens: &[u32]) -> Match<B> {
        self.find(key, tokens)
    }

    /// Appends up to `most` tokens that follow all of `tokens` in a prefix that `key` may see to
    /// `next`; the most recently used one of several. No prefix counts as used by this.
    pub fn continuation(&self, key: &PrefixKey, tokens: &[u32], most: usize, next: &mut Vec<u32>) {
        if tokens.is_empty() {
            return;
        }
        let (before, end) = (next.len(), next.len() + most);
        let state = self.state.read();
        let roots = key.visible().filter_map(|key| state.roots.get(&key).copied());
        for root in roots {
            let walk = self.walk(&state.nodes, root, tokens);
            if walk.agreeing() < tokens.len() {
                continue;
            }
            // Node in which the tokens end, and tokens of its edge before that.
            let last = walk.path.last().copied().unwrap_or(root);
            let (mut id, mut at) = match walk.partial {
                Some((id, block, tokens)) => (id, block * self.block_tokens + tokens),
                None => (last, walk.last_blocks * self.block_tokens),
            };
            while next.len() < end {
                let node = state.nodes.get(id);
                let rest = node.label.get(at..).unwrap_or_default();
                next.extend(rest.iter().take(end - next.len()));
                let latest = node.children.iter().max_by_key(|&&child| state.nodes.get(child).used().turn);
                let Some(&child) = latest else { break };
                (id, at) = (child, 0);
            }
            if next.len() > before {
                return;
            }
        }
    }

    fn find(&self, key: &PrefixKey, wanted: &[u32]) -> Match<B> {
        let nothing = |end| Match { blocks: Vec::new(), tokens: 0, partial: None, end, pin: None };
        if wanted.is_empty() {
            return nothing(MatchEnd::TooShort);
        }
        let state = self.state.read();
        let roots = key.visible().filter_map(|key| state.roots.get(&key));
        // Of equal lengths the last is taken: the request's own.
        let walks = roots.map(|&root| self.walk(&state.nodes, root, wanted));
        let Some(walk) = walks.max_by_key(Walk::agreeing) else {
            return nothing(MatchEnd::UnknownKey);
        };

        let now = self.leaves.now();
        let mut blocks = Vec::with_capacity(walk.tokens / self.block_tokens);
        let mut pin = None;
        for (i, &id) in walk.path.iter().enumerate() {
            let node = state.nodes.get(id);
            let is_last = i + 1 == walk.path.len();
            let agreeing = if is_last { walk.last_blocks } else { node.blocks.len() };
            blocks.extend_from_slice(&node.blocks[..agreeing]);
            node.touch(now);
            // Only leaves are evicted, so the deepest node holds the whole path.
            pin = is_last.then(|| PrefixPin(Arc::clone(node.usage())));
        }
        let partial = walk.partial.map(|(id, block, tokens)| {
            let node = state.nodes.get(id);
            node.touch(now);
            Partial { block: node.blocks[block].clone(), tokens }
        });
        Match { blocks, tokens: walk.tokens, partial, end: walk.end, pin }
    }

    /// Follows `wanted` down from `root` as far as it is known.
    fn walk(&self, nodes: &Nodes<B, S>, root: NodeId, wanted: &[u32]) -> Walk {
        let mut walk =
            Walk { path: Vec::new(), last_blocks: 0, tokens: 0, partial: None, end: MatchEnd::Complete };
        let mut id = root;
        while walk.tokens < wanted.len() {
            let Some((child, agreeing)) = nodes.closest_child(id, &wanted[walk.tokens..]) else {
                walk.end = MatchEnd::Ended { at: walk.tokens };
                return walk;
            };
            let n_blocks = agreeing / self.block_tokens;
            if n_blocks > 0 {
                walk.path.push(child);
                walk.last_blocks = n_blocks;
                walk.tokens += n_blocks * self.block_tokens;
            }
            let node = nodes.get(child);
            if n_blocks < node.blocks.len() {
                let rest = agreeing % self.block_tokens;
                walk.partial = (rest > 0).then_some((child, n_blocks, rest));
                let at = walk.agreeing();
                walk.end = match () {
                    () if at == wanted.len() => MatchEnd::Complete,
                    () if agreeing == node.label.len() => MatchEnd::Ended { at },
                    () if walk.tokens == 0 => MatchEnd::UnknownStart,
                    () => MatchEnd::Diverged { at },
                };
                return walk;
            }
            id = child;
        }
        walk
    }

    /// Makes the blocks of `tokens` known under `key`. Where the tree has a whole block for the
    /// same tokens already, it keeps its own. A last block that is not full must not be written any
    /// more.
    ///
    /// # Shapes
    /// `blocks`: `[tokens.len() / block_tokens]`, rounded up, or down to leave the last tokens out.
    ///
    /// # Panics
    /// If the number of blocks is another.
    pub fn insert(&self, key: &PrefixKey, tokens: &[u32], blocks: &[B]) -> Inserted<B> {
        self.insert_with(key, tokens, blocks, None).0
    }

    /// As [`insert`](Self::insert), with the state behind the last block. Returns a state that is
    /// not needed: the tree keeps its own for the same tokens.
    fn insert_with(
        &self,
        key: &PrefixKey,
        tokens: &[u32],
        blocks: &[B],
        new_state: Option<S>,
    ) -> (Inserted<B>, Option<S>) {
        let n_blocks = blocks.len();
        let fits = [tokens.len() / self.block_tokens, tokens.len().div_ceil(self.block_tokens)];
        assert!(fits.contains(&n_blocks), "insert: {n_blocks} blocks for {} tokens", tokens.len());
        let tokens = &tokens[..tokens.len().min(n_blocks * self.block_tokens)];
        let mut inserted = Inserted { known: Vec::new(), new_blocks: 0, replaced: Vec::new(), pin: None };
        if n_blocks == 0 {
            return (inserted, new_state);
        }
        let mut state = self.state.write();
        let state = &mut *state;
        let now = self.leaves.now();
        let mut id = state.root(key);
        let known = &mut inserted.known;
        while known.len() < n_blocks {
            let (rest, rest_blocks) = (&tokens[known.len() * self.block_tokens..], &blocks[known.len()..]);
            let (child, agreeing) = state.nodes.closest_child(id, rest).unwrap_or((id, 0));
            let node = state.nodes.get(child);
            if agreeing >= self.block_tokens {
                let agreeing = agreeing / self.block_tokens;
                let is_whole = agreeing == node.blocks.len();
                id = if is_whole { child } else { state.nodes.split(child, agreeing) };
                let node = state.nodes.get(id);
                node.touch(now);
                known.extend_from_slice(&node.blocks);
                continue;
            }
            if agreeing == rest.len() {
                // A block that is not full, and is the beginning of one that is there.
                break;
            }
            if agreeing > 0 && agreeing == node.label.len() {
                node.touch(now);
                inserted.replaced = state.nodes.replace(child, rest, rest_blocks);
                id = child;
            } else {
                id = state.nodes.add_leaf(id, rest, rest_blocks, now);
            }
            inserted.new_blocks = rest_blocks.len();
            self.leaves.offer(id, rest_blocks, now);
            break;
        }
        inserted.pin = Some(PrefixPin(Arc::clone(state.nodes.get(id).usage())));
        let surplus = new_state.and_then(|new| self.add_state(&mut state.nodes, id, new, now.turn));
        let n_known = n_blocks - inserted.new_blocks;
        self.watches.tell(|| {
            let (key, _) = state.roots.get_key_value(key)?;
            PrefixBlocks::new(key, tokens, n_known, self.block_tokens).map(PrefixChange::Stored)
        });
        self.counters.count_insert(n_known, inserted.new_blocks, inserted.replaced.len());
        (inserted, surplus)
    }

    /// Evicts blocks from the end of an offered leaf: as many as `count` returns for its blocks, at
    /// least one. `turn` is its last use that the caller knows of.
    ///
    /// Where blocks have states behind them, the least recently used state of the leaf's path goes
    /// instead, and of the blocks those that no other state needs.
    pub fn evict_leaf(
        &self,
        leaf: LeafId,
        turn: u64,
        count: impl FnOnce(&[B]) -> usize,
    ) -> LeafEviction<B, S> {
        let mut state = self.state.write();
        let state = &mut *state;
        let Some(node) = state.nodes.find(leaf) else { return LeafEviction::Gone };
        if !node.children.is_empty() || node.blocks.is_empty() {
            return LeafEviction::Gone;
        }
        let (used, is_pinned, has_states) = (node.used(), node.is_pinned(), !node.states.is_empty());
        if used.turn > turn {
            return LeafEviction::Used(used);
        }
        if let Some(taken) = state.nodes.take_unneeded_state(leaf, is_pinned) {
            self.counters.count_evicted(0, 1);
            return LeafEviction::State(taken);
        }
        if is_pinned {
            return LeafEviction::Pinned;
        }
        let node = state.nodes.get(leaf);
        let n_blocks = if has_states { node.blocks_of_last_state() } else { count(&node.blocks).max(1) };
        let has_rest = n_blocks < node.blocks.len();
        let (mut evicted, mut parent) = state.take(leaf, n_blocks);
        if has_states {
            parent = state.take_stateless_end(&mut evicted, parent);
        }
        if let Some(parent) = parent {
            let node = state.nodes.get(parent);
            self.leaves.offer(parent, &node.blocks, node.used());
        }
        self.watches.tell(|| {
            let Evicted { key, tokens, blocks, .. } = &evicted;
            let first = tokens.len().div_ceil(self.block_tokens) - blocks.len();
            PrefixBlocks::new(key, tokens, first, self.block_tokens).map(PrefixChange::Removed)
        });
        self.counters.count_evicted(evicted.blocks.len(), evicted.states.len());
        LeafEviction::Evicted { evicted, has_rest }
    }

    /// Counters, and the present size of the tree. Walks all nodes to add up the bytes.
    #[must_use]
    pub fn statistics(&self) -> TreeStatistics {
        let state = self.state.read();
        let mut statistics = self.counters.read();
        (statistics.keys, statistics.nodes) = (state.roots.len(), state.nodes.len());
        for (_, node) in state.nodes.iter() {
            statistics.blocks += node.blocks.len();
            statistics.states += node.states.len();
            statistics.tokens += node.label.len();
        }
        statistics.bytes = state.heap_bytes() + self.leaves.heap_bytes();
        statistics
    }
}

impl<B: Clone, S> State<B, S> {
    fn root(&mut self, key: &PrefixKey) -> NodeId {
        if let Some(&root) = self.roots.get(key) {
            return root;
        }
        let key = Arc::new(key.clone());
        let root = self.nodes.add_root(Arc::clone(&key));
        self.roots.insert(key, root);
        root
    }

    /// Takes up to `n_blocks` from the end of a leaf; a leaf without blocks, and a root without
    /// leaves, are removed. Returns the parent as well if it is a leaf now.
    fn take(&mut self, id: NodeId, n_blocks: usize) -> (Evicted<B, S>, Option<NodeId>) {
        let (key, tokens) = self.nodes.path_of(id);
        let of = |states: Vec<NodeState<S>>| states.into_iter().map(|state| state.state).collect();
        if n_blocks < self.nodes.get(id).blocks.len() {
            let (blocks, states) = self.nodes.shorten(id, n_blocks);
            return (Evicted { key, tokens, blocks, states: of(states) }, None);
        }
        let removed = self.nodes.remove(id);
        let mut leaf = None;
        if let Parent::Node(parent) = removed.parent {
            let above = self.nodes.get(parent);
            match above.parent {
                _ if !above.children.is_empty() => {}
                Parent::Node(_) => leaf = Some(parent),
                Parent::Key(_) => {
                    self.nodes.remove(parent);
                    self.roots.remove(&key);
                }
            }
        }
        (Evicted { key, tokens, blocks: removed.blocks, states: of(removed.states) }, leaf)
    }

    fn heap_bytes(&self) -> usize {
        // A hash table has a control byte per bucket, and keeps one bucket in eight free.
        const BUCKET: usize = size_of::<(Arc<PrefixKey>, NodeId)>() + 1;
        let table = self.roots.capacity().div_ceil(7) * 8 * BUCKET;
        let keys =
            self.roots.keys().map(|key| size_of::<PrefixKey>() + 2 * size_of::<usize>() + key.heap_bytes());
        table + keys.sum::<usize>() + self.nodes.heap_bytes()
    }
}
