//! A fixed set of worker threads that run one job at a time, made for many short jobs (a decoded token is about a
//! hundred of them).
//!
//! # How a job runs
//! A job of a pool with `n` threads consists of `n` *tickets*. The caller publishes the job, takes ticket 0, and workers
//! claim the others. A caller that is done with its own ticket claims what nobody has claimed yet, so it never waits for
//! a worker that sleeps or was not scheduled: on a busy machine a job degrades to single-threaded speed, not below.
//! It returns when all tickets are finished.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `next` | the caller stores 1 to publish; everyone increments it to claim | idle workers wait for `next < threads` |
//! | `job` | the caller, before it publishes | whoever has claimed a ticket, until it counts it as finished |
//! | `finished` | reset by the caller before it publishes; incremented per finished ticket | the caller |
//!
//! Between jobs `next == threads`, so nobody can claim. A worker that loaded `next` during one job and increments it
//! during a later one has simply claimed a ticket of the later one: it reads `job` only after the claim.

mod bell;

use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::{Error, Result};
use bell::Bell;

/// Largest pool: more threads than any machine this crate is written for has cores.
const MAX_THREADS: usize = 1024;

/// How long a thread spins for the next job, or for the end of this one, before it sleeps. Waking a sleeper costs 5 to
/// 50 us; the gap between two jobs of a forward pass is below 20 us.
const SPIN: Duration = Duration::from_micros(40);

/// The same when there are more threads than cores: whoever spins then keeps a working thread from running.
const SPIN_CROWDED: Duration = Duration::from_micros(2);

/// What a job is: called once with each worker index.
type Task<'a> = dyn Fn(usize) + Sync + 'a;

/// The published job: a thin pointer to this is what workers read.
struct Job<'a> {
    task: &'a Task<'a>,
}

/// Keeps each heavily written word on its own cache line (two lines: the hardware fetches pairs).
#[repr(align(128))]
struct Alone<T>(T);

struct Shared {
    threads: usize,
    spin: Duration,
    next: Alone<AtomicUsize>,
    finished: Alone<AtomicUsize>,
    job: AtomicPtr<Job<'static>>,
    /// Workers that run.
    started: AtomicUsize,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Where workers sleep until a ticket can be claimed.
    work: Bell,
    /// Where the caller sleeps until all tickets are finished.
    done: Bell,
}

/// A fixed set of threads for [`Kernels`](crate::Kernels) methods; the calling thread is one of them.
///
/// There is no global pool: whoever computes passes one. Idle workers sleep. Jobs of several calling threads take
/// turns. A job started from inside a job runs on the calling thread alone. Dropping the pool joins its threads.
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
    shared: Arc<Shared>,
    /// Held by the thread whose job runs.
    turn: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

