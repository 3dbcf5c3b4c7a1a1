//! Prefixes of models with layers that keep a state (ADR-0120): blocks up to a border, and the
//! snapshot of the state behind them.
//!
//! In files a snapshot is an entry beside those of the blocks, under a key of its own: that of the
//! prefix, whose last block has the index of the entry.

use std::time::Instant;

use ruvllm_kv_cache::prefix::store::{Entry, Missing};
use ruvllm_kv_cache::prefix::{PrefixKey, PrefixPin, PrefixStore, Scope};
use ruvllm_kv_cache::{Block, KvStore, Result, Sequence, StateSnapshot};
use ruvllm_text::TokenId;

use super::{LoadError, PrefixCache, Reused, bytes_of, load};

/// Stored blocks and the stored state behind them.
struct StoredState {
    blocks: Vec<Entry>,
    state: Entry,
    /// Blocks of the prefix, in memory and stored.
    n_blocks: usize,
}

impl PrefixCache {
    /// Begins an empty sequence with the longest cached prefix of `tokens` behind which a state is
    /// stored. Nothing if that is fewer than `least` tokens.
    ///
    /// # Errors
    /// If the sequence is not empty, has no room for the tokens or no memory for its state.
    pub(super) fn begin_with_state(
        &self,
        sequence: &mut Sequence,
        adapters: Option<[u8; 32]>,
        tokens: &[TokenId],
        least: usize,
    ) -> Result<Reused> {
        let key = self.key_of(sequence, adapters);
        let mut matched = self.tree.lookup_state(&key, tokens);
        let mut pin: Option<PrefixPin> = matched.found.pin.take();
        if let Some(files) = &self.files {
            let (kv, values) = (sequence.store(), sequence.state_values());
            let read = self.read_state(&files.store, (kv, values), &key, tokens, matched.found.tokens, least);
            if read.is_some() {
                matched = self.tree.lookup_state(&key, tokens);
                pin = matched.found.pin.take();
            }
        }
        let known_tokens = matched.known_tokens;
        let Some(state) = matched.state.filter(|_| matched.found.tokens >= least) else {
            return Ok(Reused { known_tokens, ..Reused::default() });
        };
        sequence.begin_with(&matched.found.blocks, &state)?;
        Ok(Reused { tokens: matched.found.tokens, known_tokens, _pin: pin })
    }

    /// Stores the blocks of a sequence up to its border and a snapshot of the state there, for all
    /// tenants too if the border is within the first `shared_tokens`. False without a border or
    /// memory.
    pub(crate) fn keep_border(
        &self,
        sequence: &mut Sequence,
        adapters: Option<[u8; 32]>,
        tokens: &[TokenId],
        shared_tokens: usize,
    ) -> bool {
        let border = sequence.border();
        if border == 0 || sequence.released() > 0 {
            return false;
        }
        let tokens = &tokens[..border];
        // A state is large: it is copied once, and only if it is not there.
        let mut snapshot = None;
        for key in self.keys_of(sequence, adapters, border <= shared_tokens) {
            if self.tree.touch_state(&key, tokens) {
                continue;
            }
            if snapshot.is_none() {
                // Without room the prefix is computed again; requests do not wait for it.
                let Ok(Some(taken)) = sequence.border_snapshot() else { return false };
                snapshot = Some(taken);
            }
            let Some(state) = snapshot.clone() else { return false };
            let blocks = &sequence.share()[..border / self.tree.block_tokens()];
            self.tree.insert_state(&key, tokens, blocks, state);
        }
        true
    }

    /// Keys under which a prefix is stored.
    fn keys_of(
        &self,
        sequence: &Sequence,
        adapters: Option<[u8; 32]>,
        is_shared: bool,
    ) -> impl Iterator<Item = PrefixKey> + use<> {
        let own = self.key_of(sequence, adapters);
        let shared = PrefixKey { scope: Scope::Shared, ..own.clone() };
        is_shared.then_some(shared).into_iter().chain([own])
    }

