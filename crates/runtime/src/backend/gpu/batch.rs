//! Sequences of the GPU backend that are decoded together.

use std::ops::Range;
use std::sync::{Arc, MutexGuard};

use ruvllm_adapters::ScaledAdapter;
use ruvllm_gpu::Dispatch;
use ruvllm_text::TokenId;

use super::GpuBackend;
use super::executor::{Argmax, DRAFT_ROWS, HiddenReading, Ids, Next, Passes, batch_rows};
use super::largest::MOST_LARGEST;
use super::launches::Pass;
use super::session::{GpuSession, failed, soft_cap};
use crate::backend::batch::{
    BackendBatch, Decoded, NextToken, Numbered, OnDecoded, OnStates, PrefixSharing, TokenLogit, Wanted,
};
use crate::backend::sequence::BackendSession;
use crate::error::Result;

/// Sequences of a [`GpuBackend`]; a decode step is a pass with a row for each (ADR-0088), and for
/// each token of a draft (ADR-0145).
///
/// Bits of a row depend on its own sequence alone, not on the others in the pass.
pub(super) struct GpuBatch<'b> {
    backend: &'b GpuBackend,
    sequences: Numbered<GpuSession<'b>>,
    /// Logits after the soft cap, for models that have one.
    capped: Vec<f32>,
    /// Pass of the next tokens, started before they are asked for (ADR-0132).
    ahead: Option<Running>,
}

/// A pass of greedy tokens that was started.
struct Running {
    rows: Vec<Row>,
    argmax: Argmax,
    /// Final hidden states of the rows, if they were asked for when it was started.
    hidden: Option<HiddenReading>,
}

/// Result of a row, in the order of the rows of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Logits,
    Greedy,
    Largest,
}

/// Row of a pass.
struct Row {
    sequence: usize,
    /// False if the result is not the sequence's next one.
    is_next: bool,
    /// The token that it appends, once the pass before has chosen it.
    token: Option<TokenId>,
}

impl<'b> GpuBatch<'b> {
    pub(super) fn new(backend: &'b GpuBackend) -> Self {
        Self { backend, sequences: Numbered::default(), capped: Vec::new(), ahead: None }
    }

    /// Computes the tokens of `rows`, indexes into `tokens`, in one pass. Greedy tokens and the
    /// largest logits are found on the device, and only the logits of other rows are copied.
    /// `with_states`: final hidden states are copied too.
    fn pass(
        &mut self,
        tokens: &[NextToken],
        rows: &[usize],
        with_states: bool,
        on_decoded: &mut OnStates<'_>,
    ) -> Result<()> {
        let executor = &self.backend.executor;
        let kind = |row: &usize| self.kind(tokens[*row].wanted);
        let mut order = rows.to_vec();
        // Logits come first, so that fewer rows are copied; the rows of a sequence stay together.
        order.sort_by_key(kind);
        let with_logits = order.partition_point(|row| kind(row) < Kind::Greedy);
        let with_tokens = order.partition_point(|row| kind(row) < Kind::Largest);
        let next = |&row: &usize| {
            let NextToken { sequence, token, .. } = tokens[row];
            let session = self.sequences.get(sequence)?;
            let position = Some(session.len + place_in_run(tokens, row));
            Some(Next { place: &session.place, position, token: Some(token) })
        };
        let batch: Vec<Next<'_>> = order.iter().filter_map(next).collect();
        let action = format!("decode a token of {} sequences", batch.len());
        let failure = || failed(action.clone());
        let mut passes = executor.passes();
        let pass = passes.decode(executor, &batch).map_err(failure())?;
        let hidden = 0..if with_states { order.len() } else { 0 };
        if (with_logits, with_tokens) == (0, order.len()) {
            let argmax = passes.start_argmax(executor, &pass, Ids::Tokenizer).map_err(failure())?;
            let hidden = passes.start_hidden(executor, &pass, hidden).map_err(failure())?;
            drop(passes);
            let row = |&row: &usize| Row { sequence: tokens[row].sequence, is_next: true, token: None };
            let running = Running { rows: order.iter().map(row).collect(), argmax, hidden };
            if rows.len() == tokens.len() {
                self.start_ahead(&running, tokens, with_states);
            }
            return self.finish(running, rows.iter().copied().map(Some), on_decoded);
        }
        let parts = (&order[..], [with_logits, with_tokens]);
        self.mixed(passes, &pass, parts, hidden, on_decoded).map_err(failure())?;
        for &row in rows {
            if let Some(session) = self.sequences.get_mut(tokens[row].sequence) {
                session.len += 1;
            }
        }
        Ok(())
    }

