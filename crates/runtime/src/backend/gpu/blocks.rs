//! KV blocks of sequences and of stored prefixes: free ones, and the holders of the others.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ruvllm_kv_cache::prefix::{Lru, Match, PrefixKey, PrefixTree, Scope, StateMatch, TreeStatistics};
use ruvllm_text::TokenId;

use super::free_blocks::{Block, FreeBlocks};
use super::host_blocks::{Direction, HostBlocks, Transfers};

/// Numbers of the blocks of a KV cache, and the prefixes that are stored in some of them.
///
/// A block is free, or held by sequences, by the prefix tree, or by both. Prefixes yield to
/// sequences: the least recently used one is evicted first, from its end, to memory of the host
/// where there is a place for it.
#[derive(Debug)]
pub(super) struct BlockPool {
    block_tokens: usize,
    blocks: usize,
    state: Arc<FreeBlocks>,
    /// With slots of states behind blocks, in models whose layers keep some.
    prefixes: PrefixTree<Arc<Block>, Lru, Arc<Block>>,
    host: Option<HostBlocks>,
}

/// Stored beginning of a prompt.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Its tokens.
    pub(super) tokens: usize,
    /// State behind them; `None` without tokens.
    pub(super) state: Option<Arc<Block>>,
    /// Tokens whose blocks are stored, with or without a state behind them.
    pub(super) blocks: usize,
}

/// A sequence's hold on a block.
#[derive(Debug)]
struct Held(Arc<Block>);

/// Blocks of a sequence, in the order of its tokens. Those that others hold too
/// are not written.
#[derive(Debug)]
pub(super) struct Lease {
    held: Vec<Held>,
    table: Vec<u32>,
    block_tokens: usize,
}

impl BlockPool {
    /// `blocks` free blocks of `block_tokens` tokens, and `on_host` in memory of the host.
    pub(super) fn new(blocks: u32, on_host: u32, block_tokens: usize) -> Self {
        Self {
            block_tokens,
            blocks: blocks as usize,
            state: FreeBlocks::new(blocks),
            prefixes: PrefixTree::with_leaves(block_tokens, Lru::default()),
            host: (on_host > 0).then(|| HostBlocks::new(on_host, block_tokens)),
        }
    }

    /// Tokens for which there is room, once prefixes have been evicted.
    pub(super) fn room(&self) -> usize {
        (self.blocks - self.state.in_use.load(Relaxed)) * self.block_tokens
    }

    /// Counters of the stored prefixes.
    pub(super) fn statistics(&self) -> TreeStatistics {
        self.prefixes.statistics()
    }

    /// Counters of the prefixes in memory of the host, if there is a place for them.
    pub(super) fn host_statistics(&self) -> Option<TreeStatistics> {
        self.host.as_ref().map(HostBlocks::statistics)
    }

    /// Takes blocks for `tokens` tokens.
    ///
    /// # Errors
    /// Number of tokens for which there is room.
    pub(super) fn lease(&self, tokens: usize, transfers: &dyn Transfers) -> Result<Lease, usize> {
        self.extend(Vec::new(), tokens, transfers)
    }

    /// Takes blocks for `tokens` tokens, of which the first are those of the longest stored prefix
    /// of `prompt`, the last token left out; returns the number of tokens in these as well. None
    /// if they are fewer than `least`.
    ///
    /// # Errors
    /// As [`lease`](Self::lease).
    pub(super) fn lease_with_prefix(
        &self,
        tokens: usize,
        key: &PrefixKey,
        prompt: &[TokenId],
        least: usize,
        transfers: &dyn Transfers,
    ) -> Result<(Lease, usize), usize> {
        let is_worth = |blocks: usize| (least..=tokens).contains(&(blocks * self.block_tokens));
        // Only the blocks stay: what else a match holds would keep the prefix from being evicted.
        let Match { mut blocks, .. } = self.prefixes.lookup(key, prompt);
        let on_host = self.host.as_ref().map_or(Vec::new(), |host| host.find(key, prompt));
        if !is_worth(blocks.len()) {
            blocks.clear();
        }
        // Held from here on, so that making room for the rest does not free them.
        let mut held: Vec<Held> = blocks.into_iter().map(Held::new).collect();
        if on_host.len() > held.len() && is_worth(on_host.len()) {
            self.restore(&mut held, &on_host, key, prompt, transfers)?;
        }
        let known = held.len() * self.block_tokens;
        Ok((self.extend(held, tokens, transfers)?, known))
    }

