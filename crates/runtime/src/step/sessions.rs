//! Executor over the sequences of any backend.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use ruvllm_adapters::ScaledAdapter;
use ruvllm_kv_cache::prefix::PrefixKey;
use ruvllm_memory::Tenant;
use ruvllm_text::TokenId;

use super::executor::{Executor, Logits, Outcome, Part, PartLogits, SequenceId, SequenceReport, Step};
use crate::backend::batch::{BackendBatch, Decoded, NextToken, PrefixSharing};
use crate::backend::sequence::{BackendSession, common_prefix_len};
use crate::error::{Error, Result};
use crate::request::SequenceSize;
use crate::sequence::SequenceSpec;

/// Sequences of a backend. The next tokens of a step and their drafts are computed together,
/// prompts one after another.
pub(crate) struct SessionExecutor<'b> {
    batch: Box<dyn BackendBatch + 'b>,
    /// Largest number of prompt tokens in a pass.
    chunk: usize,
    /// Values of a final hidden state.
    model_dim: usize,
    sequences: HashMap<SequenceId, Held>,
    scratch: Scratch,
}

/// A sequence: its number in the batch, and its token ids.
struct Held {
    number: usize,
    tokens: Vec<TokenId>,
    /// Logits of a prompt with several rows.
    rows: Vec<f32>,
    /// `None` if it shares no prefix.
    sharing: Option<Sharing>,
    /// Adapters of all its tokens.
    adapters: Arc<[ScaledAdapter]>,
}

/// Properties of a request that decide on the prefixes that it shares.
struct Sharing {
    tenant: Tenant,
    min_tokens: usize,
    shared_tokens: usize,
}

/// Takes the numbers of tokens and of rows of a part, its rows of logits and its final hidden
/// states.
type OnComputed<'l> = dyn FnMut(usize, usize, [&[f32]; 2]) + 'l;

/// Lists of a step, kept for their memory.
#[derive(Default)]
struct Scratch {
    /// Next tokens and drafts, and the part of each.
    tokens: Vec<NextToken>,
    parts: Vec<usize>,
    with_logits: Vec<PartLogits>,
    /// By part; `None` if it was not computed with others.
    outcomes: Vec<Option<Outcome>>,
}

impl<'b> SessionExecutor<'b> {
    pub(crate) fn new(batch: Box<dyn BackendBatch + 'b>, chunk: usize) -> Self {
        Self { batch, chunk, model_dim: 1, sequences: HashMap::new(), scratch: Scratch::default() }
    }

    /// Sets the number of values of the final hidden states that the batch passes.
    pub(crate) fn with_model_dim(mut self, model_dim: usize) -> Self {
        self.model_dim = model_dim.max(1);
        self
    }

