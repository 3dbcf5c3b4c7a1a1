//! Entries of a prefix for another engine.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ruvllm_kv_cache::PinnedBlock;
use ruvllm_kv_cache::prefix::store::Missing;
use ruvllm_memory::Tenant;
use ruvllm_text::TokenId;

use super::{PrefixCache, PrefixOffer, TransferError, sent_key};

/// Entries of the blocks of a prompt, made by
/// [`Engine::export_prefix`](crate::Engine::export_prefix): the bytes of one block each, to be
/// joined to a stream.
///
/// The blocks stay in memory as long as this lives.
pub struct PrefixExport {
    cache: Arc<PrefixCache>,
    offer: PrefixOffer,
    /// Blocks that are left.
    blocks: std::vec::IntoIter<(Missing, PinnedBlock)>,
}

impl PrefixCache {
    /// Whole blocks of `tokens` in memory, from block `skip_blocks` on.
    ///
    /// # Errors
    /// [`TransferError::Off`].
    pub(crate) fn export(
        self: Arc<Self>,
        tenant: &Tenant,
        tokens: &[TokenId],
        skip_blocks: usize,
    ) -> Result<PrefixExport, TransferError> {
        self.check_transfers()?;
        let (key, format) = (self.own_key(tenant.path()), &self.transfers.format);
        let found = self.tree.peek(&key, tokens);
        let first_block = skip_blocks.min(found.blocks.len());
        let sent = sent_key(&key);
        let places = format.places(&sent, tokens).zip(&found.blocks).skip(first_block);
        let blocks: Vec<_> = places.map(|(place, block)| (place, block.pin())).collect();
        let entry_bytes =
            |block: &PinnedBlock| format.header_bytes() + block.layers().map(<[u8]>::len).sum::<usize>();
        let bytes: usize = blocks.iter().map(|(_, block)| entry_bytes(block)).sum();
        let offer = PrefixOffer {
            model: key.model,
            kv_format: key.kv_format.to_string(),
            block_tokens: format.block_tokens(),
            is_tagged: format.key().is_some(),
            first_block,
            blocks: blocks.len(),
            bytes: bytes as u64,
        };
        Ok(PrefixExport { cache: self, offer, blocks: blocks.into_iter() })
    }
}

impl PrefixExport {
    /// Description of the blocks, which the receiver takes first.
    pub fn offer(&self) -> &PrefixOffer {
        &self.offer
    }
}

impl Iterator for PrefixExport {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let (place, block) = self.blocks.next()?;
        let transfers = &self.cache.transfers;
        let entry = transfers.format.encode(&place, &block.layers().collect::<Vec<_>>());
        transfers.counters.exported_blocks.fetch_add(1, Relaxed);
        transfers.counters.exported_bytes.fetch_add(entry.len() as u64, Relaxed);
        Some(entry)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.blocks.size_hint()
    }
}

impl ExactSizeIterator for PrefixExport {}

impl fmt::Debug for PrefixExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefixExport").field("offer", &self.offer).finish_non_exhaustive()
    }
}
