//! Prefixes of sessions in a folder of their own, written and read on request.

use std::path::Path;

use ruvllm_kv_cache::prefix::{PrefixKey, PrefixStore};
use ruvllm_kv_cache::{Block, KvStore};
use ruvllm_memory::Tenant;
use ruvllm_text::TokenId;

use super::{PrefixCache, kv_format, load};

impl PrefixCache {
    /// A folder for prefixes, in the form of the prefix cache's files.
    ///
    /// # Errors
    /// If it cannot be created, or others may write to it.
    pub(crate) fn archive(&self, folder: &Path) -> Result<PrefixStore, ruvllm_kv_cache::Error> {
        PrefixStore::open(folder, self.tree.block_tokens(), u64::MAX)
    }

    /// Writes the whole blocks of a prefix that are in memory and not in `store` yet. Their key has
    /// the fingerprint `model`: that of a cache without files has none.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(crate) fn save(
        &self,
        store: &PrefixStore,
        model: [u8; 32],
        key: &PrefixKey,
        tokens: &[TokenId],
    ) -> Result<(), ruvllm_kv_cache::Error> {
        let stored = PrefixKey { model: self.computed_by(model), ..key.clone() };
        if self.facts.state_values > 0 {
            return self.save_state(store, key, &stored, tokens);
        }
        // A lookup leaves one token to compute.
        let asked: Vec<TokenId> = tokens.iter().copied().chain([0]).collect();
        let (found, key) = (self.tree.lookup(key, &asked), stored);
        let tokens = &tokens[..found.blocks.len() * self.tree.block_tokens()];
        for place in store.missing(&key, tokens, 0) {
            let block = found.blocks[place.index()].pin();
            let layers: Vec<&[u8]> = block.layers().collect();
            store.write(&place, &layers)?;
        }
        Ok(())
    }

    /// Reads the stored blocks of a prefix into the tree, as far as they are usable and memory is
    /// free, in the one of `stores` that has their format. `key` becomes that of this cache.
    pub(crate) fn restore<'s>(
        &self,
        mut stores: impl Iterator<Item = &'s KvStore>,
        store: &PrefixStore,
        model: [u8; 32],
        key: &mut PrefixKey,
        tenant: &Tenant,
        tokens: &[TokenId],
    ) {
        key.model = self.computed_by(model);
        let stored = key.clone();
        key.model = self.computed_by(self.key.model);
        let of_format = stores.find(|kv| *kv_format(kv) == *key.kv_format);
        let Some(Ok(kv)) = of_format.map(|kv| kv.for_tenant(tenant)) else { return };
        if self.facts.state_values > 0 {
            return self.restore_state(store, (&kv, self.facts.state_values), key, &stored, tokens);
        }
        let asked: Vec<TokenId> = tokens.iter().copied().chain([0]).collect();
        let found = store.find(&stored, &asked, 0);
        found.warnings.iter().for_each(|warning| self.reports.add_error(warning));
        let (mut blocks, mut payload) = (Vec::<Block>::new(), Vec::new());
        let mut reader = store.reader(&found.chain);
        for entry in &found.chain {
            let Ok(block) = load(&kv, &mut reader, entry, &mut payload) else { break };
            blocks.push(block);
        }
        if !blocks.is_empty() {
            let tokens = &tokens[..blocks.len() * self.tree.block_tokens()];
            self.tree.insert(key, tokens, &blocks);
        }
    }
}
