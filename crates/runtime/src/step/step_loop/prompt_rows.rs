//! Logits of prompt positions: bounded in each step, reduced to log-probabilities on all threads.

use std::ops::Range;

use parking_lot::Mutex;
use ruvllm_kernels::{Kernels, ThreadPool};
use ruvllm_scheduler::Work;
use ruvllm_text::TokenId;

use super::StepLoop;
use super::sampling::Task;
use crate::codec::TextCodec;
use crate::error::Result;
use crate::sampler::{Logprobs, compute_logprobs};
use crate::step::executor::Executor;

/// Maximum bytes of a step's logits for prompt positions: 64 rows of 128 k ids. Rows for sampling,
/// one per request and draft token, come on top.
const LOGITS_BYTES: usize = 32 << 20;

/// Rows per task of a thread; a row of 32 k values takes about 0.25 ms.
const ROWS_PER_TASK: usize = 2;

/// A row of logits of a step and the position that it predicts.
struct Row {
    values: Range<usize>,
    target: TokenId,
    top_n: usize,
}

/// Largest number of rows within the bound; at least one.
pub(super) fn most_prompt_rows(vocab_size: usize) -> usize {
    (LOGITS_BYTES / (size_of::<f32>() * vocab_size.max(1))).max(1)
}

impl<X: Executor> StepLoop<'_, X> {
    /// Shortens prompt chunks so that the rows for prompt positions keep to the bound; a request
    /// without room for a row waits for a later step.
    pub(super) fn bound_prompt_rows(&self, work: &mut Vec<Work>) {
        let mut left = self.most_prompt_rows;
        work.retain_mut(|work| {
            let (before, rows) = self.requests[&work.id].prompt_rows(work.tokens);
            if rows > left {
                (work.tokens, work.samples) = (before + left, false);
            }
            left -= rows.min(left);
            work.tokens > 0
        });
    }
}

/// Adds the log-probabilities of prompt positions to the requests of the tasks. An error becomes
/// the outcome of its task.
pub(super) fn score_prompts(
    pool: Option<&ThreadPool>,
    tasks: &[Mutex<Task<'_>>],
    codec: &TextCodec,
    logits: &[f32],
) {
    let (vocab_size, sampled_ids) = (codec.vocab_size(), codec.sampled_ids());
    let (mut rows, mut kernels) = (Vec::new(), None);
    for task in tasks {
        let task = task.lock();
        kernels = kernels.or((task.prompt_rows > 0).then(|| task.request.kernels()));
        rows.extend((0..task.prompt_rows).map(|row| {
            let (target, top_n) = task.request.prompt_target(task.first_row + row);
            let start = (task.rows.start + row) * vocab_size;
            Row { values: start..start + sampled_ids, target, top_n }
        }));
    }
    let Some(kernels) = kernels else { return };
    let mut entries = score(pool, &kernels, &rows, logits).into_iter();
    for task in tasks {
        let task = &mut *task.lock();
        for entry in entries.by_ref().take(task.prompt_rows) {
            match entry {
                Ok(entry) => task.request.push_prompt_logprobs(entry),
                Err(error) => task.outcome = Some(Err(error)),
            }
        }
    }
}

/// Log-probabilities of each row, in order.
fn score(
    pool: Option<&ThreadPool>,
    kernels: &Kernels,
    rows: &[Row],
    logits: &[f32],
) -> Vec<Result<Logprobs>> {
    let entries: Vec<_> = rows.iter().map(|_| Mutex::new(Ok(Logprobs::default()))).collect();
    let score = |range: Range<usize>| {
        let mut best = Vec::new();
        for (row, entry) in rows[range.clone()].iter().zip(&entries[range]) {
            let mut found = Logprobs::default();
            let values = &logits[row.values.clone()];
            let computed = compute_logprobs(kernels, values, row.target, row.top_n, &mut best, &mut found);
            *entry.lock() = computed.map(|()| found);
        }
    };
    match pool {
        Some(pool) => pool.for_each_chunk(rows.len(), ROWS_PER_TASK, &score),
        None => score(0..rows.len()),
    }
    entries.into_iter().map(Mutex::into_inner).collect()
}
