//! The protocol of tickets under loom, which tries the orders in which threads can run and what
//! they can see.
//!
//! `cargo xtask sanitize loom` runs it.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::crew::{Crew, Spins};
use std::time::Duration;

/// Memory that tickets write and the caller reads afterwards, without any synchronization of its
/// own.
struct Plain(UnsafeCell<usize>);

// SAFETY: loom reports every access that the protocol under test does not order.
unsafe impl Sync for Plain {}

/// Spinning would only multiply the orders to try.
const NO_SPINS: Spins = Spins { work: Duration::ZERO, done: Duration::ZERO };

/// Runs `jobs` jobs with one worker; each ticket of each writes its own cell, which the caller then
/// reads.
fn model(jobs: usize, preemptions: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let crew = Arc::new(Crew::new(2, NO_SPINS));
        let worker = thread::spawn({
            let crew = Arc::clone(&crew);
            move || crew.work(|| ())
        });
        for job in 1..=jobs {
            let cells = [const { () }; 2].map(|()| Plain(UnsafeCell::new(0)));
            let outcome = crew.share(&|ticket| {
                // SAFETY: tickets have different cells.
                cells[ticket].0.with_mut(|cell| unsafe { *cell = job });
            });
            assert!(outcome.panic.is_none() && outcome.helped < 2);
            for cell in &cells {
                // SAFETY: all tickets are finished.
                assert_eq!(cell.0.with(|cell| unsafe { *cell }), job);
            }
        }
        crew.stop();
        worker.join().unwrap();
    });
}

#[test]
fn one_job_reaches_the_worker_and_returns() {
    model(1, 4);
}

#[test]
fn a_second_job_does_not_meet_the_first() {
    model(2, 3);
}

#[test]
#[should_panic(expected = "an update was lost")]
fn the_model_checker_sees_a_planted_fault() {
    loom::model(|| {
        let count = Arc::new(AtomicUsize::new(0));
        let add = |count: &AtomicUsize| count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let other = thread::spawn({
            let count = Arc::clone(&count);
            move || add(&count)
        });
        add(&count);
        other.join().unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 2, "an update was lost");
    });
}