    /// Runs a pass whose rows, in `order`, get logits, then greedy tokens, then the largest logits,
    /// and passes on the results.
    fn mixed(
        &mut self,
        mut passes: MutexGuard<'_, Passes>,
        pass: &Arc<Pass>,
        (order, [with_logits, with_tokens]): (&[usize], [usize; 2]),
        mut hidden: Range<usize>,
        on_decoded: &mut OnStates<'_>,
    ) -> ruvllm_gpu::Result<()> {
        let executor = &self.backend.executor;
        let mut launches: Vec<&Dispatch> = pass.launches().collect();
        let (mut largest, mut chosen, mut states) = (Vec::new(), Vec::new(), Vec::new());
        if with_tokens < order.len() {
            let of_rows = std::mem::take(&mut hidden);
            (largest, states) = passes.largest(executor, pass, order.len(), of_rows)?;
            launches.clear();
            chosen.extend(largest.chunks_exact(MOST_LARGEST).map(greedy));
        } else if with_logits < order.len() {
            let argmax = passes.start_argmax(executor, pass, Ids::Tokenizer)?;
            launches.clear();
            let reading = passes.start_hidden(executor, pass, std::mem::take(&mut hidden));
            chosen = passes.finish_argmax(executor, argmax)?;
            if let Some(reading) = reading? {
                passes.finish_hidden(executor, reading, &mut states)?;
            }
        }
        let of = |states: &[f32], rows: Range<usize>| -> Vec<f32> {
            let width = states.len() / order.len();
            states[rows.start * width..rows.end * width].to_vec()
        };
        if with_logits > 0 {
            let (capped, cap) = (&mut self.capped, executor.config.decoder.logits_soft_cap);
            let rows = &order[..with_logits];
            let read = |values: &[f32], found: &[f32]| {
                // Read with the rows that come first.
                let found = if found.is_empty() { &states[..] } else { found };
                let states = of(found, 0..with_logits);
                match cap {
                    None => on_decoded(rows, Decoded::Logits(values), &states),
                    Some(cap) => {
                        capped.clear();
                        capped.extend_from_slice(values);
                        soft_cap(capped, cap);
                        on_decoded(rows, Decoded::Logits(capped), &states);
                    }
                }
            };
            passes.logits(executor, pass, &launches, (with_logits, hidden), read)?;
        }
        drop(passes);
        if with_logits < with_tokens {
            let rows = with_logits..with_tokens;
            on_decoded(&order[rows.clone()], Decoded::Greedy(&chosen[rows.clone()]), &of(&states, rows));
        }
        if with_tokens < order.len() {
            let logits = &largest[with_tokens * MOST_LARGEST..];
            let of_rows = of(&states, with_tokens..order.len());
            on_decoded(&order[with_tokens..], Decoded::Largest { most: MOST_LARGEST, logits }, &of_rows);
        }
        Ok(())
    }

    /// Result that a row gets. A model with a soft cap, which can make logits equal, has logits
    /// alone.
    fn kind(&self, wanted: Wanted) -> Kind {
        let has_cap = self.backend.executor.config.decoder.logits_soft_cap.is_some();
        match wanted {
            Wanted::Greedy { .. } if !has_cap => Kind::Greedy,
            Wanted::Largest(..=MOST_LARGEST) if !has_cap => Kind::Largest,
            _ => Kind::Logits,
        }
    }

    /// Starts the pass behind `running`, the pass of `tokens`, whose greedy tokens it reads on the
    /// device; `with_states`: final hidden states are copied, as in that pass. Does nothing if a
    /// smaller pass would do for the sequences that go on, if one of them has a draft, which
    /// another may follow, or if the pass cannot be started: the next step starts its own then, and
    /// reports an error.
    fn start_ahead(&mut self, running: &Running, tokens: &[NextToken], with_states: bool) {
        let executor = &self.backend.executor;
        if tokens.windows(2).any(|pair| pair[0].sequence == pair[1].sequence) {
            return;
        }
        let (mut rows, mut batch, mut end) = (Vec::new(), Vec::new(), 0);
        for &NextToken { sequence, wanted, .. } in tokens {
            let Some(session) = self.sequences.get(sequence) else { return };
            // The token of `running` is not counted yet.
            let is_next = wanted == Wanted::Greedy { goes_on: true } && session.room() >= 2;
            let position = is_next.then_some(session.len + 1);
            end = end.max(position.map_or(0, |at| at + 1));
            batch.push(Next { place: &session.place, position, token: None });
            rows.push(Row { sequence, is_next, token: None });
        }
        let n = rows.iter().filter(|row| row.is_next).count();
        let mut passes = executor.passes();
        if n == 0 || batch_rows(n) < batch_rows(rows.len()) || passes.batch_limit(executor, end) < rows.len()
        {
            return;
        }
        let Ok(pass) = passes.decode(executor, &batch) else { return };
        if passes.holds(&running.argmax)
            && let Ok(argmax) = passes.start_argmax(executor, &pass, Ids::Tokenizer)
        {
            let all = 0..if with_states { rows.len() } else { 0 };
            // A step without states has no drafts behind it.
            let hidden = passes.start_hidden(executor, &pass, all).unwrap_or_default();
            self.ahead = Some(Running { rows, argmax, hidden });
        }
    }

