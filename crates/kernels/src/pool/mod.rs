//! Fixed set of worker threads that run one job at a time.
//!
//! Optimized for many short jobs (decode of one token takes about a hundred).
//!
//! # Job protocol
//! A job of a pool with `n` threads consists of `n` *tickets*. The caller publishes the job and
//! takes ticket 0; workers claim the others. A caller that has finished its ticket claims the
//! unclaimed ones, so it never waits for a worker that sleeps or was not scheduled. It returns when
//! all tickets are finished.
//!
//! On a loaded machine a worker can also be preempted *inside* a ticket. Three mechanisms keep a
//! job from becoming slower than on one thread: waiting threads soon sleep, which frees the core;
//! workers avoid the caller's core; and a pool that loses more time in waits than its workers save
//! stops sharing for a while.
//!
//! | file | contents |
//! |---|---|
//! | `crew.rs` | ticket protocol |
//! | `bell.rs` | waiting: spin, then sleep |
//! | `chunks.rs` | division of a range |
//! | `disjoint.rs` | one slice written by several threads |
//! | `panics.rs` | panics of tickets: kept, discarded, aborted |
//! | `turn.rs` | mutual exclusion of callers |
//! | `ledger.rs` | decision whether to share jobs |
//! | `placement.rs` | core affinity |
//! | `sync.rs`, `model.rs` | the protocol under the loom model checker |

mod bell;
mod chunks;
mod crew;
mod disjoint;
mod ledger;
mod panics;
mod placement;
mod sync;
mod turn;

use std::cell::Cell;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::{Error, Result};
use chunks::Chunks;
use crew::{Crew, Spins};
pub(crate) use disjoint::DisjointMut;
pub use placement::Placement;
use placement::Places;
use turn::Turn;

/// Largest pool size.
const MAX_THREADS: usize = 1024;

/// Spin times before sleeping.
///
/// Waking a worker costs 5 to 50 us, and the gap between two jobs of a forward pass is below 20 us.
/// The caller's wait at the end of a job is the length of a chunk, a few microseconds; a longer
/// wait most likely means that the worker was preempted, and the caller's core may be the next to
/// become free.
const SPINS: Spins = Spins { work: Duration::from_micros(40), done: Duration::from_micros(15) };

/// Spin times with more threads than cores: a spinning thread then keeps a working one from
/// running.
const SPINS_CROWDED: Spins = Spins { work: Duration::from_micros(2), done: Duration::from_micros(2) };

/// Fixed set of threads for [`Kernels`](crate::Kernels) methods, including the calling thread.
///
/// There is no global pool: callers pass one. Idle workers sleep. Jobs of several calling threads
/// run one after another. A job started inside a job runs on the calling thread alone. A job must
/// not wait for another thread that uses the same pool: see [`run`](Self::run). Dropping the pool
/// joins its threads.
///
/// # Examples
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use ruvllm_kernels::ThreadPool;
///
/// let pool = ThreadPool::new(2)?;
/// let sum = AtomicUsize::new(0);
/// pool.for_each_chunk(1000, 10, &|range| {
///     sum.fetch_add(range.sum::<usize>(), Ordering::Relaxed);
/// });
/// assert_eq!(sum.into_inner(), 499_500);
/// # Ok::<(), ruvllm_kernels::Error>(())
/// ```
pub struct ThreadPool {
    crew: Arc<Crew>,
    places: Arc<Places>,
    /// Held by the thread whose job is running.
    turn: Turn,
    workers: Vec<JoinHandle<()>>,
}