    /// Computes the next tokens of sequences together, with their drafts. Those of a pass that
    /// failed remain to be computed alone, so that each has an error of its own.
    fn decode(&mut self, step: &Step, logits: &mut Logits<'_>) {
        let Scratch { parts, tokens, with_logits, outcomes } = &mut self.scratch;
        let mut with_states = false;
        parts.clear();
        tokens.clear();
        outcomes.clear();
        for (index, part) in step.parts().iter().enumerate() {
            outcomes.push(None);
            // Each token has a row.
            let decodes = !part.is_prompt && part.rows == step.tokens(part).len();
            if let Some(held) = self.sequences.get(&part.sequence).filter(|_| decodes) {
                // States are for drafts.
                with_states |= part.states > 0 && self.batch.draft_room(held.number) > 0;
                for &token in step.tokens(part) {
                    parts.push(index);
                    tokens.push(NextToken { sequence: held.number, token, wanted: part.wanted });
                }
            }
        }
        let Some(&only) = parts.first() else { return };
        let sequences = &mut self.sequences;
        let mut on_decoded = |rows: &[usize], decoded: Decoded<'_>, states: &[f32]| {
            with_logits.clear();
            for run in rows.chunk_by(|&a, &b| parts[a] == parts[b]) {
                let (part, n) = (parts[run[0]], run.len());
                if let Some(held) = sequences.get_mut(&step.parts()[part].sequence) {
                    held.tokens.extend(run.iter().map(|&row| tokens[row].token));
                }
                outcomes[part] = Some(Outcome::Computed { tokens: n });
                let states = if states.is_empty() { 0 } else { n };
                with_logits.push(PartLogits { part, tokens: n, rows: n, states });
            }
            logits(with_logits, decoded, states);
        };
        let decoded = match with_states {
            true => self.batch.decode_with_states(tokens, &mut on_decoded),
            false => self.batch.decode(tokens, &mut |rows, decoded| on_decoded(rows, decoded, &[])),
        };
        // An error that concerns several comes again when they are computed alone.
        if let Err(error) = decoded
            && parts.iter().all(|&part| part == only)
            && let Some(held) = self.sequences.get_mut(&step.parts()[only].sequence)
        {
            let left = self.batch.sequence(held.number).map_or(0, |session| session.len());
            held.tokens.truncate(left);
            outcomes[only] = Some(Outcome::Failed(error));
        }
    }

    /// Computes a part alone.
    fn compute(&mut self, step: &Step, index: usize, logits: &mut Logits<'_>) -> Outcome {
        let part = &step.parts()[index];
        let held = self.sequences.get_mut(&part.sequence).expect("a part names a sequence that began");
        // States are for drafts.
        let states = if self.batch.draft_room(held.number) > 0 { part.states } else { 0 };
        let session = self.batch.sequence(held.number).expect("a held sequence has not ended");
        let model_dim = self.model_dim;
        let mut pass_on = |tokens: usize, rows: usize, [values, states]: [&[f32]; 2]| {
            let part = PartLogits { part: index, tokens, rows, states: states.len() / model_dim };
            logits(&[part], Decoded::Logits(values), states);
        };
        let computed = held.compute(session, step.tokens(part), (part, states), self.chunk, &mut pass_on);
        match computed {
            Ok(tokens) => Outcome::Computed { tokens },
            Err(error) => {
                held.tokens.truncate(session.len());
                Outcome::Failed(error)
            }
        }
    }

    /// Drops the tokens of a sequence from position `len` on and earlier ones that the backend
    /// cannot keep; returns the number of tokens left. `None` without such a sequence.
    fn cut(&mut self, id: SequenceId, len: impl FnOnce(&[TokenId]) -> usize) -> Result<Option<usize>> {
        let Some(held) = self.sequences.get_mut(&id) else { return Ok(None) };
        let Some(session) = self.batch.sequence(held.number) else { return Ok(None) };
        let kept = session.truncate(len(&held.tokens))?;
        held.tokens.truncate(kept);
        Ok(Some(kept))
    }
}

impl Sharing {
    fn of(spec: &SequenceSpec) -> Option<Self> {
        let SequenceSpec { min_cache_tokens: min_tokens, shared_tokens, .. } = *spec;
        spec.caches_prefix.then(|| Self { tenant: spec.tenant.clone(), min_tokens, shared_tokens })
    }

    fn as_prefix(&self) -> PrefixSharing<'_> {
        let &Self { ref tenant, min_tokens, shared_tokens } = self;
        PrefixSharing { tenant: tenant.path(), min_tokens, shared_tokens }
    }
}

impl Held {
    /// Computes a part; returns the number of tokens. `logits` gets the number of tokens, that of
    /// rows, the rows and final hidden states, if any rows are wanted. A prompt has one row of
    /// logits in a pass, and up to `states` states: each further row takes a pass of its own,
    /// without states.
    fn compute(
        &mut self,
        session: &mut dyn BackendSession,
        tokens: &[TokenId],
        (part, states): (&Part, usize),
        chunk: usize,
        logits: &mut OnComputed<'_>,
    ) -> Result<usize> {
        let before = session.len();
        let go_on = &mut || match part.is_prompt && part.cancel.is_cancelled() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let (first, later) = tokens.split_at(tokens.len() - part.rows.saturating_sub(1));
        let found = match part.is_prompt {
            true if states > 0 && later.is_empty() => {
                session.prefill_with_states(first, chunk, states, go_on)?
            }
            true => session.prefill(first, chunk, go_on)?.map(|row| (row, &[][..])),
            false => Some((session.forward(first)?, &[][..])),
        };
        if let Some((row, states)) = found.filter(|_| part.rows > 0) {
            if later.is_empty() {
                logits(tokens.len(), 1, [row, states]);
            } else {
                self.rows.clear();
                self.rows.extend_from_slice(row);
                let mut n_rows = 1;
                for token in later.chunks(1) {
                    if go_on().is_break() {
                        break;
                    }
                    self.rows.extend_from_slice(session.forward(token)?);
                    n_rows += 1;
                }
                logits(first.len() + n_rows - 1, n_rows, [&self.rows, &[]]);
            }
        }
        let computed = session.len() - before;
        self.tokens.extend_from_slice(&tokens[..computed]);
        Ok(computed)
    }
}

