//! Readback of final hidden states behind a pass.

use std::ops::Range;

use ruvllm_gpu::{Buffer, Reading, Result};

use super::{Executor, Passes};
use crate::backend::gpu::final_states::{FinalStates, Kept};
use crate::backend::gpu::launches::{Pass, Phase};

/// Final hidden states on their way to the host.
#[derive(Debug)]
pub(in crate::backend::gpu) struct HiddenReading {
    reading: Reading,
    /// Rows of the readback, and of these the ones asked for.
    size: usize,
    rows: Range<usize>,
}

impl Passes {
    /// Memory of the final hidden states of a pass of `rows` rows, `last` of which have logits.
    pub(super) fn hidden(
        &mut self,
        executor: &Executor,
        phase: Phase,
        (rows, last): (u32, u32),
    ) -> Result<Option<Buffer>> {
        let n = match executor.kept {
            Kept::None => return Ok(None),
            Kept::All if phase == Phase::Prefill => rows,
            Kept::Scored | Kept::All => last,
        };
        if let Some(buffer) = self.hidden.get(&n) {
            return Ok(Some(buffer.clone()));
        }
        let buffer = executor.gpu.zeroed(u64::from(n) * executor.config.model_dim as u64 * 4)?;
        self.hidden.insert(n, buffer.clone());
        Ok(Some(buffer))
    }

    /// Starts the final hidden states of some rows of a pass that was started, and their readback,
    /// before another pass changes its activations; returns before they are there. `None` for a
    /// model without a head, and for no rows.
    pub(in crate::backend::gpu) fn start_hidden(
        &mut self,
        executor: &Executor,
        pass: &Pass,
        rows: Range<usize>,
    ) -> Result<Option<HiddenReading>> {
        let Some(FinalStates { launches, out }) = &pass.hidden else { return Ok(None) };
        if rows.is_empty() {
            return Ok(None);
        }
        let (gpu, width) = (&executor.gpu, executor.config.model_dim as u64 * 4);
        // Few sizes of readbacks.
        let size = rows.len().next_power_of_two().min((out.len() / width) as usize);
        let first = rows.end.saturating_sub(size);
        let readback = match self.hidden_readbacks.get_mut(&size).and_then(Vec::pop) {
            Some(readback) => readback,
            None => self.with_room(executor, |_| gpu.readback(size as u64 * width))?,
        };
        let launches: Vec<_> = launches.iter().collect();
        let reading = gpu.run_reading_at(&launches, (out, first as u64 * width), readback)?;
        Ok(Some(HiddenReading { reading, size, rows: rows.start - first..rows.end - first }))
    }

    /// Waits for final hidden states; appends those that were asked for to `states`, `[rows,
    /// model_dim]`.
    pub(in crate::backend::gpu) fn finish_hidden(
        &mut self,
        executor: &Executor,
        hidden: HiddenReading,
        states: &mut Vec<f32>,
    ) -> Result<()> {
        let HiddenReading { reading, size, rows } = hidden;
        let width = executor.config.model_dim;
        let copy = |values: &[f32]| states.extend_from_slice(&values[rows.start * width..rows.end * width]);
        let ((), readback) = executor.gpu.finish_with(reading, copy)?;
        self.hidden_readbacks.entry(size).or_default().push(readback);
        Ok(())
    }
}
