//! The model's own prediction head as its drafter: the KV cache of the head, and its passes on the
//! CPU.

use ruvllm_kv_cache::{KvPolicy, KvStore, Sequence};
use ruvllm_models::{Compute, KvFormat, LogitsRows, Model, Segment, Workspace};

use super::head_engine::{HeadEngine, Pairs};
use super::memory;
use super::proposal::Choice;
use crate::error::{Error, Result};
use crate::segments::{Batch, recycle};

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
    fn new_sequence(&self, model: &Model) -> Option<Sequence> {
        model.prediction_head()?.new_sequence(&self.kv, self.capacity).ok()
    }
}

/// A prediction head on the CPU.
pub(super) struct ModelHead<'c> {
    head: &'c DraftHead,
    model: &'c Model,
    compute: &'c Compute,
    workspace: Workspace,
    segments: Vec<Segment<'static>>,
    /// States of a pass, `[tokens, model_dim]`.
    states: Vec<f32>,
    /// Probabilities of a row of logits.
    probabilities: Vec<f32>,
}

impl<'c> ModelHead<'c> {
    pub(super) fn new(head: &'c DraftHead, model: &'c Model, compute: &'c Compute) -> Self {
        let (workspace, segments) = (Workspace::new(), Vec::new());
        let (states, probabilities) = (Vec::new(), Vec::new());
        Self { head, model, compute, workspace, segments, states, probabilities }
    }
}

impl HeadEngine for ModelHead<'_> {
    type Cache = Sequence;

    fn capacity(&self) -> usize {
        self.head.capacity
    }

    fn model_dim(&self) -> usize {
        self.model.config().model_dim
    }

    fn begin(&mut self) -> Option<Sequence> {
        self.head.new_sequence(self.model)
    }

    fn truncate(&mut self, cache: &mut Sequence, len: usize) -> bool {
        cache.truncate(len).is_ok()
    }

    fn clear(&mut self, cache: &mut Sequence) {
        cache.clear();
    }

    fn pass<'p>(
        &mut self,
        parts: impl Iterator<Item = Pairs<'p, Sequence>>,
        found: &mut Vec<Option<Choice>>,
        hidden: &mut Vec<f32>,
    ) -> bool {
        let Self { head, model, compute, workspace, segments, states, probabilities } = self;
        let mut batch = recycle(std::mem::take(segments));
        let mut passed = true;
        states.clear();
        for Pairs { cache, tokens, states: of_tokens } in parts {
            states.extend_from_slice(of_tokens);
            match Segment::new(compute, tokens, cache, LogitsRows::Last) {
                Ok(segment) => batch.push(segment),
                Err(_) => passed = false,
            }
        }
        passed = passed && model.predict(compute, workspace, Batch(&mut batch), states).is_ok();
        *segments = recycle(batch);
        if passed {
            let rows = workspace.logits().chunks_exact(model.config().vocab_size);
            let choose = |row: &[f32]| Choice::of_logits(&compute.kernels, &row[..head.ids], probabilities);
            found.clear();
            found.extend(rows.map(choose));
            hidden.clear();
            hidden.extend_from_slice(workspace.hidden());
        }
        passed
    }

    fn end(&mut self, _: Sequence) {}
}
