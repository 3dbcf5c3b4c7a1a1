//! Log-probabilities of a prompt's tokens, recorded as the chunks of the prompt are computed
//! (ADR-0068).

use std::ops::Range;
use std::sync::Arc;

use crate::sampler::Logprobs;

/// Log-probabilities of the prompt tokens of one request, from the second token on: the logits
/// after token `i` are those of position `i + 1`.
///
/// They outlive a preemption. Positions that are there are not asked for again, and a cached prefix
/// is taken only as far as they go: cached tokens have no logits.
pub(super) struct PromptLogprobs {
    /// Number of most likely tokens in an entry.
    top_n: usize,
    /// Positions with an entry, once all are computed.
    wanted: usize,
    /// Entries so far.
    entries: Vec<Logprobs>,
    /// All entries; shared by the choices of a prompt.
    shared: Option<Arc<[Logprobs]>>,
}

impl PromptLogprobs {
    pub(super) fn new(top_n: usize, prompt_tokens: usize) -> Self {
        let wanted = prompt_tokens.saturating_sub(1);
        Self { top_n, wanted, entries: Vec::new(), shared: None }
    }

    pub(super) fn top_n(&self) -> usize {
        self.top_n
    }

    /// Tokens whose logits are still wanted.
    pub(super) fn missing(&self) -> Range<usize> {
        let recorded = self.shared.as_deref().unwrap_or(&self.entries).len();
        recorded..self.wanted
    }

    /// Adds the entry of the next position; true if it is the last one.
    pub(super) fn push(&mut self, entry: Logprobs) -> bool {
        self.entries.push(entry);
        self.missing().is_empty()
    }

    /// The entries so far, which can be shared. Further ones can be added.
    pub(super) fn share(&mut self) -> Arc<[Logprobs]> {
        if self.missing().is_empty() {
            let entries = std::mem::take(&mut self.entries);
            return Arc::clone(self.shared.get_or_insert_with(|| entries.into()));
        }
        self.entries.as_slice().into()
    }

    /// Takes all entries of another choice of the same prompt.
    pub(super) fn follow(&mut self, entries: Arc<[Logprobs]>) {
        self.entries = Vec::new();
        self.shared = Some(entries);
    }
}
