//! Memory for the keys and values of what drafts.

use ruvllm_kv_cache::KvShape;
use ruvllm_memory::{PagePool, PoolConfig};

use crate::error::{Error, Result};

/// Largest number of tokens of a sequence that a drafter attends to. Drafts need the latest ones,
/// and a bounded past bounds the memory and the time of catching up.
pub(crate) const CAPACITY: usize = 1024;

/// Sequences for which the KV budget has room.
const SEQUENCES: usize = 64;

/// Bytes of a page of the KV budget.
const PAGE: usize = 512 << 10;

/// The KV budget of a drafter: F16 keys and values of `capacity` tokens of each sequence.
///
/// # Errors
/// [`Error::KvBudget`].
pub(super) fn pool(shape: &KvShape, capacity: usize) -> Result<PagePool> {
    let token_bytes: usize = shape.groups().map(|group| 4 * group.width() * group.n_layers).sum();
    let budget = (SEQUENCES * capacity * token_bytes).max(4 * PAGE).next_multiple_of(PAGE);
    PagePool::new(PoolConfig { page_bytes: PAGE, ..PoolConfig::new(budget) })
        .map_err(|source| Error::KvBudget { budget, source })
}