    /// As [`lease_with_prefix`](Self::lease_with_prefix), in a model whose layers keep a state: the
    /// prefix ends with a stored one.
    ///
    /// # Errors
    /// As [`lease`](Self::lease).
    pub(super) fn lease_with_state(
        &self,
        tokens: usize,
        key: &PrefixKey,
        prompt: &[TokenId],
        least: usize,
        transfers: &dyn Transfers,
    ) -> Result<(Lease, Known), usize> {
        let StateMatch { found, state, known_tokens } = self.prefixes.lookup_state(key, prompt);
        let is_worth = state.is_some() && (least..=tokens).contains(&found.tokens);
        let blocks = if is_worth { found.blocks } else { Vec::new() };
        let held: Vec<Held> = blocks.into_iter().map(Held::new).collect();
        let (tokens_of, state) = if is_worth { (found.tokens, state) } else { (0, None) };
        let known = Known { tokens: tokens_of, state, blocks: known_tokens };
        // The pin of the match goes here, so that making room may evict the rest of its path.
        drop(found.pin);
        Ok((self.extend(held, tokens, transfers)?, known))
    }

    /// Continues the blocks of a prefix by those that memory of the host has of it.
    fn restore(
        &self,
        held: &mut Vec<Held>,
        on_host: &[Arc<Block>],
        key: &PrefixKey,
        prompt: &[TokenId],
        transfers: &dyn Transfers,
    ) -> Result<(), usize> {
        let sources = &on_host[held.len()..];
        let fresh = self.take(sources.len(), transfers)?;
        let pairs: Vec<_> = sources.iter().zip(&fresh).map(|(from, to)| (from.index, to.0.index)).collect();
        if transfers.copy(Direction::ToDevice, &pairs) {
            held.extend(fresh);
            let blocks: Vec<_> = held.iter().map(|held| Arc::clone(&held.0)).collect();
            self.prefixes.insert(key, &prompt[..blocks.len() * self.block_tokens], &blocks);
        }
        Ok(())
    }

    fn extend(&self, mut held: Vec<Held>, tokens: usize, transfers: &dyn Transfers) -> Result<Lease, usize> {
        let missing = tokens.div_ceil(self.block_tokens).saturating_sub(held.len());
        held.extend(self.take(missing, transfers)?);
        let table = held.iter().map(|held| held.0.index).collect();
        Ok(Lease { held, table, block_tokens: self.block_tokens })
    }

    fn take(&self, n: usize, transfers: &dyn Transfers) -> Result<Vec<Held>, usize> {
        loop {
            let missing = match self.state.take(n) {
                Ok(taken) => return Ok(taken.into_iter().map(Held::new).collect()),
                Err(missing) => missing,
            };
            // Blocks that sequences hold too stay with those, so that this may take several rounds.
            let evicted = self.prefixes.evict(missing);
            if evicted.is_empty() {
                return Err(self.room());
            }
            if let Some(host) = &self.host {
                // Their blocks are free, and written to, only once they are dropped.
                evicted.iter().for_each(|evicted| host.spill(evicted, &self.prefixes, transfers));
            }
        }
    }

    /// Stores the first `tokens` of a sequence, in whole blocks, as a prefix; the first `shared` of
    /// them for all tenants too. The sequence must not write to these blocks any more.
    pub(super) fn keep(&self, lease: &Lease, key: &PrefixKey, tokens: &[TokenId], shared: usize) {
        let of_all = PrefixKey { scope: Scope::Shared, ..key.clone() };
        for (key, tokens) in [(of_all, &tokens[..shared.min(tokens.len())]), (key.clone(), tokens)] {
            let whole = (tokens.len() / self.block_tokens).min(lease.held.len());
            if whole > 0 {
                let blocks: Vec<_> = lease.held[..whole].iter().map(|held| Arc::clone(&held.0)).collect();
                self.prefixes.insert(&key, &tokens[..whole * self.block_tokens], &blocks);
            }
        }
    }

