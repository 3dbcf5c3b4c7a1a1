//! The model's own prediction head as its drafter: the KV cache of the head.

use ruvllm_kv_cache::{KvPolicy, KvStore, Sequence};
use ruvllm_models::{KvFormat, Model};

use super::memory;
use crate::error::{Error, Result};

/// KV cache of the prediction head of a model, shared by all requests.
pub(crate) struct DraftHead {
    kv: KvStore,
    /// Largest number of tokens that the head attends to.
    pub(super) capacity: usize,
    /// Ids that may be drafted.
    pub(super) ids: usize,
}

impl DraftHead {
    /// The head of a model, for drafts of ids below `ids`; `None` for a model without one.
    ///
    /// # Errors
    /// [`Error::KvBudget`], [`Error::KvPolicy`].
    pub(crate) fn of_model(model: &Model, ids: usize) -> Result<Option<Self>> {
        let Some(head) = model.prediction_head() else { return Ok(None) };
        let capacity = model.config().context_length.min(memory::CAPACITY);
        let pool = memory::pool(&head.kv_shape(), capacity)?;
        let policy = KvPolicy::uniform(KvFormat::F16.into());
        let kv = head
            .kv_store(&policy, &pool)
            .map_err(|source| Error::KvPolicy { policy: policy.to_string(), source })?;
        Ok(Some(Self { kv, capacity, ids }))
    }

    /// An empty sequence; `None` without memory.
    pub(super) fn new_sequence(&self, model: &Model) -> Option<Sequence> {
        model.prediction_head()?.new_sequence(&self.kv, self.capacity).ok()
    }
}
