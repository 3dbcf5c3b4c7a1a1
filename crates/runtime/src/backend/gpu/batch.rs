//! Sequences of the GPU backend that are decoded together.

use ruvllm_gpu::Dispatch;
use ruvllm_text::TokenId;

use super::GpuBackend;
use super::executor::{Argmax, Ids, Next, batch_rows};
use super::session::{GpuSession, failed, soft_cap};
use crate::backend::batch::{BackendBatch, Decoded, NextToken, Numbered, OnDecoded, PrefixSharing, Wanted};
use crate::backend::sequence::BackendSession;
use crate::error::Result;

/// Sequences of a [`GpuBackend`]; a decode step is a pass with a row for each (ADR-0088).
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

    /// Computes the tokens of `rows`, indexes into `tokens`, in one pass. Greedy tokens are chosen
    /// on the device, and only the logits of other rows are copied.
    fn pass(&mut self, tokens: &[NextToken], rows: &[usize], on_decoded: &mut OnDecoded<'_>) -> Result<()> {
        let executor = &self.backend.executor;
        let (greedy, others): (Vec<usize>, Vec<usize>) =
            rows.iter().partition(|&&row| self.is_chosen_on_device(&tokens[row]));
        let next = |&row: &usize| {
            let NextToken { sequence, token, .. } = tokens[row];
            let session = self.sequences.get(sequence)?;
            Some(Next { place: &session.place, position: Some(session.len), token: Some(token) })
        };
        let batch: Vec<Next<'_>> = others.iter().chain(&greedy).filter_map(next).collect();
        let action = format!("decode a token of {} sequences", batch.len());
        let failure = || failed(action.clone());
        let mut passes = executor.passes();
        let pass = passes.decode(executor, &batch).map_err(failure())?;
        if others.is_empty() {
            let argmax = passes.start_argmax(executor, &pass, Ids::Tokenizer).map_err(failure())?;
            drop(passes);
            let row = |&row: &usize| Row { sequence: tokens[row].sequence, is_next: true, token: None };
            let running = Running { rows: rows.iter().map(row).collect(), argmax };
            if rows.len() == tokens.len() {
                self.start_ahead(&running, tokens);
            }
            return self.finish(running, rows.iter().copied().map(Some), on_decoded);
        }
        let mut launches: Vec<&Dispatch> = pass.launches().collect();
        let mut chosen = Vec::new();
        if !greedy.is_empty() {
            let argmax = passes.start_argmax(executor, &pass, Ids::Tokenizer).map_err(failure())?;
            launches.clear();
            chosen = passes.finish_argmax(executor, argmax).map_err(failure())?;
        }
        let (capped, cap) = (&mut self.capped, executor.config.decoder.logits_soft_cap);
        let read = |values: &[f32]| match cap {
            None => on_decoded(&others, Decoded::Logits(values)),
            Some(cap) => {
                capped.clear();
                capped.extend_from_slice(values);
                soft_cap(capped, cap);
                on_decoded(&others, Decoded::Logits(capped));
            }
        };
        passes.logits(executor, &pass, &launches, others.len(), read).map_err(failure())?;
        drop(passes);
        if !greedy.is_empty() {
            on_decoded(&greedy, Decoded::Greedy(&chosen[others.len()..rows.len()]));
        }
        for &row in rows {
            if let Some(session) = self.sequences.get_mut(tokens[row].sequence) {
                session.len += 1;
            }
        }
        Ok(())
    }

    /// True for a greedy token of a model without a soft cap, which can make logits equal.
    fn is_chosen_on_device(&self, next: &NextToken) -> bool {
        let has_cap = self.backend.executor.config.decoder.logits_soft_cap.is_some();
        matches!(next.wanted, Wanted::Greedy { .. }) && !has_cap
    }

    /// Starts the pass behind `running`, the pass of `tokens`, whose greedy tokens it reads on the
    /// device. Does nothing if a smaller pass would do for the sequences that go on, or if the pass
    /// cannot be started: the next step starts its own then, and reports an error.
    fn start_ahead(&mut self, running: &Running, tokens: &[NextToken]) {
        let executor = &self.backend.executor;
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
            self.ahead = Some(Running { rows, argmax });
        }
    }

    /// Waits for the tokens of a pass and passes on those of `rows`, its rows' indexes in the step;
    /// `None` for a row that is not in the step.
    fn finish(
        &mut self,
        running: Running,
        rows: impl Iterator<Item = Option<usize>>,
        on_decoded: &mut OnDecoded<'_>,
    ) -> Result<()> {
        let executor = &self.backend.executor;
        let ahead = self.ahead.take();
        let action = format!("decode a token of {} sequences", running.rows.len());
        let chosen = executor.passes().finish_argmax(executor, running.argmax).map_err(failed(action))?;
        self.ahead = ahead;
        let (mut in_step, mut found) = (Vec::new(), Vec::new());
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
        }
        on_decoded(&in_step, Decoded::Greedy(&found));
        Ok(())
    }

    /// Index in a step of the token that a row has appended in advance; `None` if the step does not
    /// ask for it.
    fn in_step(&self, row: &Row, tokens: &[NextToken]) -> Option<usize> {
        let index = tokens.iter().position(|next| next.sequence == row.sequence)?;
        let next = &tokens[index];
        (row.is_next && row.token == Some(next.token) && self.is_chosen_on_device(next)).then_some(index)
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
        Ok(self.sequences.insert(self.backend.gpu_session(capacity)?))
    }

    fn begin_with_prefix(
        &mut self,
        capacity: usize,
        prompt: &[TokenId],
        sharing: &PrefixSharing<'_>,
    ) -> Result<(usize, usize)> {
        let session = self.backend.session_of(capacity, Some((prompt, sharing)))?;
        let known = session.len;
        Ok((self.sequences.insert(session), known))
    }

    fn keep_prefix(&mut self, number: usize, tokens: &[TokenId], sharing: &PrefixSharing<'_>) {
        if let Some(session) = self.sequences.get(number) {
            session.keep_prefix(tokens, sharing);
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

    /// One pass for up to 64 sequences; fewer if their partial sums of attention need too much
    /// memory. Sequences with other RoPE frequencies (`LongRoPE`) have passes of their own. Rows of
    /// a pass that was started in advance are taken from it.
    fn decode(&mut self, tokens: &[NextToken], on_decoded: &mut OnDecoded<'_>) -> Result<()> {
        for next in tokens {
            if let Some(session) = self.sequences.get(next.sequence) {
                session.check(&[next.token], 0)?;
            }
        }
        let mut taken = Vec::new();
        if let Some(ahead) = self.ahead.take() {
            taken = ahead.rows.iter().map(|row| self.in_step(row, tokens)).collect();
            let is_whole = taken.iter().copied().eq((0..tokens.len()).map(Some));
            if is_whole {
                self.start_ahead(&ahead, tokens);
            }
            if taken.iter().any(Option::is_some) {
                self.finish(ahead, taken.iter().copied(), on_decoded)?;
            }
        }
        let mut rows: [Vec<usize>; 2] = Default::default();
        let mut end = 0;
        for (row, next) in tokens.iter().enumerate().filter(|(row, _)| !taken.contains(&Some(*row))) {
            let Some(session) = self.sequences.get(next.sequence) else { continue };
            end = end.max(session.len + 1);
            rows[usize::from(session.place.long)].push(row);
        }
        let executor = &self.backend.executor;
        let limit = executor.passes().batch_limit(executor, end);
        for rows in rows.iter().flat_map(|rows| rows.chunks(limit)) {
            self.pass(tokens, rows, on_decoded)?;
        }
        Ok(())
    }
}
