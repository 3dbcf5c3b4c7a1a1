//! Sequences of the GPU backend that are decoded together.

use ruvllm_gpu::Dispatch;

use super::GpuBackend;
use super::executor::{Ids, Next};
use super::session::{GpuSession, failed, soft_cap};
use crate::backend::batch::{BackendBatch, Decoded, NextToken, Numbered, OnDecoded, Wanted};
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

    /// Computes the tokens of `rows`, indexes into `tokens`, in one pass. Greedy tokens are chosen
    /// on the device, and only the logits of other rows are copied.
    fn pass(&mut self, tokens: &[NextToken], rows: &[usize], on_decoded: &mut OnDecoded<'_>) -> Result<()> {
        let executor = &self.backend.executor;
        let (greedy, others): (Vec<usize>, Vec<usize>) =
            rows.iter().partition(|&&row| self.is_chosen_on_device(tokens[row].wanted));
        let next = |&row: &usize| {
            let NextToken { sequence, token, .. } = tokens[row];
            let session = self.sequences.get(sequence)?;
            Some(Next { place: &session.place, position: session.len, token: Some(token) })
        };
        let batch: Vec<Next<'_, '_>> = others.iter().chain(&greedy).filter_map(next).collect();
        let action = format!("decode a token of {} sequences", batch.len());
        let failure = || failed(action.clone());
        let mut passes = executor.passes();
        let pass = passes.decode(executor, &batch).map_err(failure())?;
        let mut launches: Vec<&Dispatch> = pass.launches().collect();
        let mut chosen = Vec::new();
        if !greedy.is_empty() {
            let reading = passes.start_argmax(executor, &pass, Ids::Tokenizer).map_err(failure())?;
            launches.clear();
            chosen = passes.finish_argmax(executor, reading).map_err(failure())?;
        }
        if !others.is_empty() {
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
        }
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
    fn is_chosen_on_device(&self, wanted: Wanted) -> bool {
        wanted == Wanted::Greedy && self.backend.executor.config.decoder.logits_soft_cap.is_none()
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
    fn decode(&mut self, tokens: &[NextToken], on_decoded: &mut OnDecoded<'_>) -> Result<()> {
        let mut rows: [Vec<usize>; 2] = Default::default();
        let mut end = 0;
        for (row, next) in tokens.iter().enumerate() {
            let Some(session) = self.sequences.get(next.sequence) else { continue };
            session.check(&[next.token], 0)?;
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