    /// Stores the first `tokens` of a sequence, whole blocks, as a prefix with the state behind
    /// them, for all tenants too or for its own alone. The sequence must not write to these blocks
    /// any more.
    pub(super) fn keep_with_state(
        &self,
        lease: &Lease,
        key: &PrefixKey,
        tokens: &[TokenId],
        for_all: bool,
        state: &Arc<Block>,
    ) {
        let of_all = PrefixKey { scope: Scope::Shared, ..key.clone() };
        let held = &lease.held[..tokens.len() / self.block_tokens];
        let blocks: Vec<_> = held.iter().map(|held| Arc::clone(&held.0)).collect();
        for key in for_all.then_some(&of_all).into_iter().chain([key]) {
            self.prefixes.insert_state(key, tokens, &blocks, Arc::clone(state));
        }
    }

    /// Evicts a state, so that its slot is free unless sequences hold it; false without one.
    pub(super) fn evict_state(&self) -> bool {
        !self.prefixes.evict_state().is_empty()
    }

    /// Tokens of a block.
    pub(super) fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Replaces those blocks with positions from `len` on that others hold too, so that the
    /// sequence can write to them; returns the number of tokens that it still has, down from `len`
    /// to the border of a block. `None` if there are no such blocks.
    ///
    /// # Errors
    /// As [`lease`](Self::lease); nothing has changed then.
    pub(super) fn unshare(
        &self,
        lease: &mut Lease,
        len: usize,
        transfers: &dyn Transfers,
    ) -> Result<Option<usize>, usize> {
        let first = len / self.block_tokens;
        let is_shared = |at: &usize| Arc::strong_count(&lease.held[*at].0) > 1;
        let shared: Vec<usize> = (first..lease.held.len()).filter(is_shared).collect();
        let Some(&next) = shared.first() else { return Ok(None) };
        let fresh = self.take(shared.len(), transfers)?;
        for (at, held) in shared.into_iter().zip(fresh) {
            lease.table[at] = held.0.index;
            lease.held[at] = held;
        }
        Ok(Some(if next == first { first * self.block_tokens } else { len }))
    }
}

impl Lease {
    /// Block table of the sequence.
    pub(super) fn blocks(&self) -> &[u32] {
        &self.table
    }

    /// Slot of the keys and values of a position.
    pub(super) fn slot(&self, position: usize) -> u32 {
        let (block, at) = (position / self.block_tokens, position % self.block_tokens);
        self.table[block] * self.block_tokens as u32 + at as u32
    }
}

