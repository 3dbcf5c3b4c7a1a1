//! Attention of several sequences in one dispatch, and a second one that merges splits.

use super::kv::Line;
use super::scratch::Worker;
use super::state::State;
use super::task::Task;
use super::work::Work;
use super::{AttentionCall, AttentionScratch};
use crate::pool::DisjointMut;
use crate::{Kernels, ThreadPool};

/// Data shared by the tasks of a batch.
pub(super) struct Batch<'a> {
    kernels: Kernels,
    calls: &'a [AttentionCall<'a>],
    q: &'a [f32],
    out: &'a DisjointMut<'a, f32>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(
        kernels: Kernels,
        calls: &'a [AttentionCall<'a>],
        q: &'a [f32],
        out: &'a DisjointMut<'a, f32>,
    ) -> Self {
        Self { kernels, calls, q, out }
    }

    /// One dispatch of all tasks, and a second one for the tiles whose splits are separate tasks.
    pub(super) fn run(&self, pool: &ThreadPool, scratch: &mut AttentionScratch) {
        let (work, workers, partials) = scratch.parts();
        let partials = &DisjointMut::new(partials);
        pool.for_each_in_order(work.tasks.len(), &|index, item| {
            let work = &work.tasks[item];
            let mut worker = workers.get(index);
            let task = self.task(work);
            // SAFETY: `self.kernels` exists only where the slot's instruction set is present.
            unsafe { (self.kernels.slots.attend)(&task, &mut worker) }
            let Some(first) = work.partial else { return self.finish(work, &task, &mut worker) };
            let lines = worker.total.lines();
            // SAFETY: `for_each_in_order` gives each task to one call, and tasks do not share
            // partial results.
            unsafe { partials.part(first..first + lines.len()) }.copy_from_slice(lines);
        });
        pool.for_each_in_order(work.merges.len(), &|index, item| {
            let work = &work.merges[item];
            let mut worker = workers.get(index);
            self.merge(work, partials, &mut worker);
        });
    }

    fn task(&self, work: &Work) -> Task<'a> {
        let AttentionCall { shape, kv, .. } = &self.calls[work.call];
        let (queries, splits) = (work.queries.clone(), work.splits.clone());
        let n_values = shape.n_queries * shape.n_heads * shape.head_dim;
        let q = &self.q[work.start..work.start + n_values];
        Task { shape, q, kv, kv_head: work.kv_head, queries, splits }
    }

    /// Merges the splits of a tile in ascending order and writes its rows.
    fn merge(&self, work: &Work, partials: &DisjointMut<'_, Line>, worker: &mut Worker) {
        let task = self.task(work);
        let (rows, dim) = (task.rows(), task.shape.padded_dim());
        let Worker { total, split: partial, .. } = worker;
        total.reset(rows, dim);
        partial.reset(rows, dim);
        let len = State::len(rows, dim);
        let first = work.partial.unwrap_or(0);
        for place in (0..work.splits.len()).map(|i| first + i * len..first + (i + 1) * len) {
            // SAFETY: the dispatch that wrote the partial results is over, and each belongs to one
            // tile, each tile to one call.
            partial.lines_mut().copy_from_slice(unsafe { partials.part(place) });
            // SAFETY: `self.kernels` exists only where the slot's instruction set is present.
            unsafe { (self.kernels.slots.attend_merge)(total, partial) }
        }
        self.finish(work, &task, worker);
    }

    /// Merges the sinks into the task's rows, if there are any, and writes the rows: accumulator
    /// divided by the sum; zeros for rows without weight.
    fn finish(&self, work: &Work, task: &Task<'_>, worker: &mut Worker) {
        let (group, dim) = (task.shape.group(), task.shape.head_dim);
        let Worker { total: state, split, .. } = worker;
        if let Some(sinks) = self.calls[work.call].sinks {
            let of_group = &sinks[task.kv_head * group..(task.kv_head + 1) * group];
            split.reset_to_sinks(task.rows(), task.shape.padded_dim(), of_group);
            // SAFETY: `self.kernels` exists only where the slot's instruction set is present.
            unsafe { (self.kernels.slots.attend_merge)(state, split) }
        }
        for (i, query) in task.queries.clone().enumerate() {
            let start = work.start + (query * task.shape.n_heads + task.kv_head * group) * dim;
            // SAFETY: a query's heads of one key/value head belong to exactly one query tile, and a
            // tile is finished by one call of the closure that got it.
            let out = unsafe { self.out.part(start..start + group * dim) };
            for (g, out) in out.chunks_exact_mut(dim).enumerate() {
                let (_, sum) = state.row_sums(i * group + g);
                let divisor = if sum == 0.0 { 1.0 } else { sum };
                for (out, acc) in out.iter_mut().zip(state.row(i * group + g)) {
                    *out = acc / divisor;
                }
            }
        }
    }
}