/// True for lists with the same updates.
fn is_same(a: &[ScaledAdapter], b: &[ScaledAdapter]) -> bool {
    let of = |scaled: &ScaledAdapter| (*scaled.adapter.digest(), scaled.scale.to_bits());
    a.iter().map(of).eq(b.iter().map(of))
}

impl Executor for SessionExecutor<'_> {
    fn begin(&mut self, id: SequenceId, spec: &SequenceSpec, prompt: &[TokenId]) -> Result<usize> {
        let sharing = Sharing::of(spec);
        let prefix = sharing.as_ref().map(Sharing::as_prefix);
        let prompt_of = prefix.as_ref().map(|prefix| (prompt, prefix));
        let (number, known) = self.batch.begin_adapted(spec.capacity, &spec.adapters, prompt_of)?;
        let (tokens, adapters) = (prompt[..known].to_vec(), Arc::clone(&spec.adapters));
        self.sequences.insert(id, Held { number, tokens, rows: Vec::new(), sharing, adapters });
        Ok(known)
    }

    fn resume(&mut self, id: SequenceId, spec: &SequenceSpec, prompt: &[TokenId]) -> Result<Option<usize>> {
        if self.sequences.get(&id).is_some_and(|held| !is_same(&held.adapters, &spec.adapters)) {
            self.release(id);
            return Ok(None);
        }
        let kept = self.cut(id, |tokens| common_prefix_len(tokens, prompt));
        if kept.is_err() {
            self.release(id);
        }
        if let Some(held) = self.sequences.get_mut(&id) {
            held.sharing = Sharing::of(spec);
            let sharing = held.sharing.as_ref().map(Sharing::as_prefix);
            self.batch.go_on_with(held.number, prompt, sharing.as_ref());
        }
        kept
    }

    /// Backends cannot copy a sequence.
    fn fork(&mut self, _: SequenceId, _: SequenceId) -> bool {
        false
    }

    fn step(&mut self, step: &Step, outcomes: &mut Vec<Outcome>, logits: &mut Logits<'_>) {
        outcomes.clear();
        self.decode(step, logits);
        for index in 0..step.parts().len() {
            let outcome = self.scratch.outcomes[index].take();
            outcomes.push(outcome.unwrap_or_else(|| self.compute(step, index, logits)));
        }
    }

    fn truncate(&mut self, id: SequenceId, len: usize) -> Result<()> {
        let Some(kept) = self.cut(id, |_| len)? else { return Ok(()) };
        // Tokens before the cut are computed already and would be missing.
        if kept == len { Ok(()) } else { Err(Error::Truncated { len, kept }) }
    }

    /// None behind tokens that a constraint has forced: they have no rows.
    fn draft_room(&self, id: SequenceId, tokens: usize) -> usize {
        let held = self.sequences.get(&id).filter(|_| tokens == 1);
        held.map_or(0, |held| self.batch.draft_room(held.number))
    }

    fn prefilled(&mut self, id: SequenceId) {
        if let Some(Held { number, tokens, sharing: Some(sharing), .. }) = self.sequences.get(&id) {
            self.batch.keep_prefix(*number, tokens, &sharing.as_prefix());
        }
    }

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
        if let Some(held) = self.sequences.remove(&id) {
            self.batch.end(held.number);
        }
    }

    /// Backends report a lack of memory when a sequence begins.
    fn free_tokens(&self) -> usize {
        usize::MAX
    }
}

#[cfg(test)]
mod tests {
    use ruvllm_memory::PressurePolicy;

    use super::*;
    use crate::backend::batch::{OnDecoded, OneByOne, Open, Wanted};
    use crate::cancel::CancelToken;

    /// Token that no sequence takes.
    const FAULTY: TokenId = 99;

