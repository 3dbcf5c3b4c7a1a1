//! Row-wise operations spread over a pool. The rows are independent, so who computes them changes no bit.

use std::sync::{Mutex, PoisonError};

use ruvllm_kernels::ThreadPool;

/// Below this many rows waking threads costs more than they save: a row takes about a microsecond.
const MIN_ROWS: usize = 16;

/// Calls `body` with each of `rows`, on all threads of the pool if there are many.
pub(crate) fn for_each<R: Send>(
    pool: &ThreadPool,
    rows: impl ExactSizeIterator<Item = R> + Send,
    body: impl Fn(R) + Sync,
) {
    if pool.threads() == 1 || rows.len() < MIN_ROWS {
        return rows.for_each(body);
    }
    let rows = Mutex::new(rows);
    pool.run(&|_| {
        // The lock is held for the step of an iterator only, which cannot panic.
        let next = || rows.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some(row) = next() {
            body(row);
        }
    });
}
