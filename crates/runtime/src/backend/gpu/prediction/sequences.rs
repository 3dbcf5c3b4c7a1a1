//! Sequences of a prediction head on the device.

use ruvllm_gpu::Dispatch;
use ruvllm_text::TokenId;

use super::GpuHead;
use crate::backend::batch::{Decoded, Numbered, OnStates, TokenLogit};
use crate::backend::gpu::adapters::Leased;
use crate::backend::gpu::executor::{DRAFT_ROWS, MAX_ROWS, Next, Place};
use crate::backend::gpu::largest::MOST_LARGEST;
use crate::backend::gpu::session::{failed, no_room, soft_cap};
use crate::backend::head::{BackendHead, HeadPart};
use crate::error::{Error, Result};

/// Sequences of a [`GpuHead`]: few pairs of each are rows of one decode pass, many are computed as
/// a prompt.
pub(in crate::backend::gpu) struct HeadSequences<'b> {
    head: &'b GpuHead,
    sequences: Numbered<HeadSequence>,
}

/// A sequence, and its number of pairs.
#[derive(Debug)]
struct HeadSequence {
    place: Place,
    len: usize,
}

/// Results of a pass: the largest logits of its rows, and their states.
struct Predicted {
    largest: Vec<TokenLogit>,
    states: Vec<f32>,
}

impl<'b> HeadSequences<'b> {
    pub(in crate::backend::gpu) fn new(head: &'b GpuHead) -> Self {
        Self { head, sequences: Numbered::default() }
    }

    /// Checks a part; returns its sequence.
    fn check(&self, part: &HeadPart<'_>) -> Result<&HeadSequence> {
        let (start, tokens) = (self.sequences.get(part.sequence).map_or(0, |s| s.len), part.tokens.len());
        let refused = |source| Error::Forward { start, tokens, source };
        let Some(sequence) = self.sequences.get(part.sequence).filter(|_| tokens > 0) else {
            return Err(refused(ruvllm_models::Error::EmptySegment { segment: part.sequence }));
        };
        let (expected, found) = (tokens * self.head.executor.config.model_dim, part.states.len());
        if found != expected {
            return Err(refused(ruvllm_models::Error::HiddenStates { tokens, expected, found }));
        }
        let (end, most) = (start + tokens, self.head.capacity);
        if end > most {
            let what = "the sequence of the prediction head".to_owned();
            return Err(Error::ContextTooLong { what, tokens: end, model_context: most });
        }
        Ok(sequence)
    }

    /// Computes the pairs of one sequence as a prompt.
    fn prefill(&mut self, part: &HeadPart<'_>) -> Result<Predicted> {
        let executor = &self.head.executor;
        let HeadSequence { place, len } = self.check(part)?;
        let (mut passes, width) = (executor.passes(), executor.config.model_dim);
        let action = format!("compute pairs {len}..{} of the prediction head", len + part.tokens.len());
        let failure = || failed(action.clone());
        let (mut start, mut rest, mut states) = (*len, part.tokens, part.states);
        let predicted = loop {
            let (rows, n) = passes.prefill_rows(executor, start, rest.len().min(MAX_ROWS as usize));
            let (now, later) = rest.split_at(n);
            let (of_now, of_later) = states.split_at(n * width);
            let pass = passes.prefill(executor, place, start, now, rows).map_err(failure())?;
            executor.gpu.write(&pass.rows.pairs().states, of_now).map_err(failure())?;
            start += n;
            if later.is_empty() {
                break passes.largest(executor, &pass, 1, 0..1).map_err(failure())?;
            }
            let launches: Vec<&Dispatch> = pass.keys.iter().collect();
            executor.gpu.run(&launches).map_err(failure())?;
            (rest, states) = (later, of_later);
        };
        drop(passes);
        self.grow(part.sequence, part.tokens.len());
        Ok(self.predicted(predicted))
    }