    /// Sequences of which two are computed in a pass.
    struct Pairs<'b>(OneByOne<'b>);

    impl BackendBatch for Pairs<'_> {
        fn begin(&mut self, capacity: usize) -> Result<usize> {
            self.0.begin(capacity)
        }

        fn sequence(&mut self, number: usize) -> Option<&mut dyn BackendSession> {
            self.0.sequence(number)
        }

        fn end(&mut self, number: usize) {
            self.0.end(number);
        }

        fn decode(&mut self, tokens: &[NextToken], on_decoded: &mut OnDecoded<'_>) -> Result<()> {
            for (pair, pass) in tokens.chunks(2).enumerate() {
                if pass.iter().any(|next| next.token == FAULTY) {
                    return Err(Error::EngineStopped);
                }
                let (mut with_logits, mut logits) = (Vec::new(), Vec::new());
                let (mut greedy, mut chosen) = (Vec::new(), Vec::new());
                for (index, next) in pass.iter().enumerate() {
                    let row = 2 * pair + index;
                    let session = self.0.sequence(next.sequence).expect("a sequence");
                    let logit = session.forward(&[next.token])?[0];
                    match next.wanted {
                        Wanted::Logits | Wanted::Largest(_) => {
                            with_logits.push(row);
                            logits.push(logit);
                        }
                        Wanted::Greedy { .. } => {
                            greedy.push(row);
                            chosen.push(Some(next.token));
                        }
                    }
                }
                on_decoded(&with_logits, Decoded::Logits(&logits));
                on_decoded(&greedy, Decoded::Greedy(&chosen));
            }
            Ok(())
        }
    }

    fn spec() -> SequenceSpec {
        SequenceSpec {
            tenant: Tenant::root(),
            adapters: Arc::default(),
            kv: None,
            min_cache_tokens: 0,
            pressure: PressurePolicy::default(),
            capacity: 16,
            caches_prefix: false,
            shared_tokens: 0,
        }
    }

    fn echo<'b>(keeps: bool) -> OneByOne<'b> {
        let open: Open<'b> = Box::new(move |_| Ok(Box::new(Echo { tokens: Vec::new(), row: [0.0], keeps })));
        OneByOne::new(open)
    }

    /// Results of a part: part, computed tokens, rows, and logits or greedy tokens.
    type Seen = (Vec<(usize, usize, usize)>, Vec<f32>, Vec<Option<TokenId>>);

    /// Computes a step; returns the results in their order, and the computed tokens of each part.
    fn compute(executor: &mut SessionExecutor<'_>, step: &Step) -> (Vec<Seen>, Vec<Option<usize>>) {
        let (mut outcomes, mut seen) = (Vec::new(), Vec::new());
        executor.step(step, &mut outcomes, &mut |parts, decoded, _| {
            let parts: Vec<_> = parts.iter().map(|part| (part.part, part.tokens, part.rows)).collect();
            match decoded {
                _ if parts.is_empty() => {}
                Decoded::Logits(logits) => seen.push((parts, logits.to_vec(), Vec::new())),
                Decoded::Greedy(tokens) => seen.push((parts, Vec::new(), tokens.to_vec())),
                Decoded::Largest { .. } => panic!("no part wants the largest logits"),
            }
        });
        let computed = |outcome: &Outcome| match outcome {
            Outcome::Computed { tokens } => Some(*tokens),
            Outcome::Failed(_) => None,
        };
        (seen, outcomes.iter().map(computed).collect())
    }

    #[test]
    fn tokens_of_a_pass_that_failed_are_computed_alone() {
        let mut executor = SessionExecutor::new(Box::new(Pairs(echo(true))), 8);
        let cancel = CancelToken::new();
        let mut step = Step::default();
        for (id, token) in [(1, 5), (2, 6), (3, FAULTY), (4, 7)] {
            executor.begin(SequenceId(id), &spec(), &[1, 2]).expect("a sequence");
            step.push(SequenceId(id), &[token], false, 1, &cancel);
        }
        executor.begin(SequenceId(5), &spec(), &[8, 9]).expect("a sequence");
        step.push(SequenceId(5), &[8, 9], true, 1, &cancel);
        let (seen, computed) = compute(&mut executor, &step);
        let together = (vec![(0, 1, 1), (1, 1, 1)], vec![5.0, 6.0], vec![]);
        let alone = (vec![(3, 1, 1)], vec![7.0], vec![]);
        assert_eq!(seen, [together, alone, (vec![(4, 2, 1)], vec![9.0], vec![])]);
        assert_eq!(computed, [Some(1), Some(1), None, Some(1), Some(2)]);
        // A single token that fails is not computed twice, and its sequence goes on without it.
        step.clear();
        step.push(SequenceId(3), &[FAULTY], false, 1, &cancel);
        assert_eq!(compute(&mut executor, &step), (vec![], vec![None]));
        step.clear();
        step.push(SequenceId(3), &[4], false, 1, &cancel);
        step.push(SequenceId(1), &[4], false, 1, &cancel);
        compute(&mut executor, &step);
        let sizes = [1, 3].map(|id| executor.finish(SequenceId(id)).size.tokens);
        assert_eq!(sizes, [2, 1]);
    }

    #[test]
    fn a_backend_chooses_the_tokens_of_parts_that_want_nothing_else() {
        let mut executor = SessionExecutor::new(Box::new(Pairs(echo(true))), 8);
        let cancel = CancelToken::new();
        let mut step = Step::default();
        for (id, is_greedy) in [(1, true), (2, false), (3, true)] {
            executor.begin(SequenceId(id), &spec(), &[1, 2]).expect("a sequence");
            step.push(SequenceId(id), &[id as TokenId + 10], false, 1, &cancel);
            if is_greedy {
                step.want(Wanted::Greedy { goes_on: true });
            }
        }
        // Tokens of a prompt have logits in any case.
        executor.begin(SequenceId(4), &spec(), &[8, 9]).expect("a sequence");
        step.push(SequenceId(4), &[8, 9], true, 1, &cancel);
        step.want(Wanted::Greedy { goes_on: true });
        let (seen, computed) = compute(&mut executor, &step);
        let expected: [Seen; 4] = [
            (vec![(1, 1, 1)], vec![12.0], vec![]),
            (vec![(0, 1, 1)], vec![], vec![Some(11)]),
            (vec![(2, 1, 1)], vec![], vec![Some(13)]),
            (vec![(3, 2, 1)], vec![9.0], vec![]),
        ];
        assert_eq!(seen, expected);
        assert_eq!(computed, [Some(1), Some(1), Some(1), Some(2)]);
    }

    #[test]
    fn drafts_are_computed_with_the_tokens_before_them() {
        let mut executor = SessionExecutor::new(Box::new(echo(true)), 8);
        let cancel = CancelToken::new();
        let mut step = Step::default();
        for (id, draft) in [(1, &[6, 7][..]), (2, &[]), (3, &[8])] {
            executor.begin(SequenceId(id), &spec(), &[1, 2]).expect("a sequence");
            step.push(SequenceId(id), &[5], false, 1, &cancel);
            step.push_draft(draft);
        }
        let (seen, computed) = compute(&mut executor, &step);
        let expected: [Seen; 3] = [
            (vec![(0, 3, 3)], vec![5.0, 6.0, 7.0], vec![]),
            (vec![(1, 1, 1)], vec![5.0], vec![]),
            (vec![(2, 2, 2)], vec![5.0, 8.0], vec![]),
        ];
        assert_eq!(seen, expected);
        assert_eq!(computed, [Some(3), Some(1), Some(2)]);
        assert_eq!(executor.draft_room(SequenceId(1), 1), 0, "its batch has no room for drafts");
        // A draft that fails leaves the sequence as it was.
        step.clear();
        step.push(SequenceId(1), &[4], false, 1, &cancel);
        step.push_draft(&[FAULTY]);
        assert_eq!(compute(&mut executor, &step).1, [None]);
        executor.truncate(SequenceId(1), 3).expect("it is cut");
        assert_eq!(executor.finish(SequenceId(1)).size.tokens, 3);
    }

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
            if tokens.contains(&FAULTY) {
                return Err(Error::EngineStopped);
            }
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
            let mut executor = SessionExecutor::new(Box::new(echo(keeps)), 8);
            let (id, cancel) = (SequenceId(1), CancelToken::new());
            assert_eq!(executor.begin(id, &spec(), &[1, 2]).expect("a sequence"), 0);
            let mut step = Step::default();
            step.push(id, &[1, 2], false, 1, &cancel);
            step.push_draft(&[3, 4]);
            let (mut outcomes, mut rows) = (Vec::new(), Vec::new());
            executor.step(&step, &mut outcomes, &mut |parts, decoded, _| {
                assert_eq!(parts, [PartLogits { part: 0, tokens: 4, rows: 3, states: 0 }]);
                let Decoded::Logits(logits) = decoded else { panic!("a draft has rows of logits") };
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
