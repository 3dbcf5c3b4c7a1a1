//! Sampling of a step: each request on its own, on all threads.

use std::ops::Range;

use parking_lot::Mutex;
use ruvllm_kernels::ThreadPool;
use ruvllm_scheduler::RequestId;

use crate::error::Result;
use crate::step::executor::Step;
use crate::step::request::{Request, Sampled};

/// Sampling of one request in a step. Each task is locked by one thread, once.
pub(super) struct Task<'c> {
    pub(super) id: RequestId,
    pub(super) request: Box<Request<'c>>,
    /// Index of its part in the step, and the number of its tokens before the draft.
    pub(super) part: usize,
    pub(super) tokens: usize,
    /// Its values in the logits of the step.
    pub(super) rows: Range<usize>,
    pub(super) outcome: Option<Result<Sampled>>,
}

/// Samples in every task, on all threads of the pool. A task reads nothing of another one.
pub(super) fn sample_all(pool: Option<&ThreadPool>, tasks: &[Mutex<Task<'_>>], step: &Step, logits: &[f32]) {
    let sample = |range: Range<usize>| {
        for task in &tasks[range] {
            let Task { request, part, tokens, rows, outcome, .. } = &mut *task.lock();
            let draft = &step.tokens(&step.parts()[*part])[*tokens..];
            let sampled = request.sample(&logits[rows.clone()], draft);
            request.computed += *tokens + sampled.as_ref().map_or(0, |sampled| sampled.kept);
            *outcome = Some(sampled);
        }
    };
    match pool {
        Some(pool) if tasks.len() > 1 => pool.for_each_chunk(tasks.len(), 1, &sample),
        _ => sample(0..tasks.len()),
    }
}
