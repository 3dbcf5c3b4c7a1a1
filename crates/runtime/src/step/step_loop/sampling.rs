//! Sampling of a step: each request on its own, on all threads.

use std::ops::Range;

use parking_lot::Mutex;
use ruvllm_kernels::ThreadPool;
use ruvllm_scheduler::RequestId;

use crate::backend::batch::Decoded;
use crate::error::Result;
use crate::step::executor::{PartLogits, Step};
use crate::step::request::{Request, Sampled};

/// Results of one request in a step, and its sampling. Each task is locked by one thread, once.
pub(super) struct Task<'c> {
    pub(super) id: RequestId,
    pub(super) request: Box<Request<'c>>,
    /// Index of its part in the step.
    pub(super) part: usize,
    /// Number of its tokens before the draft, if their logits are sampled from.
    samples: Option<usize>,
    /// Its rows of the results.
    pub(super) rows: Range<usize>,
    /// Number of rows for positions of the prompt, which come first, and prompt token of the first.
    pub(super) prompt_rows: usize,
    pub(super) first_row: usize,
    pub(super) outcome: Option<Result<Sampled>>,
}

impl<'c> Task<'c> {
    /// The task of a part whose results begin at row `start`.
    pub(super) fn new(
        id: RequestId,
        request: Box<Request<'c>>,
        logits: PartLogits,
        start: usize,
        samples: Option<usize>,
    ) -> Self {
        let PartLogits { part, tokens, rows, .. } = logits;
        let (before, prompt_rows) = request.prompt_rows(tokens);
        let first_row = request.computed + before;
        let rows = start..start + rows;
        Self { id, request, part, samples, rows, prompt_rows, first_row, outcome: None }
    }
}

/// Samples in every task that does, on all threads of the pool. A task reads nothing of another
/// one.
pub(super) fn sample_all(
    pool: Option<&ThreadPool>,
    tasks: &[Mutex<Task<'_>>],
    step: &Step,
    decoded: Decoded<'_>,
    vocab_size: usize,
) {
    let sample = |range: Range<usize>| {
        for task in &tasks[range] {
            let Task { request, part, samples, rows, prompt_rows, outcome, .. } = &mut *task.lock();
            let Some(tokens) = samples.filter(|_| outcome.is_none()) else { continue };
            let (draft, first) = (&step.tokens(&step.parts()[*part])[tokens..], rows.start + *prompt_rows);
            let sampled = request.sample(|row| decoded.row(first + row, vocab_size), draft);
            request.computed += tokens + sampled.as_ref().map_or(0, |sampled| sampled.kept);
            *outcome = Some(sampled);
        }
    };
    match pool {
        Some(pool) if tasks.len() > 1 => pool.for_each_chunk(tasks.len(), 1, &sample),
        _ => sample(0..tasks.len()),
    }
}
