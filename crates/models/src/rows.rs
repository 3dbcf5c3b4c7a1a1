//! Row-wise operations on a thread pool. Rows are independent, so the distribution over threads
//! changes no bit.

use std::sync::{Mutex, PoisonError};

use ruvllm_kernels::ThreadPool;

/// Below this many rows waking threads costs more than they save: a row takes about a microsecond.
const MIN_ROWS: usize = 16;

/// Rows that a thread takes at a time: one by one, it would wait for the lock more than it
/// computes.
const TAKEN_ROWS: usize = 4;

/// Calls `body` with each of `rows`, on all threads of the pool if there are many.
pub(crate) fn for_each<R: Send>(
    pool: &ThreadPool,
    rows: impl Iterator<Item = R> + Send,
    body: impl Fn(R) + Sync,
) {
    if pool.threads() == 1 || rows.size_hint().1.is_some_and(|rows| rows < MIN_ROWS) {
        return rows.for_each(body);
    }
    let rows = Mutex::new(rows.fuse());
    pool.run(&|_| {
        loop {
            // The lock is held for some steps of an iterator only, which cannot panic.
            let taken: [Option<R>; TAKEN_ROWS] = {
                let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
                std::array::from_fn(|_| rows.next())
            };
            let is_last = taken[TAKEN_ROWS - 1].is_none();
            taken.into_iter().flatten().for_each(&body);
            if is_last {
                return;
            }
        }
    });
}
