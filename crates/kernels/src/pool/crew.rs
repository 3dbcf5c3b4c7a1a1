//! Job protocol between the calling thread and the workers: tickets, claimed one by one.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `next` | the caller stores 1 to publish; every thread increments it to claim | idle workers
//! wait for `next < threads` |
//! | `job` | the caller, before it publishes | a worker, from claiming a ticket until counting it
//! as finished |
//! | `finished` | reset by the caller before it publishes; incremented per ticket finished by a
//! worker | the caller |
//!
//! Between jobs `next == threads`, so no ticket can be claimed. A worker that loaded `next` during
//! one job and increments it during a later one has claimed a ticket of the later job: it reads
//! `job` only after the claim.
//!
//! The pointer in `job` is into the frame of [`Crew::share`], and the caller waits for every
//! claimed ticket. So neither `share` nor [`Crew::work`] may unwind: panics of tickets are caught,
//! discarded payloads are dropped under `catch_unwind`, and any other panic aborts the process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::bell::Bell;
use super::panics::{AbortOnUnwind, Payload, discard, keep_first};
use super::sync::{AtomicBool, AtomicPtr, AtomicUsize, Mutex, lock};

/// Closure of a job, called once with each worker index.
pub(super) type JobFn<'a> = dyn Fn(usize) + Sync + 'a;

/// Spin durations before threads sleep.
#[derive(Clone, Copy)]
pub(super) struct Spins {
    /// Worker waiting for the next job.
    pub(super) work: Duration,
    /// Caller waiting for workers that still run its job.
    pub(super) done: Duration,
}

/// Panic and timing of a shared job.
pub(super) struct Outcome {
    /// First panic.
    pub(super) panic: Option<Payload>,
    /// Number of tickets run by workers.
    pub(super) helped: usize,
    /// Time from the start until no ticket was left to claim.
    pub(super) busy: Duration,
    /// Time from then until the workers had finished.
    pub(super) waited: Duration,
}

/// Published job; workers read a thin pointer to it.
struct Job<'a> {
    task: &'a JobFn<'a>,
}

/// Keeps contended words on their own cache line (two lines: the hardware fetches pairs).
#[repr(align(128))]
struct Alone<T>(T);

/// Words polled by idle workers; on one cache line, so that a job arrives in one transfer.
struct Desk {
    next: AtomicUsize,
    job: AtomicPtr<Job<'static>>,
    stop: AtomicBool,
}

/// Shared state of the threads of a pool.
pub(super) struct Crew {
    threads: usize,
    spins: Spins,
    desk: Alone<Desk>,
    finished: Alone<AtomicUsize>,
    /// Number of running workers.
    started: AtomicUsize,
    panic: Mutex<Option<Payload>>,
    /// Workers sleep here until a ticket can be claimed.
    work: Bell,
    /// The caller sleeps here until all tickets are finished.
    done: Bell,
}

impl Crew {
    pub(super) fn new(threads: usize, spins: Spins) -> Self {
        let desk = Desk {
            next: AtomicUsize::new(threads),
            job: AtomicPtr::new(std::ptr::null_mut()),
            stop: AtomicBool::new(false),
        };
        Self {
            threads,
            spins,
            desk: Alone(desk),
            finished: Alone(AtomicUsize::new(0)),
            started: AtomicUsize::new(0),
            panic: Mutex::new(None),
            work: Bell::new(),
            done: Bell::new(),
        }
    }

    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Waits until every worker runs.
    pub(super) fn wait_for_workers(&self) {
        let all = || self.started.load(Ordering::Acquire) == self.threads - 1;
        self.done.wait_until(self.spins.done, all, || ());
    }

    /// Ends the worker threads.
    pub(super) fn stop(&self) {
        self.desk.0.stop.store(true, Ordering::Release);
        self.work.ring();
    }

    /// Runs one job to completion, on the calling thread and the workers that claim tickets. One
    /// job at a time.
    pub(super) fn share(&self, task: &JobFn<'_>) -> Outcome {
        // Workers use `job` and `task` until the guard is disarmed.
        let guard = AbortOnUnwind;
        let start = Instant::now();
        let job = Job { task };
        let desk = &self.desk.0;
        desk.job.store((&raw const job).cast_mut().cast::<Job<'static>>(), Ordering::Relaxed);
        self.finished.0.store(0, Ordering::Relaxed);
        // Publishes the two stores above to the threads that claim a ticket.
        desk.next.store(1, Ordering::Release);
        self.work.ring();

        self.call(task, 0);
        let mut own = 1;
        while let Some(ticket) = self.claim() {
            self.call(task, ticket);
            own += 1;
        }
        let helped = self.threads - own;
        let busy = start.elapsed();
        // Acquires the writes of the tickets. `job` may go out of scope only after this: see
        // `work`.
        let finished = || self.finished.0.load(Ordering::Acquire) == helped;
        if !finished() {
            self.done.wait_until(self.spins.done, finished, || ());
        }
        guard.disarm();
        Outcome { panic: lock(&self.panic).take(), helped, busy, waited: start.elapsed() - busy }
    }

    /// Runs one job on the calling thread; returns the first panic.
    pub(super) fn alone(&self, task: &JobFn<'_>) -> Option<Payload> {
        (0..self.threads).for_each(|ticket| self.call(task, ticket));
        lock(&self.panic).take()
    }

    /// Main loop of a worker thread. Calls `woken` after each wake-up.
    pub(super) fn work(&self, woken: impl Fn()) {
        // The caller would wait forever for a worker that unwinds.
        let guard = AbortOnUnwind;
        self.started.fetch_add(1, Ordering::Release);
        self.done.ring();
        let desk = &self.desk.0;
        let called = || desk.next.load(Ordering::Relaxed) < self.threads || desk.stop.load(Ordering::Acquire);
        loop {
            self.work.wait_until(self.spins.work, called, &woken);
            if let Some(ticket) = self.claim() {
                // The claim acquires the store that `share` made before it published the ticket.
                // `share` waits until every claimed ticket is counted as finished, this one below,
                // and neither job nor task is touched after that. SAFETY: so the pointer is that of
                // the job, which `share` keeps alive and borrowed until then.
                let job = unsafe { &*desk.job.load(Ordering::Relaxed) };
                self.call(job.task, ticket);
                self.finished.0.fetch_add(1, Ordering::Release);
                self.done.ring();
            } else if desk.stop.load(Ordering::Acquire) {
                return guard.disarm();
            }
        }
    }

    /// Claims the next ticket of the current job, if one is left.
    fn claim(&self) -> Option<usize> {
        let next = &self.desk.0.next;
        let mut ticket = next.load(Ordering::Relaxed);
        while ticket < self.threads {
            match next.compare_exchange_weak(ticket, ticket + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(ticket),
                Err(current) => ticket = current,
            }
        }
        None
    }

    /// Calls the closure and keeps the first panic. Does not unwind.
    fn call(&self, task: &JobFn<'_>, ticket: usize) {
        let Err(payload) = catch_unwind(AssertUnwindSafe(|| task(ticket))) else { return };
        let later = keep_first(&self.panic, payload);
        // Outside of the lock: dropping a payload may run arbitrary code.
        if let Some(payload) = later {
            discard(payload);
        }
    }
}
