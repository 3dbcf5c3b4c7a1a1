//! Stress tests: jobs of several callers that panic on callers and workers.
//!
//! The number of rounds scales with the number of generated cases (`PROPTEST_CASES`); `cargo xtask
//! sanitize thread --seconds N` repeats these tests under the thread sanitizer.

use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use proptest::test_runner::Config;
use ruvllm_testkit::Random;

use super::panics::{Payload, discard};
use super::{INSIDE, ThreadPool};

/// Outcome of one ticket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Returns,
    /// Payload as of `panic!`, without a message on the terminal.
    Text,
    /// Payload whose drop panics with another such payload.
    Bomb,
    /// Payload whose drop runs a job on the same pool.
    Job,
    /// Nested job whose tickets panic with bombs.
    Nested,
}

const ENDS: [End; 5] = [End::Returns, End::Text, End::Bomb, End::Job, End::Nested];

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        resume_unwind(Box::new(Bomb));
    }
}

/// Payload that counts its drops and uses the pool in them, as foreign destructors may.
struct JobInDrop(Arc<Shared>);

/// Pool of all callers, also held by payloads: they outlive the frame that threw them.
struct Shared {
    pool: ThreadPool,
    /// Number of dropped [`JobInDrop`]s.
    drops: AtomicUsize,
}

impl Drop for JobInDrop {
    fn drop(&mut self) {
        self.0.pool.run(&|_| {});
        self.0.drops.fetch_add(1, Ordering::Relaxed);
    }
}

/// Number of rounds, scaled to the number of cases.
fn scaled(rounds: u64) -> u64 {
    (rounds * u64::from(Config::default().cases) / 256).max(1)
}

fn finish(shared: &Arc<Shared>, end: End) {
    match end {
        End::Returns => {}
        End::Text => resume_unwind(Box::new("a ticket fails")),
        End::Bomb => resume_unwind(Box::new(Bomb)),
        End::Job => resume_unwind(Box::new(JobInDrop(Arc::clone(shared)))),
        End::Nested => shared.pool.run(&|_| resume_unwind(Box::new(Bomb))),
    }
}

/// Discards the payload of a job.
fn drop_payload(payload: Payload) {
    if payload.is::<Bomb>() { forget(payload) } else { discard(payload) }
}

/// Runs one job with random outcomes; all tickets run once regardless of the others.
fn round(shared: &Arc<Shared>, random: &mut Random) -> usize {
    let pool = &shared.pool;
    // Unsynchronized memory of this round: use by a worker after the end of the job is a data race.
    let ends: Vec<End> = (0..pool.threads()).map(|_| ENDS[random.below(ENDS.len())]).collect();
    let calls: Vec<AtomicUsize> = ends.iter().map(|_| AtomicUsize::new(0)).collect();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        pool.run(&|ticket| {
            calls[ticket].fetch_add(1, Ordering::Relaxed);
            finish(shared, ends[ticket]);
        });
    }));
    assert_eq!(caught.is_err(), ends.iter().any(|&end| end != End::Returns));
    assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == 1), "{calls:?}");
    assert!(!INSIDE.get(), "the caller has left the job");
    if let Err(payload) = caught {
        drop_payload(payload);
    }
    ends.iter().filter(|&&end| end == End::Job).count()
}

#[test]
fn jobs_of_several_callers_panic_for_many_rounds() {
    for threads in [1, 2, 4] {
        let pool = ThreadPool::new(threads).unwrap();
        let shared = Arc::new(Shared { pool, drops: AtomicUsize::new(0) });
        let callers: Vec<_> = (0..3)
            .map(|caller| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let mut random = Random::new(1000 * threads as u64 + caller);
                    (0..scaled(60)).map(|_| round(&shared, &mut random)).sum::<usize>()
                })
            })
            .collect();
        let thrown: usize = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
        assert_eq!(shared.drops.load(Ordering::Relaxed), thrown, "every payload is dropped once");
        let calls = AtomicUsize::new(0);
        shared.pool.run(&|_| {
            calls.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(calls.into_inner(), threads, "the pool works on");
    }
}

#[test]
fn pools_end_after_jobs_that_panicked() {
    for i in 0..scaled(20) {
        let pool = ThreadPool::new(1 + i as usize % 4).unwrap();
        let caught = catch_unwind(AssertUnwindSafe(|| pool.run(&|_| resume_unwind(Box::new(Bomb)))));
        drop_payload(caught.expect_err("every ticket panics"));
        drop(pool);
    }
}