    /// Waits for the tokens of a pass and passes on those of `rows`, its rows' indexes in the step;
    /// `None` for a row that is not in the step.
    fn finish(
        &mut self,
        running: Running,
        rows: impl Iterator<Item = Option<usize>>,
        on_decoded: &mut OnStates<'_>,
    ) -> Result<()> {
        let executor = &self.backend.executor;
        let ahead = self.ahead.take();
        let action = format!("decode a token of {} sequences", running.rows.len());
        let (mut passes, mut hidden) = (executor.passes(), Vec::new());
        let chosen = passes.finish_argmax(executor, running.argmax).map_err(failed(action.clone()))?;
        if let Some(reading) = running.hidden {
            passes.finish_hidden(executor, reading, &mut hidden).map_err(failed(action))?;
        }
        drop(passes);
        self.ahead = ahead;
        let (mut in_step, mut found, mut states) = (Vec::new(), Vec::new(), Vec::new());
        let width = hidden.len() / running.rows.len().max(1);
        for (index, (row, token)) in rows.zip(chosen).enumerate() {
            let Some(row) = row else { continue };
            if let Some(session) = self.sequences.get_mut(running.rows[index].sequence) {
                session.len += 1;
            }
            if let Some(ahead) = &mut self.ahead {
                ahead.rows[index].token = token;
            }
            in_step.push(row);
            found.push(token);
            states.extend_from_slice(&hidden[index * width..][..width]);
        }
        on_decoded(&in_step, Decoded::Greedy(&found), &states);
        Ok(())
    }

    /// Index in a step of the token that a row has appended in advance; `None` if the step does not
    /// ask for it.
    fn in_step(&self, row: &Row, tokens: &[NextToken]) -> Option<usize> {
        let index = tokens.iter().position(|next| next.sequence == row.sequence)?;
        let next = &tokens[index];
        let is_alone = tokens.get(index + 1).is_none_or(|after| after.sequence != row.sequence);
        let is_right = row.is_next && row.token == Some(next.token);
        (is_right && is_alone && self.kind(next.wanted) == Kind::Greedy).then_some(index)
    }

    /// Drops the row of a sequence that may change from the pass in advance.
    fn forget(&mut self, sequence: usize) {
        for row in self.ahead.iter_mut().flat_map(|ahead| &mut ahead.rows) {
            row.is_next &= row.sequence != sequence;
        }
    }
}

impl BackendBatch for GpuBatch<'_> {
    fn begin(&mut self, capacity: usize) -> Result<usize> {
        self.begin_adapted(capacity, &[], None).map(|(number, _)| number)
    }

    fn begin_with_prefix(
        &mut self,
        capacity: usize,
        prompt: &[TokenId],
        sharing: &PrefixSharing<'_>,
    ) -> Result<(usize, usize)> {
        self.begin_adapted(capacity, &[], Some((prompt, sharing)))
    }

    fn begin_adapted(
        &mut self,
        capacity: usize,
        adapters: &[ScaledAdapter],
        prompt: Option<(&[TokenId], &PrefixSharing<'_>)>,
    ) -> Result<(usize, usize)> {
        let session = self.backend.session_of(capacity, adapters, prompt)?;
        let known = session.len;
        Ok((self.sequences.insert(session), known))
    }

    fn keep_prefix(&mut self, number: usize, tokens: &[TokenId], sharing: &PrefixSharing<'_>) {
        if let Some(session) = self.sequences.get(number) {
            session.keep_prefix(tokens, sharing);
        }
    }

    fn go_on_with(&mut self, number: usize, prompt: &[TokenId], sharing: Option<&PrefixSharing<'_>>) {
        if let Some(session) = self.sequences.get_mut(number) {
            session.share(prompt, sharing);
        }
    }

    fn sequence(&mut self, number: usize) -> Option<&mut dyn BackendSession> {
        self.forget(number);
        self.sequences.get_mut(number).map(|session| session as &mut dyn BackendSession)
    }

    fn end(&mut self, number: usize) {
        self.forget(number);
        self.sequences.remove(number);
    }

    fn draft_room(&self, number: usize) -> usize {
        let Some(session) = self.sequences.get(number) else { return 0 };
        let executor = &self.backend.executor;
        let rows = executor.passes().batch_limit(executor, session.len + session.room());
        let room = session.room().min(rows).min(DRAFT_ROWS as usize).saturating_sub(1);
        // Each token of a draft has a state of its own.
        session.place.state.as_ref().map_or(room, |state| state.draft_room(session.len, room))
    }

    fn decode(&mut self, tokens: &[NextToken], on_decoded: &mut OnDecoded<'_>) -> Result<()> {
        self.step(tokens, false, &mut |rows, decoded, _| on_decoded(rows, decoded))
    }

    /// States of a model with a prediction head.
    fn decode_with_states(&mut self, tokens: &[NextToken], on_decoded: &mut OnStates<'_>) -> Result<()> {
        self.step(tokens, true, on_decoded)
    }
}

