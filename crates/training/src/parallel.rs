//! Independent pieces of work on a thread pool. Pieces never share a sum, so their distribution
//! over threads changes no bit.

use std::sync::{Mutex, PoisonError};

use ruvllm_kernels::ThreadPool;

/// Calls `body` with each of `pieces`, which threads take one by one.
pub(crate) fn for_each<P: Send>(
    pool: &ThreadPool,
    pieces: impl Iterator<Item = P> + Send,
    body: impl Fn(P) + Sync,
) {
    if pool.threads() == 1 {
        return pieces.for_each(body);
    }
    let pieces = Mutex::new(pieces.fuse());
    pool.run(&|_| {
        loop {
            // Held for a step of an iterator over slices, which cannot panic.
            let piece = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(piece) = piece else { return };
            body(piece);
        }
    });
}

/// Values of a piece of elementwise work: some microseconds.
pub(crate) const PIECE: usize = 1 << 14;

/// Rows of `width` values in a piece.
pub(crate) fn rows_per_piece(width: usize) -> usize {
    (PIECE / width.max(1)).max(1)
}
