//! Sequences of the GPU backend that are decoded together.

use ruvllm_text::TokenId;

use super::GpuBackend;
use super::executor::Next;
use super::session::{GpuSession, failed, soft_cap};
use crate::backend::batch::{BackendBatch, Numbered, OnLogits};
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
}

impl<'b> GpuBatch<'b> {
    pub(super) fn new(backend: &'b GpuBackend) -> Self {
        Self { backend, sequences: Numbered::default(), capped: Vec::new() }
    }

    /// Computes the tokens of `rows`, indexes into `tokens`, in one pass.
    fn pass(
        &mut self,
        tokens: &[(usize, TokenId)],
        rows: &[usize],
        on_logits: &mut OnLogits<'_>,
    ) -> Result<()> {
        let executor = &self.backend.executor;
        let next = |&row: &usize| {
            let (number, token) = tokens[row];
            let session = self.sequences.get(number)?;
            Some(Next { place: &session.place, position: session.len, token })
        };
        let batch: Vec<Next<'_, '_>> = rows.iter().filter_map(next).collect();
        let action = format!("decode a token of {} sequences", batch.len());
        let mut passes = executor.passes();
        let pass = passes.batch(executor, &batch).map_err(failed(action.clone()))?;
        let used = rows.len() * executor.config.vocab_size;
        let (capped, cap) = (&mut self.capped, executor.config.decoder.logits_soft_cap);
        let read = |values: &[f32]| match cap {
            None => on_logits(rows, &values[..used]),
            Some(cap) => {
                capped.clear();
                capped.extend_from_slice(&values[..used]);
                soft_cap(capped, cap);
                on_logits(rows, capped);
            }
        };
        passes.logits(executor, &pass, read).map_err(failed(action))?;
        drop(passes);
        for &row in rows {
            if let Some(session) = self.sequences.get_mut(tokens[row].0) {
                session.len += 1;
            }
        }
        Ok(())
    }
}

impl BackendBatch for GpuBatch<'_> {
    fn begin(&mut self, capacity: usize) -> Result<usize> {
        Ok(self.sequences.insert(self.backend.gpu_session(capacity)?))
    }

    fn sequence(&mut self, number: usize) -> Option<&mut dyn BackendSession> {
        self.sequences.get_mut(number).map(|session| session as &mut dyn BackendSession)
    }

    fn end(&mut self, number: usize) {
        self.sequences.remove(number);
    }

    /// One pass for up to 64 sequences; fewer if their partial sums of attention need too much
    /// memory. Sequences with other RoPE frequencies (`LongRoPE`) have passes of their own.
    fn decode(&mut self, tokens: &[(usize, TokenId)], on_logits: &mut OnLogits<'_>) -> Result<()> {
        let mut rows: [Vec<usize>; 2] = Default::default();
        let mut end = 0;
        for (row, &(number, token)) in tokens.iter().enumerate() {
            let Some(session) = self.sequences.get(number) else { continue };
            session.check(&[token], 0)?;
            end = end.max(session.len + 1);
            rows[usize::from(session.place.long)].push(row);
        }
        let executor = &self.backend.executor;
        let limit = executor.passes().batch_limit(executor, end);
        for rows in rows.iter().flat_map(|rows| rows.chunks(limit)) {
            self.pass(tokens, rows, on_logits)?;
        }
        Ok(())
    }
}
