//! Rows of a pass as spans of its sequences, and the slots of the states behind them.

use std::ops::Range;

use ruvllm_gpu::{Result, Span};

use super::lease::StateLease;
use super::rows::StateRows;
use crate::backend::gpu::executor::{Executor, Next};

impl StateRows {
    /// Writes the span of a pass of a prompt.
    ///
    /// # Errors
    /// See [`StateLease::prefill`].
    pub(in crate::backend::gpu) fn write_prompt(
        &self,
        executor: &Executor,
        state: &StateLease,
        positions: Range<usize>,
    ) -> Result<()> {
        let take = &|| executor.pool.take_state();
        let (start, rows) = (positions.start, positions.len() as u32);
        let step = state.prefill(take, positions)?;
        let row = |(tokens, slot): (usize, u32)| ((tokens - start - 1) as u32, slot);
        let kept: Vec<_> = step.kept.into_iter().map(row).collect();
        self.spans.write(&executor.gpu, &[Span { from: step.from, first: 0, rows }], &kept)
    }

    /// Writes the spans of a decode pass. The rows of a sequence are those of a draft; rows without
    /// a position have no span, they leave the states as they are.
    ///
    /// # Errors
    /// See [`StateLease::decode`].
    pub(in crate::backend::gpu) fn write_rows(&self, executor: &Executor, batch: &[Next<'_>]) -> Result<()> {
        let take = &|| executor.pool.take_state();
        let (mut spans, mut kept, mut end) = (Vec::new(), Vec::new(), 0);
        for run in batch.chunk_by(|a, b| a.place.id == b.place.id) {
            let (first, rows) = (end, run.len() as u32);
            end += rows;
            let (Some(start), Some(state)) = (run[0].position, &run[0].place.state) else { continue };
            let step = state.decode(take, start, run.len())?;
            spans.push(Span { from: step.from, first, rows });
            kept.extend((first..end).zip(step.kept).map(|(row, (_, slot))| (row, slot)));
        }
        self.spans.write(&executor.gpu, &spans, &kept)
    }
}
