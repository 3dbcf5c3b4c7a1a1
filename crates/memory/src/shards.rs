//! Sharded state: one value per thread, reachable by all threads.

use crate::sync::{Mutex, MutexGuard, lock, thread_number};

/// Aligned to two cache lines against false sharing: the hardware prefetches pairs.
#[repr(align(128))]
struct Shard<T>(Mutex<T>);

/// One value per thread behind a mostly uncontended lock; more threads than shards share them.
pub(crate) struct Shards<T> {
    shards: Box<[Shard<T>]>,
}

impl<T> Shards<T> {
    /// Fills each of [`shard_count`] shards.
    pub(crate) fn new(fill: impl Fn() -> T) -> Self {
        Self { shards: (0..shard_count()).map(|_| Shard(Mutex::new(fill()))).collect() }
    }

    /// Locks the calling thread's shard.
    #[inline]
    pub(crate) fn own(&self) -> MutexGuard<'_, T> {
        lock(&self.shards[thread_number() % self.shards.len()].0)
    }

    /// Locks the shards one at a time.
    pub(crate) fn each(&self) -> impl Iterator<Item = MutexGuard<'_, T>> {
        self.shards.iter().map(|shard| lock(&shard.0))
    }

    /// Locks all shards at once. The caller must hold none.
    pub(crate) fn all(&self) -> Vec<MutexGuard<'_, T>> {
        self.each().collect()
    }
}

/// Twice the available parallelism, from 8 to 64.
pub(crate) fn shard_count() -> usize {
    if cfg!(loom) {
        return 2;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (2 * cores).clamp(8, 64)
}