thread_local! {
    /// Whether this thread is inside a job: a worker always is, a caller while it waits for its own.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl ThreadPool {
    /// A pool of `threads` threads: the caller's and `threads - 1` workers.
    ///
    /// # Errors
    /// [`Error::ThreadCount`] for 0 or more than 1024; [`Error::ThreadSpawn`] when the system refuses a thread.
    pub fn new(threads: usize) -> Result<Self> {
        if threads == 0 || threads > MAX_THREADS {
            return Err(Error::ThreadCount { threads, max: MAX_THREADS });
        }
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let mut pool = Self::idle(threads, if threads > cores { SPIN_CROWDED } else { SPIN });
        for worker in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let handle = std::thread::Builder::new()
                .name(format!("kernels-{worker}"))
                .spawn(move || {
                    shared.started.fetch_add(1, Ordering::Release);
                    shared.done.ring();
                    shared.work();
                })
                .map_err(|source| Error::ThreadSpawn { worker, source })?;
            pool.workers.push(handle);
        }
        // A thread allocates while it starts: after this, the pool allocates nothing.
        let shared = &pool.shared;
        shared.done.wait_until(shared.spin, || shared.started.load(Ordering::Acquire) == threads - 1);
        Ok(pool)
    }

    /// A pool without threads of its own: everything runs on the caller's.
    pub fn single() -> Self {
        Self::idle(1, SPIN)
    }

    fn idle(threads: usize, spin: Duration) -> Self {
        let shared = Shared {
            threads,
            spin,
            next: Alone(AtomicUsize::new(threads)),
            finished: Alone(AtomicUsize::new(threads)),
            job: AtomicPtr::new(std::ptr::null_mut()),
            started: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
            work: Bell::default(),
            done: Bell::default(),
        };
        Self { shared: Arc::new(shared), turn: Mutex::new(()), workers: Vec::new() }
    }

    /// Number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Calls `task` once with every worker index in `0..threads()` and returns when all calls have returned.
    ///
    /// No two calls get the same index, so the index may select scratch memory. Index 0 runs on the calling thread.
    /// The others may run anywhere, one after another on the same thread included.
    ///
    /// # Panics
    /// With the payload of the first panic of a call, after all calls have ended. The pool stays usable.
    pub fn run(&self, task: &(dyn Fn(usize) + Sync)) {
        if self.threads() == 1 || INSIDE.get() {
            (0..self.threads()).for_each(task);
            return;
        }
        let _turn = lock(&self.turn);
        let _inside = Inside::enter();
        if let Some(payload) = self.shared.dispatch(task) {
            resume_unwind(payload);
        }
    }

    /// Calls `body` with ranges that cover `0..items` without overlap, on all threads.
    ///
    /// Ranges start at multiples of `grain` and, except for the last, are multiples of it long; how many there are and
    /// who runs them depends on timing, so `body` must give the same result for any split. Large ranges come first,
    /// which keeps late or slow threads from mattering.
    ///
    /// # Panics
    /// As [`run`](Self::run). If `grain` is 0.
    pub fn for_each_chunk(&self, items: usize, grain: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
        self.for_each_chunk_on(items, grain, &|_, range| body(range));
    }

    /// [`for_each_chunk`](Self::for_each_chunk) whose body also gets the worker index, as in [`run`](Self::run).
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
        let chunks =
            Chunks { grains: items.div_ceil(grain), share: 2 * self.threads(), next: AtomicUsize::new(0) };
        self.run(&|worker| {
            while let Some(grains) = chunks.take() {
                body(worker, grains.start * grain..(grains.end * grain).min(items));
            }
        });
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.work.ring();
        for worker in self.workers.drain(..) {
            // Workers catch the panics of jobs; a worker that panicked elsewhere has nothing left to hand over.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Shared {
    /// Runs one job to its end, on the calling thread and whoever joins in; gives back the first panic.
    fn dispatch(&self, task: &Task<'_>) -> Option<Box<dyn Any + Send>> {
        let job = Job { task };
        self.job.store((&raw const job).cast_mut().cast::<Job<'static>>(), Ordering::Relaxed);
        self.finished.0.store(0, Ordering::Relaxed);
        // Publishes the two stores above to whoever claims a ticket.
        self.next.0.store(1, Ordering::Release);
        self.work.ring();

        self.run_ticket(task, 0);
        while let Some(ticket) = self.claim() {
            self.run_ticket(task, ticket);
        }
        // Acquires what the tickets wrote. `job` may go out of scope only after this: see `work`.
        self.done.wait_until(self.spin, || self.finished.0.load(Ordering::Acquire) == self.threads);
        lock(&self.panic).take()
    }

    /// The life of a worker thread.
    fn work(&self) {
        INSIDE.set(true);
        let claimable = || self.next.0.load(Ordering::Relaxed) < self.threads;
        loop {
            self.work.wait_until(self.spin, || claimable() || self.stop.load(Ordering::Acquire));
            if let Some(ticket) = self.claim() {
                // SAFETY: `dispatch` stored the pointer before it published the ticket that was just claimed (the claim
                // acquires that store), and it keeps the pointed-to `Job`, and the task behind it, alive and borrowed
                // until `finished` reaches `threads`, which cannot happen before this ticket is counted at the end of
                // `run_ticket`; neither is touched after that.
                let job = unsafe { &*self.job.load(Ordering::Relaxed) };
                self.run_ticket(job.task, ticket);
            } else if self.stop.load(Ordering::Acquire) {
                return;
            }
        }
    }

    /// Takes the next ticket of the current job, if one is left.
    fn claim(&self) -> Option<usize> {
        let next = &self.next.0;
        let mut ticket = next.load(Ordering::Relaxed);
        while ticket < self.threads {
            match next.compare_exchange_weak(ticket, ticket + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(ticket),
                Err(current) => ticket = current,
            }
        }
        None
    }

    /// Calls the task and counts the ticket as finished, whatever the task does.
    fn run_ticket(&self, task: &Task<'_>, ticket: usize) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| task(ticket))) {
            lock(&self.panic).get_or_insert(payload);
        }
        if self.finished.0.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.done.ring();
        }
    }
}

/// The guided schedule of [`ThreadPool::for_each_chunk`], counted in grains.
struct Chunks {
    grains: usize,
    /// A chunk is the remaining work divided by this.
    share: usize,
    next: AtomicUsize,
}

impl Chunks {
    fn take(&self) -> Option<Range<usize>> {
        let mut start = self.next.load(Ordering::Relaxed);
        while start < self.grains {
            let end = start + ((self.grains - start) / self.share).max(1);
            match self.next.compare_exchange_weak(start, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(start..end),
                Err(current) => start = current,
            }
        }
        None
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

/// Locks; the data behind the pool's locks is valid at every point, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
