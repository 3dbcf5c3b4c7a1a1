//! An arena for each thread.

use crate::scratch::{Arena, Frame};
use crate::shards::Shards;
use crate::{PagePool, Request, Result};

/// Scratch that each thread has to itself, made when a thread first asks for it and kept.
///
/// ```
/// use ruvllm_memory::{Content, PagePool, PoolConfig, Request, ThreadScratch};
///
/// let pool = PagePool::new(PoolConfig::new(64 << 20))?;
/// let scratch = ThreadScratch::new(&pool, 1 << 20, Request::new(Content::Temporary));
/// let sum = scratch.with(|mut frame| {
///     let row: &mut [f32] = frame.zeroed(128)?;
///     row.fill(0.5);
///     Ok::<_, ruvllm_memory::Error>(row.iter().sum::<f32>())
/// })??;
/// assert_eq!(sum, 64.0);
/// # Ok::<(), ruvllm_memory::Error>(())
/// ```
pub struct ThreadScratch {
    pool: PagePool,
    arena_bytes: usize,
    request: Request,
    /// Arenas that no call uses. Several where a call is inside another, or threads share a shard.
    idle: Shards<Vec<Arena>>,
}

impl ThreadScratch {
    /// Arenas of at least `arena_bytes` each. None is made yet.
    pub fn new(pool: &PagePool, arena_bytes: usize, request: Request) -> Self {
        Self { pool: pool.clone(), arena_bytes, request, idle: Shards::new(Vec::new) }
    }

    /// Calls `work` with the thread's arena. A call inside of another gets an arena of its own.
    ///
    /// # Errors
    /// Those of [`PagePool::allocate`], when the thread has no arena yet.
    pub fn with<R>(&self, work: impl FnOnce(Frame<'_>) -> R) -> Result<R> {
        let idle = self.idle.own().pop();
        let mut arena = match idle {
            Some(arena) => arena,
            None => Arena::new(&self.pool, self.arena_bytes, &self.request)?,
        };
        let result = work(arena.frame());
        self.idle.own().push(arena);
        Ok(result)
    }
}

impl std::fmt::Debug for ThreadScratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadScratch").field("arena_bytes", &self.arena_bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PoolConfig;

    #[test]
    fn a_thread_keeps_its_arena_and_a_call_inside_another_gets_a_second() {
        let pool = PagePool::new(PoolConfig::new(32 << 20)).unwrap();
        let scratch = ThreadScratch::new(&pool, 1, Request::default());
        for _ in 0..10 {
            scratch
                .with(|mut outer| {
                    let outer = outer.zeroed::<u8>(100).unwrap();
                    scratch.with(|mut inner| inner.slice::<u8>(1000).unwrap().fill(1)).unwrap();
                    assert!(outer.iter().all(|&byte| byte == 0));
                })
                .unwrap();
        }
        assert_eq!(pool.stats().used_pages, 2);
        drop(scratch);
        assert_eq!(pool.stats().used_pages, 0);
    }
}
