//! KV blocks of sequences and of stored prefixes: free ones, and the holders of the others.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use ruvllm_kv_cache::prefix::{Match, PrefixKey, PrefixTree, Scope, TreeStatistics};
use ruvllm_text::TokenId;

/// Numbers of the blocks of a KV cache, and the prefixes that are stored in some of them.
///
/// A block is free, or held by sequences, by the prefix tree, or by both. Prefixes yield to
/// sequences: the least recently used one is evicted first, from its end.
#[derive(Debug)]
pub(super) struct BlockPool {
    block_tokens: usize,
    blocks: usize,
    state: Arc<State>,
    prefixes: PrefixTree<Arc<Block>>,
}

#[derive(Debug)]
struct State {
    free: Mutex<Vec<u32>>,
    /// Blocks that sequences hold.
    in_use: AtomicUsize,
}

/// A block that is not free; dropping the last handle frees it.
#[derive(Debug)]
struct Block {
    index: u32,
    /// Sequences that hold it.
    sequences: AtomicUsize,
    state: Arc<State>,
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
    /// `blocks` free blocks of `block_tokens` tokens.
    pub(super) fn new(blocks: u32, block_tokens: usize) -> Self {
        let free = Mutex::new((0..blocks).rev().collect());
        Self {
            block_tokens,
            blocks: blocks as usize,
            state: Arc::new(State { free, in_use: AtomicUsize::new(0) }),
            prefixes: PrefixTree::new(block_tokens),
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

    /// Takes blocks for `tokens` tokens.
    ///
    /// # Errors
    /// Number of tokens for which there is room.
    pub(super) fn lease(&self, tokens: usize) -> Result<Lease, usize> {
        self.extend(Vec::new(), tokens)
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
    ) -> Result<(Lease, usize), usize> {
        // Only the blocks stay: what else a match holds would keep the prefix from being evicted.
        let Match { mut blocks, tokens: mut known, .. } = self.prefixes.lookup(key, prompt);
        if known > tokens || known < least {
            (blocks, known) = (Vec::new(), 0);
        }
        // Held from here on, so that making room for the rest does not free them.
        let held = blocks.into_iter().map(Held::new).collect();
        Ok((self.extend(held, tokens)?, known))
    }

    fn extend(&self, mut held: Vec<Held>, tokens: usize) -> Result<Lease, usize> {
        let missing = tokens.div_ceil(self.block_tokens).saturating_sub(held.len());
        held.extend(self.take(missing)?);
        let table = held.iter().map(|held| held.0.index).collect();
        Ok(Lease { held, table, block_tokens: self.block_tokens })
    }

    fn take(&self, n: usize) -> Result<Vec<Held>, usize> {
        loop {
            let missing = {
                let mut free = self.state.free.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(kept) = free.len().checked_sub(n) {
                    let taken = free.split_off(kept).into_iter();
                    let block = |index| Block {
                        index,
                        sequences: AtomicUsize::new(0),
                        state: Arc::clone(&self.state),
                    };
                    return Ok(taken.map(|index| Held::new(Arc::new(block(index)))).collect());
                }
                n - free.len()
            };
            // Blocks that sequences hold too stay with those, so that this may take several rounds.
            if self.prefixes.evict(missing).is_empty() {
                return Err(self.room());
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

    /// Replaces those blocks with positions from `len` on that others hold too, so that the
    /// sequence can write to them; returns the number of tokens that it still has, down from `len`
    /// to the border of a block. `None` if there are no such blocks.
    ///
    /// # Errors
    /// As [`lease`](Self::lease); nothing has changed then.
    pub(super) fn unshare(&self, lease: &mut Lease, len: usize) -> Result<Option<usize>, usize> {
        let first = len / self.block_tokens;
        let is_shared = |at: &usize| Arc::strong_count(&lease.held[*at].0) > 1;
        let shared: Vec<usize> = (first..lease.held.len()).filter(is_shared).collect();
        let Some(&next) = shared.first() else { return Ok(None) };
        let fresh = self.take(shared.len())?;
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

impl Drop for Block {
    fn drop(&mut self) {
        self.state.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
    }
}

#[cfg(test)]
mod tests {
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

    fn known(pool: &BlockPool, tenant: &str, prompt: &[TokenId]) -> usize {
        pool.lease_with_prefix(prompt.len(), &key(tenant), prompt, 0).expect("room").1
    }

    #[test]
    fn whole_blocks_of_a_tenant_are_found_by_its_requests() {
        let pool = BlockPool::new(16, BLOCK);
        let prompt: Vec<TokenId> = (0..14).collect();
        let lease = pool.lease(14).expect("room");
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
        let few = pool.lease_with_prefix(14, &key("a"), &prompt, 13).expect("room");
        assert_eq!(few.1, 0);
    }

    #[test]
    fn prefixes_are_evicted_from_the_end_of_the_oldest() {
        let pool = BlockPool::new(8, BLOCK);
        let prompts = [[1; 12], [2; 12]];
        for prompt in &prompts {
            let lease = pool.lease(12).expect("room");
            pool.keep(&lease, &key(""), prompt, 0);
        }
        let all = pool.lease(4 * BLOCK).expect("room");
        drop(all);
        let found = prompts.map(|prompt| known(&pool, "", &[&prompt[..], &[7]].concat()));
        assert_eq!(found, [4, 12]);
        assert_eq!(pool.lease(9 * BLOCK).expect_err("no room"), 8 * BLOCK);
    }

    #[test]
    fn a_sequence_that_is_cut_within_shared_blocks_gets_its_own() {
        let pool = BlockPool::new(6, BLOCK);
        let mut lease = pool.lease(14).expect("room");
        let prompt: Vec<TokenId> = (0..12).collect();
        pool.keep(&lease, &key(""), &prompt, 0);
        let before = lease.blocks().to_vec();
        assert_eq!(pool.unshare(&mut lease, 12), Ok(None), "the fourth block is its own");
        assert_eq!(pool.unshare(&mut lease, 6), Ok(Some(4)));
        assert_eq!((&lease.blocks()[..1], &lease.blocks()[3..]), (&before[..1], &before[3..]));
        assert!(before[1..3].iter().all(|block| !lease.blocks().contains(block)));
        assert_eq!(pool.unshare(&mut lease, 5), Ok(None));
        // Another sequence holds the stored blocks: there is no room for more.
        let held = pool.lease_with_prefix(12, &key(""), &[&prompt[..], &[1]].concat(), 0).expect("room");
        assert_eq!((held.1, pool.room()), (12, 0));
        assert_eq!(pool.unshare(&mut lease, 0), Err(0));
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

    /// Content of slots: the tokens up to and with theirs.
    type Slots = HashMap<u32, Vec<TokenId>>;

    impl Member {
        fn append(&mut self, slots: &mut Slots, tokens: &[TokenId]) {
            for &token in tokens {
                let slot = self.lease.slot(self.tokens.len());
                self.tokens.push(token);
                slots.insert(slot, self.tokens.clone());
            }
        }

        fn check(&self, slots: &Slots) {
            for position in 0..self.tokens.len() {
                assert_eq!(slots[&self.lease.slot(position)], self.tokens[..=position]);
            }
        }
    }

    proptest! {
        /// Sequences read what they wrote or what others computed of the same tokens, whatever the
        /// others do meanwhile, and the room is there.
        #[test]
        fn no_sequence_writes_what_others_read(changes in changes()) {
            let pool = BlockPool::new(12, BLOCK);
            let (mut slots, mut members) = (Slots::new(), Vec::<Member>::new());
            for change in changes {
                match change {
                    Change::Begin { prompt, more } => {
                        let capacity = prompt.len() + more;
                        let room = pool.room();
                        let begun = pool.lease_with_prefix(capacity, &key(""), &prompt, 0);
                        prop_assert!(begun.is_ok() || capacity.div_ceil(BLOCK) * BLOCK > room);
                        if let Ok((lease, known)) = begun {
                            prop_assert!(known < prompt.len() && known.is_multiple_of(BLOCK));
                            let tokens = prompt[..known].to_vec();
                            let mut member = Member { lease, tokens, capacity };
                            member.check(&slots);
                            member.append(&mut slots, &prompt[known..]);
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
                            if let Ok(kept) = pool.unshare(&mut member.lease, len) {
                                member.tokens.truncate(kept.unwrap_or(len));
                                let rest = vec![7; member.capacity - member.tokens.len()];
                                member.append(&mut slots, &rest);
                            }
                        }
                    }
                    Change::End(of) => {
                        if of < members.len() {
                            members.swap_remove(of);
                        }
                    }
                }
                members.iter().for_each(|member| member.check(&slots));
            }
            let room = pool.room();
            prop_assert!(pool.lease(room).is_ok(), "room for {} tokens", room);
        }
    }
}
