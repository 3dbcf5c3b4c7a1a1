//! State of one thread mostly, within reach of all.

use crate::sync::{Mutex, MutexGuard, lock, thread_number};

/// Keeps what different threads write on different cache lines (two lines: the hardware fetches
/// pairs).
#[repr(align(128))]
struct Shard<T>(Mutex<T>);

/// A value per thread behind a lock that is nearly always free; threads beyond the number of shards
/// share.
pub(crate) struct Shards<T> {
    shards: Box<[Shard<T>]>,
}

impl<T> Shards<T> {
    /// Fills each of [`shard_count`] shards.
    pub(crate) fn new(fill: impl Fn() -> T) -> Self {
        Self { shards: (0..shard_count()).map(|_| Shard(Mutex::new(fill()))).collect() }
    }

    /// The calling thread's.
    #[inline]
    pub(crate) fn own(&self) -> MutexGuard<'_, T> {
        lock(&self.shards[thread_number() % self.shards.len()].0)
    }

    /// All of them, locked one at a time.
    pub(crate) fn each(&self) -> impl Iterator<Item = MutexGuard<'_, T>> {
        self.shards.iter().map(|shard| lock(&shard.0))
    }

    /// All of them at once. Whoever calls this holds none.
    pub(crate) fn all(&self) -> Vec<MutexGuard<'_, T>> {
        self.each().collect()
    }
}

/// Twice the threads that this machine runs at a time, from 8 to 64.
pub(crate) fn shard_count() -> usize {
    if cfg!(loom) {
        return 2;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (2 * cores).clamp(8, 64)
}