    /// Writes the prefixes that end at `borders`, in their order, to files, if every prefix is
    /// written: those that are in memory.
    pub(crate) fn write_borders(
        &self,
        sequence: &Sequence,
        adapters: Option<[u8; 32]>,
        tokens: &[TokenId],
        shared_tokens: usize,
        borders: &[usize],
    ) {
        let Some(files) = self.files.as_ref().filter(|files| files.at_once) else { return };
        for key in self.keys_of(sequence, adapters, true) {
            let is_shared = key.scope == Scope::Shared;
            let of_key = borders.iter().filter(|&&border| (border <= shared_tokens) == is_shared);
            // The longest first, whose blocks are those of all.
            for (index, &border) in of_key.rev().enumerate() {
                let tokens = &tokens[..border.min(tokens.len())];
                let found = self.tree.lookup_state(&key, &with_next(tokens));
                let Some(state) = found.state.filter(|state| state.tokens() == border) else { continue };
                if index == 0 {
                    files.write(&key, tokens, &found.found.blocks, self.tree.block_tokens());
                }
                self.queue_state(&files.store, &key, tokens, &state);
            }
        }
    }

    /// Queues a state for writing, unless it is stored.
    pub(super) fn queue_state(
        &self,
        store: &PrefixStore,
        key: &PrefixKey,
        tokens: &[TokenId],
        state: &StateSnapshot,
    ) {
        let place = missing_state(store, key, tokens, self.tree.block_tokens());
        if let (Some(place), Some(files)) = (place, &self.files) {
            files.writer.queue().push(place, state.as_bytes().to_vec());
        }
    }

    /// Loads the longest stored prefix with a state behind it into the tree, if it is longer than
    /// `known_tokens` and reading is not slower than computing.
    fn read_state(
        &self,
        store: &PrefixStore,
        (kv, values): (&KvStore, usize),
        key: &PrefixKey,
        tokens: &[TokenId],
        known_tokens: usize,
        least: usize,
    ) -> Option<()> {
        let block_tokens = self.tree.block_tokens();
        let known = self.tree.peek(key, &tokens[..tokens.len().saturating_sub(1)]).blocks;
        let found = self.find_state(store, key, tokens, known.len(), known_tokens / block_tokens)?;
        let end = found.n_blocks * block_tokens;
        let bytes = bytes_of(&found.blocks).saturating_add(found.state.payload_bytes());
        if end < least {
            return None;
        }
        if !self.cost.reading_is_quicker(bytes, end - known_tokens) {
            self.cost.forgive_reading();
            self.count_recomputed(end - known_tokens);
            return None;
        }
        let started = Instant::now();
        self.load_state(store, (kv, values), key, &tokens[..end], (known, found))?;
        self.cost.observe_read(bytes, started.elapsed());
        Some(())
    }

    /// The longest stored prefix of more than `least_blocks` blocks with a state behind it, if
    /// there is one. The first `known_blocks` blocks are in memory.
    fn find_state(
        &self,
        store: &PrefixStore,
        key: &PrefixKey,
        tokens: &[TokenId],
        known_blocks: usize,
        least_blocks: usize,
    ) -> Option<StoredState> {
        let block_tokens = self.tree.block_tokens();
        let mut found = store.find(key, tokens, known_blocks);
        found.warnings.iter().for_each(|warning| self.reports.add_error(warning));
        let whole = known_blocks + found.chain.len();
        if whole <= least_blocks {
            return None;
        }
        let own = state_key(key);
        let shared = PrefixKey { scope: Scope::Shared, ..own.clone() };
        let wanted = &tokens[..whole * block_tokens];
        let last_stored = |key: &PrefixKey| {
            let missing = store.missing(key, wanted, least_blocks);
            let is_missing = |index| missing.binary_search_by_key(&index, Missing::index).is_ok();
            (least_blocks..whole).rev().find(|&index| !is_missing(index))
        };
        let n_blocks = [&own, &shared].into_iter().filter_map(last_stored).max()? + 1;
        let state = store.find(&own, &with_next(&tokens[..n_blocks * block_tokens]), n_blocks - 1);
        state.warnings.iter().for_each(|warning| self.reports.add_error(warning));
        found.chain.truncate(n_blocks.saturating_sub(known_blocks));
        Some(StoredState { blocks: found.chain, state: state.chain.into_iter().next()?, n_blocks })
    }

