//! Executor over the sequences of any backend, one after another.

use std::collections::HashMap;
use std::ops::ControlFlow;

use ruvllm_kv_cache::prefix::PrefixKey;
use ruvllm_text::TokenId;

use super::executor::{Executor, Logits, Outcome, Part, PartLogits, SequenceId, SequenceReport, Step};
use crate::backend::sequence::{BackendSession, common_prefix_len};
use crate::error::{Error, Result};
use crate::request::SequenceSize;
use crate::sequence::SequenceSpec;

/// Makes a sequence of a backend for so many tokens.
type Open<'b> = Box<dyn Fn(usize) -> Result<Box<dyn BackendSession + 'b>> + 'b>;

/// Sequences of a backend.
pub(crate) struct SessionExecutor<'b> {
    open: Open<'b>,
    /// Largest number of prompt tokens in a pass.
    chunk: usize,
    sequences: HashMap<SequenceId, Held<'b>>,
}

/// A sequence and its token ids.
struct Held<'b> {
    session: Box<dyn BackendSession + 'b>,
    tokens: Vec<TokenId>,
    /// Logits of a part with several rows.
    rows: Vec<f32>,
}

impl<'b> SessionExecutor<'b> {
    pub(crate) fn new(open: Open<'b>, chunk: usize) -> Self {
        Self { open, chunk, sequences: HashMap::new() }
    }
}

impl Held<'_> {
    /// Computes a part; returns the number of tokens. `logits` gets the number of tokens, that of
    /// rows, and the rows, if any are wanted. A backend gives one row of logits in a pass: each
    /// further row takes a pass of its own.
    fn compute(
        &mut self,
        tokens: &[TokenId],
        part: &Part,
        chunk: usize,
        logits: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<usize> {
        let before = self.session.len();
        let go_on = &mut || match part.is_prompt && part.cancel.is_cancelled() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let (first, later) = tokens.split_at(tokens.len() - part.rows.saturating_sub(1));
        let row = if part.is_prompt {
            self.session.prefill(first, chunk, go_on)?
        } else {
            Some(self.session.forward(first)?)
        };
        if let Some(row) = row.filter(|_| part.rows > 0) {
            if later.is_empty() {
                logits(tokens.len(), 1, row);
            } else {
                self.rows.clear();
                self.rows.extend_from_slice(row);
                let mut n_rows = 1;
                for token in later.chunks(1) {
                    if go_on().is_break() {
                        break;
                    }
                    self.rows.extend_from_slice(self.session.forward(token)?);
                    n_rows += 1;
                }
                logits(first.len() + n_rows - 1, n_rows, &self.rows);
            }
        }
        let computed = self.session.len() - before;
        self.tokens.extend_from_slice(&tokens[..computed]);
        Ok(computed)
    }
}

