//! A fixed set of worker threads that run one job at a time, made for many short jobs (a decoded
//! token is about a hundred of them).
//!
//! # Job protocol
//! A job of a pool with `n` threads consists of `n` *tickets*. The caller publishes the job, takes
//! ticket 0, and workers claim the others. A caller that is done with its own ticket claims what
//! nobody has claimed yet, so it never waits for a worker that sleeps or was not scheduled. It
//! returns when all tickets are finished.
//!
//! On a busy machine a worker can also lose its core *inside* a ticket. Three things keep a job
//! from becoming slower than on one thread then: whoever waits soon sleeps, which gives the core
//! away; workers keep off the caller's core; and a pool that loses more time in waiting than its
//! workers save does without them for a while.
//!
//! | file | what it is |
//! |---|---|
//! | `crew.rs` | the protocol of tickets |
//! | `bell.rs` | waiting: spin, then sleep |
//! | `chunks.rs` | the division of a range |
//! | `disjoint.rs` | one slice written by several threads |
//! | `panics.rs` | panics of tickets: kept, discarded, stopped |
//! | `turn.rs` | turns of several callers |
//! | `ledger.rs` | whether help pays |
//! | `placement.rs` | cores |
//! | `sync.rs`, `model.rs` | the protocol under the model checker loom |

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
use std::thread::JoinHandle;
use std::time::Duration;

use crate::{Error, Result};
use chunks::Chunks;
use crew::{Crew, Spins};
pub(crate) use disjoint::DisjointMut;
pub use placement::Placement;
use placement::Places;
use turn::Turn;

/// Largest pool: more threads than any machine this crate is written for has cores.
const MAX_THREADS: usize = 1024;

/// Time for which a worker spins for the next job before it sleeps: waking it costs 5 to 50 us, and
/// the gap between two jobs of a forward pass is below 20 us. The caller's wait at the end of a job
/// is the length of a chunk, a few microseconds; if it takes longer, the worker has most likely
/// lost its core, and the caller's may be the next to be had.
const SPINS: Spins = Spins { work: Duration::from_micros(40), done: Duration::from_micros(15) };

/// The same when there are more threads than cores: whoever spins then keeps a working thread from
/// running.
const SPINS_CROWDED: Spins = Spins { work: Duration::from_micros(2), done: Duration::from_micros(2) };

/// A fixed set of threads for [`Kernels`](crate::Kernels) methods; the calling thread is one of
/// them.
///
/// There is no global pool: whoever computes passes one. Idle workers sleep. Jobs of several
/// calling threads take turns. A job started from inside a job runs on the calling thread alone. A
/// job must not wait for another thread that uses the same pool: see [`run`](Self::run). Dropping
/// the pool joins its threads.
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
    /// Held by the thread whose job runs.
    turn: Turn,
    workers: Vec<JoinHandle<()>>,
}

thread_local! {
    /// True while this thread is inside a job: a worker always is, a caller while it waits for its
    /// own.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl ThreadPool {
    /// A pool of `threads` threads: the caller's and `threads - 1` workers.
    ///
    /// # Errors
    /// [`Error::ThreadCount`] for 0 or more than 1024; [`Error::ThreadSpawn`] when the system
    /// refuses a thread.
    pub fn new(threads: usize) -> Result<Self> {
        Self::placed(threads, Placement::default())
    }

    /// [`new`](Self::new) with a say in where the workers run.
    ///
    /// # Errors
    /// As [`new`](Self::new).
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
        // A thread allocates while it starts: after this, the pool allocates nothing.
        pool.crew.wait_for_workers();
        Ok(pool)
    }

    /// A pool without threads of its own: everything runs on the caller's.
    pub fn single() -> Self {
        Self::idle(1, SPINS, Placement::System)
    }

    fn idle(threads: usize, spins: Spins, placement: Placement) -> Self {
        let places = Arc::new(Places::new(placement, threads));
        Self { crew: Arc::new(Crew::new(threads, spins)), places, turn: Turn::new(), workers: Vec::new() }
    }

    /// Number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.crew.threads()
    }

    /// Calls `task` once with every worker index in `0..threads()` and returns when all calls have
    /// returned.
    ///
    /// No two calls get the same index, so the index may select scratch memory. Index 0 runs on the
    /// calling thread. The others may run anywhere, one after another on the same thread included.
    ///
    /// # Deadlocks
    /// A job must not wait for another thread that uses the same pool: that thread waits for its
    /// turn until the job has ended. Builds with debug assertions panic in that thread after 20 s
    /// or more of one and the same job.
    ///
    /// # Panics
    /// With the payload of the first panic of a call, after all calls have ended; a job inside a
    /// job ends with its first panic. Payloads of later panics are dropped; if that panics too, it
    /// has no effect. The pool stays usable.
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
    /// Ranges start at multiples of `grain` and, except for the last, are multiples of it long; how
    /// many there are and who runs them depends on timing, so `body` must give the same result for
    /// any split. Large ranges come first, which keeps late or slow threads from mattering.
    ///
    /// # Panics
    /// As [`run`](Self::run). If `grain` is 0.
    pub fn for_each_chunk(&self, items: usize, grain: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
        self.for_each_chunk_on(items, grain, &|_, range| body(range));
    }

    /// [`for_each_chunk`](Self::for_each_chunk) whose body also gets the worker index, as in
    /// [`run`](Self::run).
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
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.crew.stop();
        for worker in self.workers.drain(..) {
            // Workers catch the panics of jobs; a worker that panicked elsewhere has nothing left
            // to hand over.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

/// Marks the calling thread as inside a job until dropped.
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
