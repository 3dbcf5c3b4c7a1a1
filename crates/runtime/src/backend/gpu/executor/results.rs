//! Results of passes: greedy tokens, largest logits or all of them.

use std::ops::Range;
use std::sync::Arc;

use ruvllm_gpu::{Buffer, Dispatch, Readback, Reading, Recording, Result};
use ruvllm_text::TokenId;

use super::{Executor, Passes, batch_rows};
use crate::backend::batch::TokenLogit;
use crate::backend::gpu::largest::{self, Lists};
use crate::backend::gpu::launches::Pass;

/// Greedy tokens of a pass on their way to the host.
#[derive(Debug)]
pub(in crate::backend::gpu) struct Argmax {
    reading: Reading,
    rows: u32,
    /// Number of the write to the tokens of these rows.
    write: u64,
}

/// Ids among which a greedy token is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend::gpu) enum Ids {
    /// All of the vocabulary.
    All,
    /// Ids of the tokenizer.
    Tokenizer,
}

/// A decode pass that was recorded before its inputs are known.
#[derive(Debug)]
pub(super) struct Recorded {
    pass: Arc<Pass>,
    recording: Recording,
}

impl Passes {
    /// Runs launches of a pass, then lends the logits of its first `rows` rows, `[rows,
    /// vocab_size]`, and the final hidden states of the rows of `hidden` to `read`.
    pub(in crate::backend::gpu) fn logits<R>(
        &mut self,
        executor: &Executor,
        pass: &Arc<Pass>,
        launches: &[&Dispatch],
        (rows, hidden): (usize, Range<usize>),
        read: impl FnOnce(&[f32], &[f32]) -> R,
    ) -> Result<R> {
        let (gpu, row) = (&executor.gpu, executor.config.vocab_size);
        // Few sizes of readbacks.
        let size = batch_rows(rows);
        let readback = match self.logits_readbacks.remove(&size) {
            Some(readback) => readback,
            None => self.with_room(executor, |_| gpu.readback(u64::from(size) * row as u64 * 4))?,
        };
        let from = (&pass.values, readback);
        let (reading, states) = self.run_reading(executor, pass, launches, from, hidden)?;
        let (result, readback) = gpu.finish_with(reading, |values| read(&values[..rows * row], &states))?;
        self.logits_readbacks.insert(size, readback);
        Ok(result)
    }

    /// Runs a pass; returns the largest logits of its first `rows` rows, `[rows, MOST_LARGEST]`,
    /// and the final hidden states of the rows of `hidden`.
    pub(in crate::backend::gpu) fn largest(
        &mut self,
        executor: &Executor,
        pass: &Arc<Pass>,
        rows: usize,
        hidden: Range<usize>,
    ) -> Result<(Vec<TokenLogit>, Vec<f32>)> {
        let (gpu, ids) = (&executor.gpu, executor.ids as u32);
        let lists = self.with_room(executor, |passes| passes.largest.take(gpu, pass, ids))?;
        let Lists { values, launches, out, readback } = lists;
        let list: Vec<&Dispatch> = pass.launches().chain(&launches).collect();
        let (reading, states) = self.run_reading(executor, pass, &list, (&out, readback), hidden)?;
        let (found, readback) = gpu.finish_with(reading, |pairs| largest::entries(pairs, rows))?;
        self.largest.keep(pass, Lists { values, launches, out, readback });
        Ok((found, states))
    }

    /// Runs launches of a pass and starts to read a result; returns that, and the final hidden
    /// states of the rows of `hidden`. While the device computes a decode pass, records it for the
    /// next step.
    fn run_reading(
        &mut self,
        executor: &Executor,
        pass: &Arc<Pass>,
        launches: &[&Dispatch],
        (from, readback): (&Buffer, Readback),
        hidden: Range<usize>,
    ) -> Result<(Reading, Vec<f32>)> {
        let (gpu, mut states) = (&executor.gpu, Vec::new());
        let is_recorded =
            |recorded: &Recorded| Arc::ptr_eq(&recorded.pass, pass) && recorded.recording.is_for(&readback);
        let is_whole = Arc::ptr_eq(&pass.rows, &pass.last) && !launches.is_empty();
        let reading = match self.recorded.take().filter(|recorded| is_whole && is_recorded(recorded)) {
            Some(recorded) => gpu.run_recorded(recorded.recording, readback)?,
            None => gpu.run_reading(launches, from, readback)?,
        };
        let hidden = self.start_hidden(executor, pass, hidden)?;
        if is_whole {
            let recording = gpu.record_reading(launches, from, &reading)?;
            self.recorded = Some(Recorded { pass: Arc::clone(pass), recording });
        }
        if let Some(hidden) = hidden {
            self.finish_hidden(executor, hidden, &mut states)?;
        }
        Ok((reading, states))
    }

    /// Starts a pass and the readback of each row's greedy token (4 bytes); returns before it ends.
    pub(in crate::backend::gpu) fn start_argmax(
        &mut self,
        executor: &Executor,
        pass: &Pass,
        ids: Ids,
    ) -> Result<Argmax> {
        let gpu = &executor.gpu;
        let readback = match self.token_readbacks.get_mut(&pass.last.n).and_then(Vec::pop) {
            Some(readback) => readback,
            None => gpu.readback(pass.last.tokens.len())?,
        };
        let argmax = match ids {
            Ids::All => &pass.argmax,
            Ids::Tokenizer => &pass.tokenizer_argmax,
        };
        let list: Vec<&Dispatch> = pass.launches().chain(argmax).collect();
        let reading = gpu.run_reading(&list, &pass.last.tokens, readback)?;
        let rows = pass.last.n;
        Ok(Argmax { reading, rows, write: self.note_write(rows) })
    }

    /// Counts a write to the tokens of these rows; returns its number.
    pub(super) fn note_write(&mut self, rows: u32) -> u64 {
        self.writes += 1;
        self.token_writes.insert(rows, self.writes);
        self.writes
    }

    /// True while the tokens of a pass are on the device, for a pass of as many rows.
    pub(in crate::backend::gpu) fn holds(&self, argmax: &Argmax) -> bool {
        self.token_writes.get(&argmax.rows) == Some(&argmax.write)
    }

    /// Waits for the tokens of a pass. `None`: no logit of the row is above `-inf`.
    pub(in crate::backend::gpu) fn finish_argmax(
        &mut self,
        executor: &Executor,
        argmax: Argmax,
    ) -> Result<Vec<Option<TokenId>>> {
        let (tokens, readback) = executor.gpu.finish::<u32>(argmax.reading)?;
        self.token_readbacks.entry(tokens.len() as u32).or_default().push(readback);
        Ok(tokens.into_iter().map(|token| Some(token).filter(|&token| token != TokenId::MAX)).collect())
    }
}
