//! Ticket protocol under loom, which explores thread interleavings and memory orders.
//!
//! Run by `cargo xtask sanitize loom`.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::crew::{Crew, Spins};
use super::sync::{Mutex, lock};
use std::panic::resume_unwind;
use std::time::Duration;

/// Memory that tickets write and the caller reads afterwards, without synchronization.
struct Plain(UnsafeCell<usize>);

// SAFETY: loom reports every access that the protocol does not order.
unsafe impl Sync for Plain {}

/// Spinning would only multiply the interleavings to explore.
const NO_SPINS: Spins = Spins { work: Duration::ZERO, done: Duration::ZERO };

/// Explores `callers`, which run jobs of a crew with `workers` workers.
fn model(workers: usize, preemptions: usize, callers: impl Fn(&Arc<Crew>) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let crew = Arc::new(Crew::new(workers + 1, NO_SPINS));
        let start_worker = |_| {
            let crew = Arc::clone(&crew);
            thread::spawn(move || crew.work(|| ()))
        };
        let workers: Vec<_> = (0..workers).map(start_worker).collect();
        callers(&crew);
        crew.stop();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

/// Runs job `job`; each ticket writes its own cell and then panics if `panics`.
///
/// Asserts that all tickets have ended, and that the caller gets a panic of this job or none.
fn share(crew: &Crew, job: usize, panics: bool) {
    let cells: Vec<Plain> = (0..crew.threads()).map(|_| Plain(UnsafeCell::new(0))).collect();
    let outcome = crew.share(&|ticket| {
        // SAFETY: tickets have different cells.
        cells[ticket].0.with_mut(|cell| unsafe { *cell = job });
        if panics {
            resume_unwind(Box::new(job));
        }
    });
    // Any other payload is a report of loom.
    let payload = outcome.panic.map(|payload| payload.downcast_ref::<usize>().copied());
    assert_eq!(payload, panics.then_some(Some(job)));
    assert!(outcome.helped < crew.threads());
    for cell in &cells {
        // SAFETY: all tickets are finished.
        assert_eq!(cell.0.with(|cell| unsafe { *cell }), job);
    }
}

#[test]
fn one_job_reaches_the_worker_and_returns() {
    model(1, 4, |crew| share(crew, 1, false));
}

#[test]
fn a_second_job_does_not_meet_the_first() {
    model(1, 3, |crew| (1..=2).for_each(|job| share(crew, job, false)));
}

#[test]
fn two_workers_claim_the_tickets_of_one_job() {
    model(2, 2, |crew| share(crew, 1, false));
}

#[test]
fn two_workers_do_not_mistake_one_job_for_the_next() {
    model(2, 1, |crew| (1..=2).for_each(|job| share(crew, job, false)));
}

#[test]
fn a_job_whose_tickets_all_panic_ends_and_leaves_nothing_to_the_next() {
    model(1, 2, |crew| {
        share(crew, 1, true);
        share(crew, 2, false);
    });
}

#[test]
fn two_workers_and_the_caller_panic_in_one_job() {
    model(2, 1, |crew| share(crew, 1, true));
}

#[test]
fn jobs_of_two_callers_take_turns() {
    model(1, 2, |crew| {
        let turn = Arc::new(Mutex::new(()));
        let in_turn = |crew: &Crew, turn: &Mutex<()>, job| {
            let _turn = lock(turn);
            share(crew, job, false);
        };
        let other = thread::spawn({
            let (crew, turn) = (Arc::clone(crew), Arc::clone(&turn));
            move || in_turn(&crew, &turn, 1)
        });
        in_turn(crew, &turn, 2);
        other.join().unwrap();
    });
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