thread_local! {
    /// True while this thread is inside a job: always in a worker, in a caller while its own job
    /// runs.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl ThreadPool {
    /// Creates a pool of `threads` threads: the calling thread and `threads - 1` workers.
    ///
    /// # Errors
    /// [`Error::ThreadCount`] for 0 or more than 1024; [`Error::ThreadSpawn`] if the operating
    /// system refuses a thread.
    pub fn new(threads: usize) -> Result<Self> {
        Self::placed(threads, Placement::default())
    }

    /// Creates a pool with an explicit placement of the workers.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn placed(threads: usize, placement: Placement) -> Result<Self> {
        if threads == 0 || threads > MAX_THREADS {
            return Err(Error::ThreadCount { threads, max: MAX_THREADS });
        }
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let mut pool = Self::idle(threads, if threads > cores { SPINS_CROWDED } else { SPINS }, placement);
        for worker in 1..threads {
            let (crew, places) = (Arc::clone(&pool.crew), Arc::clone(&pool.places));
            let handle = std::thread::Builder::new()
                .name(format!("kernels-{worker}"))
                .spawn(move || {
                    INSIDE.set(true);
                    places.settle(worker);
                    crew.work(|| places.keep_apart());
                })
                .map_err(|source| Error::ThreadSpawn { worker, source })?;
            pool.workers.push(handle);
        }
        // A thread allocates while it starts: from here on, the pool allocates nothing.
        pool.crew.wait_for_workers();
        Ok(pool)
    }

    /// Creates a pool without workers: jobs run on the calling thread.
    pub fn single() -> Self {
        Self::idle(1, SPINS, Placement::System)
    }

    fn idle(threads: usize, spins: Spins, placement: Placement) -> Self {
        let places = Arc::new(Places::new(placement, threads));
        Self { crew: Arc::new(Crew::new(threads, spins)), places, turn: Turn::new(), workers: Vec::new() }
    }

    /// Number of threads, including the calling thread.
    pub fn threads(&self) -> usize {
        self.crew.threads()
    }

    /// Calls `task` once with every worker index in `0..threads()`; returns when all calls have
    /// returned.
    ///
    /// No two calls get the same index, so the index may select scratch memory. Index 0 runs on the
    /// calling thread. The others may run on any thread, also several on the same one.
    ///
    /// # Deadlocks
    /// A job must not wait for another thread that uses the same pool: that thread waits until the
    /// job has ended. With debug assertions, that thread panics after 20 s or more of the same job.
    ///
    /// # Panics
    /// Resumes the first panic of a call, after all calls have ended; a job inside a job ends with
    /// its first panic. Payloads of later panics are dropped; panics of these drops are ignored.
    /// The pool stays usable.
    pub fn run(&self, task: &(dyn Fn(usize) + Sync)) {
        if self.threads() == 1 || INSIDE.get() {
            (0..self.threads()).for_each(task);
            return;
        }
        let mut ledger = self.turn.take();
        let _inside = Inside::enter();
        let panic = if ledger.shares() {
            self.places.note_caller();
            let outcome = self.crew.share(task);
            ledger.record(&outcome);
            outcome.panic
        } else {
            self.crew.alone(task)
        };
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Calls `body` with ranges that cover `0..items` without overlap, on all threads.
    ///
    /// Ranges start at multiples of `grain` and, except for the last, have a multiple of it as
    /// length; their number and threads depend on timing, so `body` must give the same result for
    /// any split. Large ranges come first, which limits the effect of late or slow threads.
    ///
    /// # Panics
    /// See [`run`](Self::run); also if `grain` is 0.
    pub fn for_each_chunk(&self, items: usize, grain: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
        self.for_each_chunk_on(items, grain, &|_, range| body(range));
    }

    /// [`for_each_chunk`](Self::for_each_chunk) with the worker index of [`run`](Self::run).
    pub(crate) fn for_each_chunk_on(
        &self,
        items: usize,
        grain: usize,
        body: &(dyn Fn(usize, Range<usize>) + Sync),
    ) {
        assert!(grain > 0, "for_each_chunk: the grain must be positive");
        if items == 0 {
            return;
        }
        if self.threads() == 1 || items <= grain {
            body(0, 0..items);
            return;
        }
        let chunks = Chunks::new(items.div_ceil(grain), self.threads());
        self.run(&|worker| {
            while let Some(grains) = chunks.take() {
                body(worker, grains.start * grain..grains.end.saturating_mul(grain).min(items));
            }
        });
    }

    /// Calls `body` with a worker index of [`run`](Self::run) and each item of `0..items`, which
    /// threads take one by one in ascending order.
    ///
    /// For items of unequal, known lengths, the longest first; taking one costs about 50 ns.
    pub(crate) fn for_each_in_order(&self, items: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        if self.threads() == 1 || items <= 1 {
            (0..items).for_each(|item| body(0, item));
            return;
        }
        let next = AtomicUsize::new(0);
        self.run(&|worker| {
            loop {
                let item = next.fetch_add(1, Ordering::Relaxed);
                if item >= items {
                    return;
                }
                body(worker, item);
            }
        });
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.crew.stop();
        for worker in self.workers.drain(..) {
            // Workers catch the panics of jobs; the result of a worker that panicked elsewhere is
            // of no use.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

/// Guard that marks the calling thread as inside a job.
struct Inside;

impl Inside {
    fn enter() -> Self {
        INSIDE.set(true);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod stress;
#[cfg(all(test, not(loom)))]
mod tests;