    /// Computes the pairs of several sequences in one pass, a row for each pair.
    fn decode(&mut self, parts: &[&HeadPart<'_>]) -> Result<Predicted> {
        let executor = &self.head.executor;
        let (mut batch, mut states) = (Vec::new(), Vec::new());
        for part in parts {
            let HeadSequence { place, len } = self.check(part)?;
            let next = |(at, &token): (usize, &TokenId)| Next {
                place,
                position: Some(len + at),
                token: Some(token),
            };
            batch.extend(part.tokens.iter().enumerate().map(next));
            states.extend_from_slice(part.states);
        }
        let action = format!("draft with the prediction head for {} sequences", parts.len());
        let failure = || failed(action.clone());
        let mut passes = executor.passes();
        let pass = passes.decode(executor, &batch).map_err(failure())?;
        executor.gpu.write(&pass.rows.pairs().states, &states).map_err(failure())?;
        let rows = batch.len();
        let predicted = passes.largest(executor, &pass, rows, 0..rows).map_err(failure())?;
        drop(passes);
        parts.iter().for_each(|part| self.grow(part.sequence, part.tokens.len()));
        Ok(self.predicted(predicted))
    }

    /// Computes the parts with the indexes `of` in one pass, if there are any, and passes on their
    /// results.
    fn decode_parts(
        &mut self,
        parts: &[HeadPart<'_>],
        of: &[usize],
        on_predicted: &mut OnStates<'_>,
    ) -> Result<()> {
        if of.is_empty() {
            return Ok(());
        }
        let chosen: Vec<&HeadPart<'_>> = of.iter().map(|&index| &parts[index]).collect();
        let found = self.decode(&chosen)?;
        let mut end = 0;
        let last = |part: &&HeadPart<'_>| {
            end += part.tokens.len();
            end - 1
        };
        let rows: Vec<usize> = chosen.iter().map(last).collect();
        self.pass_on(of, &rows, &found, on_predicted);
        Ok(())
    }

    fn grow(&mut self, number: usize, pairs: usize) {
        if let Some(sequence) = self.sequences.get_mut(number) {
            sequence.len += pairs;
        }
    }

    fn predicted(&self, (mut largest, states): (Vec<TokenLogit>, Vec<f32>)) -> Predicted {
        if let Some(cap) = self.head.executor.config.decoder.logits_soft_cap {
            for known in &mut largest {
                soft_cap(std::slice::from_mut(&mut known.logit), cap);
            }
        }
        Predicted { largest, states }
    }

    /// Passes on the results of the last rows of parts, given by their indexes and these rows.
    fn pass_on(&self, of: &[usize], rows: &[usize], found: &Predicted, on_predicted: &mut OnStates<'_>) {
        let width = self.head.executor.config.model_dim;
        let largest: Vec<TokenLogit> = rows
            .iter()
            .flat_map(|row| &found.largest[row * MOST_LARGEST..][..MOST_LARGEST])
            .copied()
            .collect();
        let states: Vec<f32> =
            rows.iter().flat_map(|row| &found.states[row * width..][..width]).copied().collect();
        on_predicted(of, Decoded::Largest { most: MOST_LARGEST, logits: &largest }, &states);
    }
}

impl BackendHead for HeadSequences<'_> {
    fn capacity(&self) -> usize {
        self.head.capacity
    }

    fn begin(&mut self) -> Result<usize> {
        let (executor, capacity) = (&self.head.executor, self.head.capacity);
        let lease = executor.pool.blocks.lease(capacity, executor);
        let lease = lease.map_err(no_room("make a sequence of the prediction head".to_owned()))?;
        let (id, adapters) = (executor.passes().next_sequence(), Leased::default());
        let place = Place { id, lease, long: false, adapters, state: None };
        Ok(self.sequences.insert(HeadSequence { place, len: 0 }))
    }

    fn truncate(&mut self, number: usize, len: usize) -> Result<usize> {
        Ok(self.sequences.get_mut(number).map_or(0, |sequence| {
            sequence.len = sequence.len.min(len);
            sequence.len
        }))
    }

    fn end(&mut self, number: usize) {
        self.sequences.remove(number);
    }

    /// One pass for sequences of few pairs, or several if there are too many for one.
    fn predict(&mut self, parts: &[HeadPart<'_>], on_predicted: &mut OnStates<'_>) -> Result<()> {
        let executor = &self.head.executor;
        let end = parts.iter().map(|part| self.check(part).map(|of| of.len + part.tokens.len()));
        let end = end.collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or(0);
        let limit = executor.passes().batch_limit(executor, end);
        let (mut of, mut rows) = (Vec::new(), 0);
        for (index, part) in parts.iter().enumerate() {
            let n = part.tokens.len();
            if n > limit.min(DRAFT_ROWS as usize) {
                let found = self.prefill(part)?;
                self.pass_on(&[index], &[0], &found, on_predicted);
                continue;
            }
            if rows + n > limit {
                self.decode_parts(parts, &of, on_predicted)?;
                of.clear();
                rows = 0;
            }
            of.push(index);
            rows += n;
        }
        self.decode_parts(parts, &of, on_predicted)
    }
}