impl GpuBatch<'_> {
    /// One pass for up to 64 tokens; fewer if their partial sums of attention need too much memory.
    /// Sequences with other RoPE frequencies (`LongRoPE`) have passes of their own. Rows of a pass
    /// that was started in advance are taken from it, with their states if it has them.
    fn step(&mut self, tokens: &[NextToken], with_states: bool, on_decoded: &mut OnStates<'_>) -> Result<()> {
        for run in tokens.chunk_by(|a, b| a.sequence == b.sequence) {
            if let Some(session) = self.sequences.get(run[0].sequence) {
                let ids: Vec<TokenId> = run.iter().map(|next| next.token).collect();
                session.check(&ids, 0)?;
            }
        }
        let mut taken = Vec::new();
        if let Some(ahead) = self.ahead.take() {
            taken = ahead.rows.iter().map(|row| self.in_step(row, tokens)).collect();
            let is_whole = taken.iter().copied().eq((0..tokens.len()).map(Some));
            if is_whole {
                self.start_ahead(&ahead, tokens, with_states);
            }
            if taken.iter().any(Option::is_some) {
                self.finish(ahead, taken.iter().copied(), on_decoded)?;
            }
        }
        let mut rows: [Vec<usize>; 2] = Default::default();
        let mut end = 0;
        for (row, next) in tokens.iter().enumerate().filter(|(row, _)| !taken.contains(&Some(*row))) {
            let Some(session) = self.sequences.get(next.sequence) else { continue };
            end = end.max(session.len + place_in_run(tokens, row) + 1);
            rows[usize::from(session.place.long)].push(row);
        }
        let executor = &self.backend.executor;
        let limit = executor.passes().batch_limit(executor, end);
        for rows in &rows {
            for rows in passes(tokens, rows, limit) {
                self.pass(tokens, rows, with_states, on_decoded)?;
            }
        }
        Ok(())
    }
}

/// Number of the tokens of the same sequence directly before a token.
fn place_in_run(tokens: &[NextToken], row: usize) -> usize {
    tokens[..row].iter().rev().take_while(|next| next.sequence == tokens[row].sequence).count()
}

/// Divides rows into passes of at most `limit`, which divide no sequence's.
fn passes<'r>(tokens: &[NextToken], rows: &'r [usize], limit: usize) -> Vec<&'r [usize]> {
    let (mut passes, mut start, mut end) = (Vec::new(), 0, 0);
    for run in rows.chunk_by(|&a, &b| tokens[a].sequence == tokens[b].sequence) {
        if end > start && end - start + run.len() > limit {
            passes.push(&rows[start..end]);
            start = end;
        }
        end += run.len();
    }
    passes.extend((end > start).then(|| &rows[start..end]));
    passes
}

/// The greedy token of a row of its largest logits.
fn greedy(logits: &[TokenLogit]) -> Option<TokenId> {
    logits.first().filter(|first| first.logit > f32::NEG_INFINITY).map(|first| first.token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_divide_no_sequence() {
        let next = |sequence| NextToken { sequence, token: 0, wanted: Wanted::Logits };
        let tokens = [1, 1, 2, 3, 3, 3, 4, 5].map(next);
        let sizes = |limit| {
            let rows: Vec<usize> = (0..tokens.len()).collect();
            passes(&tokens, &rows, limit).into_iter().map(<[usize]>::len).collect::<Vec<_>>()
        };
        assert_eq!([sizes(8), sizes(4), sizes(3)], [vec![8], vec![3, 5 - 1, 1], vec![3, 3, 2]]);
        assert!(passes(&tokens, &[], 4).is_empty());
        let places: Vec<usize> = (0..tokens.len()).map(|row| place_in_run(&tokens, row)).collect();
        assert_eq!(places, [0, 1, 0, 0, 1, 2, 0, 0]);
    }
}