impl Executor for SessionExecutor<'_> {
    fn begin(&mut self, id: SequenceId, spec: &SequenceSpec, _: &[TokenId]) -> Result<usize> {
        let session = (self.open)(spec.capacity)?;
        self.sequences.insert(id, Held { session, tokens: Vec::new(), rows: Vec::new() });
        Ok(0)
    }

    fn resume(&mut self, id: SequenceId, _: &SequenceSpec, prompt: &[TokenId]) -> Result<Option<usize>> {
        let Some(mut held) = self.sequences.remove(&id) else { return Ok(None) };
        let kept = held.session.truncate(common_prefix_len(&held.tokens, prompt))?;
        held.tokens.truncate(kept);
        self.sequences.insert(id, held);
        Ok(Some(kept))
    }

    /// Backends cannot copy a sequence.
    fn fork(&mut self, _: SequenceId, _: SequenceId) -> bool {
        false
    }

    fn step(&mut self, step: &Step, outcomes: &mut Vec<Outcome>, logits: &mut Logits<'_>) {
        outcomes.clear();
        for (index, part) in step.parts().iter().enumerate() {
            let held = self.sequences.get_mut(&part.sequence).expect("a part names a sequence that began");
            let computed = held.compute(step.tokens(part), part, self.chunk, &mut |tokens, rows, values| {
                logits(&[PartLogits { part: index, tokens, rows }], values);
            });
            outcomes.push(match computed {
                Ok(tokens) => Outcome::Computed { tokens },
                Err(error) => {
                    held.tokens.truncate(held.session.len());
                    Outcome::Failed(error)
                }
            });
        }
    }

    fn truncate(&mut self, id: SequenceId, len: usize) -> Result<()> {
        let Some(held) = self.sequences.get_mut(&id) else { return Ok(()) };
        let kept = held.session.truncate(len)?;
        held.tokens.truncate(kept);
        // Tokens before the cut are computed already and would be missing.
        if kept == len { Ok(()) } else { Err(Error::Truncated { len, kept }) }
    }

    /// A backend computes one row of logits in a pass: drafts would gain nothing.
    fn draft_room(&self, _: SequenceId, _: usize) -> usize {
        0
    }

    fn prefilled(&mut self, _: SequenceId) {}

    fn park(&mut self, id: SequenceId) {
        self.release(id);
    }

    fn finish(&mut self, id: SequenceId) -> SequenceReport {
        let tokens = self.sequences.get(&id).map_or(0, |held| held.tokens.len());
        SequenceReport { size: SequenceSize { tokens, bytes: 0 }, ..SequenceReport::default() }
    }

    fn prefix_key(&self, _: SequenceId) -> Option<PrefixKey> {
        None
    }

    fn release(&mut self, id: SequenceId) {
        self.sequences.remove(&id);
    }

    /// Backends report a lack of memory when a sequence begins.
    fn free_tokens(&self) -> usize {
        usize::MAX
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ruvllm_memory::{PressurePolicy, Tenant};

    use super::*;
    use crate::cancel::CancelToken;

    /// A sequence whose only logit is its last token.
    struct Echo {
        tokens: Vec<TokenId>,
        row: [f32; 1],
        /// False if it drops all tokens when it is cut.
        keeps: bool,
    }

    impl BackendSession for Echo {
        fn len(&self) -> usize {
            self.tokens.len()
        }

        fn forward(&mut self, tokens: &[TokenId]) -> Result<&[f32]> {
            self.tokens.extend_from_slice(tokens);
            self.row = [self.tokens.last().map_or(0.0, |&last| last as f32)];
            Ok(&self.row)
        }

        fn truncate(&mut self, len: usize) -> Result<usize> {
            self.tokens.truncate(if self.keeps { len } else { 0 });
            Ok(self.tokens.len())
        }
    }

    #[test]
    fn rows_beyond_the_first_take_passes_of_their_own_and_can_be_dropped() {
        for keeps in [true, false] {
            let open: Open<'_> =
                Box::new(move |_| Ok(Box::new(Echo { tokens: Vec::new(), row: [0.0], keeps })));
            let mut executor = SessionExecutor::new(open, 8);
            let (id, cancel) = (SequenceId(1), CancelToken::new());
            let spec = SequenceSpec {
                tenant: Tenant::root(),
                adapters: Arc::default(),
                kv: None,
                min_cache_tokens: 0,
                pressure: PressurePolicy::default(),
                capacity: 16,
                caches_prefix: false,
                shared_tokens: 0,
            };
            assert_eq!(executor.begin(id, &spec, &[1, 2]).expect("a sequence"), 0);
            let mut step = Step::default();
            step.push(id, &[1, 2], false, 1, &cancel);
            step.push_draft(&[3, 4]);
            let (mut outcomes, mut rows) = (Vec::new(), Vec::new());
            executor.step(&step, &mut outcomes, &mut |parts, logits| {
                assert_eq!(parts, [PartLogits { part: 0, tokens: 4, rows: 3 }]);
                rows.extend_from_slice(logits);
            });
            assert!(matches!(outcomes[..], [Outcome::Computed { tokens: 4 }]), "{outcomes:?}");
            assert_eq!((rows, executor.draft_room(id, 1)), (vec![2.0, 3.0, 4.0], 0));
            let dropped = executor.truncate(id, 3);
            match keeps {
                true => assert!(dropped.is_ok(), "{dropped:?}"),
                false => assert!(matches!(dropped, Err(Error::Truncated { len: 3, kept: 0 })), "{dropped:?}"),
            }
        }
    }
}
