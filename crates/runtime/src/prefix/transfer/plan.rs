//! Choice between a transfer and computing a prompt.

use std::sync::atomic::Ordering::Relaxed;

use ruvllm_kv_cache::KvStore;
use ruvllm_memory::Tenant;
use ruvllm_text::TokenId;

use super::{PrefixCache, TransferError};

/// Blocks that an engine lacks of a prompt, and the quicker way to them.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ImportPlan {
    /// Whole blocks of the prompt in memory, from the first token on.
    pub known_blocks: usize,
    /// Whole blocks after them.
    pub missing_blocks: usize,
    /// Bytes of the missing blocks at the precision of the latest tokens.
    pub bytes: u64,
    /// Estimated seconds of their transfer; `None` before the first one.
    pub transfer_seconds: Option<f64>,
    /// Estimated seconds of computing them; `None` before the first prefill of a block.
    pub prefill_seconds: Option<f64>,
    /// True if blocks are missing and their transfer is estimated to be no slower than computing
    /// them, or an estimate is missing.
    pub is_worthwhile: bool,
}

impl PrefixCache {
    /// Compares the transfer of the blocks that are missing of `tokens` with computing them. A
    /// transfer that is slower is counted, and its rate raised a little, so that one slow transfer
    /// is not the last.
    ///
    /// # Errors
    /// [`TransferError::Off`].
    pub(crate) fn plan_import(
        &self,
        kv: &KvStore,
        tenant: &Tenant,
        tokens: &[TokenId],
    ) -> Result<ImportPlan, TransferError> {
        self.check_transfers()?;
        let block_tokens = self.tree.block_tokens();
        let known_blocks = self.tree.peek(&self.own_key(tenant.path()), tokens).blocks.len();
        let missing_blocks = tokens.len() / block_tokens - known_blocks;
        let block_bytes = kv.policy().hot.block_bytes(kv.shape(), block_tokens).unwrap_or_default();
        let entry_bytes = block_bytes + self.transfers.format.header_bytes();
        let bytes = missing_blocks as u64 * entry_bytes as u64;
        let missing_tokens = missing_blocks * block_tokens;
        let (transfer_seconds, prefill_seconds) = self.cost.estimates(bytes, missing_tokens);
        let is_slower = missing_blocks > 0 && !self.cost.transfer_is_quicker(bytes, missing_tokens);
        if is_slower {
            self.cost.forgive_transfer();
            self.transfers.counters.slower_imports.fetch_add(1, Relaxed);
            self.transfers.counters.slower_tokens.fetch_add(missing_tokens as u64, Relaxed);
        }
        let is_worthwhile = missing_blocks > 0 && !is_slower;
        Ok(ImportPlan {
            known_blocks,
            missing_blocks,
            bytes,
            transfer_seconds,
            prefill_seconds,
            is_worthwhile,
        })
    }
}