    /// Loads stored blocks and the state behind them; `None` if one cannot be used or has no room.
    fn load_state(
        &self,
        store: &PrefixStore,
        (kv, values): (&KvStore, usize),
        key: &PrefixKey,
        tokens: &[TokenId],
        (mut blocks, found): (Vec<Block>, StoredState),
    ) -> Option<()> {
        let report = |error: LoadError| match error {
            LoadError::Store(error) => self.reports.add_error(&error),
            LoadError::Cache | LoadError::Size => {}
        };
        blocks.truncate(found.n_blocks);
        let (mut reader, mut payload) = (store.reader(&found.blocks), Vec::new());
        for entry in &found.blocks {
            blocks.push(load(kv, &mut reader, entry, &mut payload).map_err(report).ok()?);
        }
        let entry = std::slice::from_ref(&found.state);
        let state = kv.restore_snapshot(tokens.len(), values, |bytes| {
            store.reader(entry).read(&mut [bytes]).map_err(LoadError::Store)
        });
        self.tree.insert_state(key, tokens, &blocks, state.map_err(report).ok()?);
        Some(())
    }

    /// As [`save`](Self::save), of a model with layers that keep a state.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(super) fn save_state(
        &self,
        store: &PrefixStore,
        key: &PrefixKey,
        stored: &PrefixKey,
        tokens: &[TokenId],
    ) -> Result<()> {
        let found = self.tree.lookup_state(key, &with_next(tokens));
        let Some(state) = found.state else { return Ok(()) };
        let tokens = &tokens[..found.found.tokens];
        for place in store.missing(stored, tokens, 0) {
            let block = found.found.blocks[place.index()].pin();
            store.write(&place, &block.layers().collect::<Vec<_>>())?;
        }
        match missing_state(store, stored, tokens, self.tree.block_tokens()) {
            Some(place) => store.write(&place, &[state.as_bytes()]).map(drop),
            None => Ok(()),
        }
    }

    /// As [`restore`](Self::restore), of a model with a state of `values` values; `stored` is the
    /// key in `store`.
    pub(super) fn restore_state(
        &self,
        store: &PrefixStore,
        (kv, values): (&KvStore, usize),
        key: &PrefixKey,
        stored: &PrefixKey,
        tokens: &[TokenId],
    ) {
        if let Some(found) = self.find_state(store, stored, &with_next(tokens), 0, 0) {
            let end = found.n_blocks * self.tree.block_tokens();
            let _ = self.load_state(store, (kv, values), key, &tokens[..end], (Vec::new(), found));
        }
    }
}

/// Tokens with one behind them: a lookup leaves the last one to compute.
fn with_next(tokens: &[TokenId]) -> Vec<TokenId> {
    tokens.iter().copied().chain([0]).collect()
}

/// Key of the states behind the blocks of a key.
fn state_key(key: &PrefixKey) -> PrefixKey {
    PrefixKey { kv_format: format!("{} and state", key.kv_format).into(), ..key.clone() }
}

/// Place of the state behind whole blocks; `None` if it is stored.
fn missing_state(
    store: &PrefixStore,
    key: &PrefixKey,
    tokens: &[TokenId],
    block_tokens: usize,
) -> Option<Missing> {
    let last = (tokens.len() / block_tokens).checked_sub(1)?;
    store.missing(&state_key(key), tokens, last).pop()
}