impl Held {
    fn new(block: Arc<Block>) -> Self {
        if block.sequences.fetch_add(1, Relaxed) == 0 {
            block.state.in_use.fetch_add(1, Relaxed);
        }
        Self(block)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.0.sequences.fetch_sub(1, Relaxed) == 1 {
            self.0.state.in_use.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Tokens of a block.
    const BLOCK: usize = 4;

    fn key(tenant: &str) -> PrefixKey {
        PrefixKey {
            model: [0; 32],
            adapter: None,
            kv_format: "f16".into(),
            rope_scaling: "usual".into(),
            scope: Scope::Tenant(tenant.into()),
        }
    }

    /// Content of slots: the tokens up to and with theirs.
    type Slots = HashMap<u32, Vec<TokenId>>;

    /// Contents of the slots of device and host.
    #[derive(Default)]
    struct Memories {
        device: RefCell<Slots>,
        host: RefCell<Slots>,
        /// Blocks copied to the host, and back.
        copied: RefCell<[usize; 2]>,
    }

    impl Transfers for Memories {
        fn copy(&self, direction: Direction, pairs: &[(u32, u32)]) -> bool {
            let (from, to) = match direction {
                Direction::ToHost => (&self.device, &self.host),
                Direction::ToDevice => (&self.host, &self.device),
            };
            for &(source, target) in pairs {
                for at in 0..BLOCK as u32 {
                    let content = from.borrow().get(&(source * BLOCK as u32 + at)).cloned();
                    to.borrow_mut().insert(target * BLOCK as u32 + at, content.unwrap_or_default());
                }
            }
            self.copied.borrow_mut()[usize::from(direction == Direction::ToDevice)] += pairs.len();
            true
        }
    }

    fn known(pool: &BlockPool, tenant: &str, prompt: &[TokenId]) -> usize {
        pool.lease_with_prefix(prompt.len(), &key(tenant), prompt, 0, &Memories::default()).expect("room").1
    }

    #[test]
    fn whole_blocks_of_a_tenant_are_found_by_its_requests() {
        let pool = BlockPool::new(16, 0, BLOCK);
        let prompt: Vec<TokenId> = (0..14).collect();
        let lease = pool.lease(14, &Memories::default()).expect("room");
        assert_eq!(pool.room(), 12 * BLOCK);
        pool.keep(&lease, &key("a"), &prompt, 5);
        drop(lease);
        assert_eq!(pool.room(), 16 * BLOCK, "stored prefixes yield");
        assert_eq!(known(&pool, "a", &prompt), 12);
        // The last token is computed in any case, and a block that differs.
        assert_eq!(known(&pool, "a", &prompt[..12]), 8);
        assert_eq!(known(&pool, "a", &[&prompt[..6], &[9; 8]].concat()), 4);
        // Only the part that is for all.
        assert_eq!(known(&pool, "b", &prompt), 4);
        // Fewer than are worth taking.
        let few = pool.lease_with_prefix(14, &key("a"), &prompt, 13, &Memories::default()).expect("room");
        assert_eq!(few.1, 0);
    }

    #[test]
    fn prefixes_are_evicted_from_the_end_of_the_oldest() {
        let pool = BlockPool::new(8, 0, BLOCK);
        let prompts = [[1; 12], [2; 12]];
        for prompt in &prompts {
            let lease = pool.lease(12, &Memories::default()).expect("room");
            pool.keep(&lease, &key(""), prompt, 0);
        }
        let all = pool.lease(4 * BLOCK, &Memories::default()).expect("room");
        drop(all);
        let found = prompts.map(|prompt| known(&pool, "", &[&prompt[..], &[7]].concat()));
        assert_eq!(found, [4, 12]);
        assert_eq!(pool.lease(9 * BLOCK, &Memories::default()).expect_err("no room"), 8 * BLOCK);
    }

    #[test]
    fn a_sequence_that_is_cut_within_shared_blocks_gets_its_own() {
        let pool = BlockPool::new(6, 0, BLOCK);
        let mut lease = pool.lease(14, &Memories::default()).expect("room");
        let prompt: Vec<TokenId> = (0..12).collect();
        pool.keep(&lease, &key(""), &prompt, 0);
        let before = lease.blocks().to_vec();
        assert_eq!(
            pool.unshare(&mut lease, 12, &Memories::default()),
            Ok(None),
            "the fourth block is its own"
        );
        assert_eq!(pool.unshare(&mut lease, 6, &Memories::default()), Ok(Some(4)));
        assert_eq!((&lease.blocks()[..1], &lease.blocks()[3..]), (&before[..1], &before[3..]));
        assert!(before[1..3].iter().all(|block| !lease.blocks().contains(block)));
        assert_eq!(pool.unshare(&mut lease, 5, &Memories::default()), Ok(None));
        // Another sequence holds the stored blocks: there is no room for more.
        let held = pool
            .lease_with_prefix(12, &key(""), &[&prompt[..], &[1]].concat(), 0, &Memories::default())
            .expect("room");
        assert_eq!((held.1, pool.room()), (12, 0));
        assert_eq!(pool.unshare(&mut lease, 0, &Memories::default()), Err(0));
    }

    /// Appends the tokens of a prompt that are not known, and stores all.
    fn compute(pool: &BlockPool, memories: &Memories, prompt: &[TokenId]) -> usize {
        let taken = pool.lease_with_prefix(prompt.len(), &key(""), prompt, 0, memories);
        let (lease, known) = taken.expect("room");
        let tokens = prompt[..known].to_vec();
        let mut member = Member { lease, tokens, capacity: prompt.len() };
        member.check(memories);
        member.append(memories, &prompt[known..]);
        pool.keep(&member.lease, &key(""), prompt, 0);
        known
    }

    #[test]
    fn what_sequences_displace_comes_back_from_the_host() {
        let (pool, memories) = (BlockPool::new(8, 7, BLOCK), Memories::default());
        let prompts: Vec<Vec<TokenId>> = (1..4).map(|kind| vec![kind; 13]).collect();
        // Each takes four of eight blocks; the third displaces two of the first, which goes to the
        // host with its beginning.
        let first = prompts.iter().map(|prompt| compute(&pool, &memories, prompt));
        assert_eq!(first.collect::<Vec<_>>(), [0, 0, 0]);
        assert_eq!(*memories.copied.borrow(), [3, 0]);
        assert_eq!(compute(&pool, &memories, &prompts[0]), 12);
        assert_eq!(memories.copied.borrow()[1], 2);
        assert!(pool.host_statistics().is_some_and(|host| host.blocks >= 3));
        // More than the host has room for: the oldest goes.
        for kind in 10..20 {
            compute(&pool, &memories, &[kind; 13]);
            assert!(pool.host_statistics().is_some_and(|host| host.blocks <= 7));
        }
        assert_eq!(compute(&pool, &memories, &prompts[0]), 0);
        // A prefix that is longer than the place of all is not kept, and displaces nothing.
        let before = pool.host_statistics().map(|host| host.blocks);
        let long: Vec<TokenId> = (100..132).collect();
        compute(&pool, &memories, &long);
        compute(&pool, &memories, &[99; 32]);
        assert!(before.is_some() && known(&pool, "", &long) < 32);
    }

    /// A change of a pool: a request begins with tokens of few kinds, stores its prompt, is cut, or
    /// ends.
    #[derive(Debug, Clone)]
    enum Change {
        Begin { prompt: Vec<TokenId>, more: usize },
        Keep(usize),
        Cut(usize, usize),
        End(usize),
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let prompt = prop::collection::vec(0u32..2, 1..5)
            .prop_map(|kinds| kinds.into_iter().flat_map(|kind| [kind; 3]).collect());
        let change = prop_oneof![
            3 => (prompt, 0usize..9).prop_map(|(prompt, more)| Change::Begin { prompt, more }),
            3 => (0usize..4).prop_map(Change::Keep),
            2 => (0usize..4, 0usize..14).prop_map(|(of, len)| Change::Cut(of, len)),
            2 => (0usize..4).prop_map(Change::End),
        ];
        prop::collection::vec(change, 1..60)
    }

    /// A sequence, and what was written to its blocks.
    struct Member {
        lease: Lease,
        tokens: Vec<TokenId>,
        capacity: usize,
    }

    impl Member {
        fn append(&mut self, memories: &Memories, tokens: &[TokenId]) {
            for &token in tokens {
                let slot = self.lease.slot(self.tokens.len());
                self.tokens.push(token);
                memories.device.borrow_mut().insert(slot, self.tokens.clone());
            }
        }

        fn check(&self, memories: &Memories) {
            for position in 0..self.tokens.len() {
                assert_eq!(memories.device.borrow()[&self.lease.slot(position)], self.tokens[..=position]);
            }
        }
    }

    proptest! {
        /// Sequences read what they wrote or what others computed of the same tokens, whatever the
        /// others do meanwhile, with and without a place for prefixes on the host, and the room is
        /// there.
        #[test]
        fn no_sequence_writes_what_others_read(changes in changes(), on_host in 0u32..9) {
            let pool = BlockPool::new(12, on_host, BLOCK);
            let (memories, mut members) = (Memories::default(), Vec::<Member>::new());
            for change in changes {
                match change {
                    Change::Begin { prompt, more } => {
                        let capacity = prompt.len() + more;
                        let room = pool.room();
                        let begun = pool.lease_with_prefix(capacity, &key(""), &prompt, 0, &memories);
                        prop_assert!(begun.is_ok() || capacity.div_ceil(BLOCK) * BLOCK > room);
                        if let Ok((lease, known)) = begun {
                            prop_assert!(known < prompt.len() && known.is_multiple_of(BLOCK));
                            let tokens = prompt[..known].to_vec();
                            let mut member = Member { lease, tokens, capacity };
                            member.check(&memories);
                            member.append(&memories, &prompt[known..]);
                            members.push(member);
                        }
                    }
                    Change::Keep(of) => {
                        if let Some(member) = members.get(of) {
                            pool.keep(&member.lease, &key(""), &member.tokens, 0);
                        }
                    }
                    Change::Cut(of, len) => {
                        if let Some(member) = members.get_mut(of) {
                            let len = len.min(member.tokens.len());
                            if let Ok(kept) = pool.unshare(&mut member.lease, len, &memories) {
                                member.tokens.truncate(kept.unwrap_or(len));
                                let rest = vec![7; member.capacity - member.tokens.len()];
                                member.append(&memories, &rest);
                            }
                        }
                    }
                    Change::End(of) => {
                        if of < members.len() {
                            members.swap_remove(of);
                        }
                    }
                }
                members.iter().for_each(|member| member.check(&memories));
            }
            let room = pool.room();
            prop_assert!(pool.lease(room, &Memories::default()).is_ok(), "room for {} tokens", room);
        }
    }
}
