//! Behaviour of the pool: every index and item exactly once, nesting, several callers, panics,
//! shutdown.

use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::crew::JobFn;
use super::*;

/// Payload whose drop panics, as does the drop of that panic's payload. Zero-sized, so that leaks
/// take no memory.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        throw_bomb();
    }
}

/// Panics without a message on the terminal.
fn throw_bomb() -> ! {
    resume_unwind(Box::new(Bomb))
}

fn counts(n: usize) -> Vec<AtomicUsize> {
    (0..n).map(|_| AtomicUsize::new(0)).collect()
}

fn all_are(counts: &[AtomicUsize], expected: usize) -> bool {
    counts.iter().all(|count| count.load(Ordering::Relaxed) == expected)
}

#[test]
fn thread_counts_are_checked() {
    assert!(matches!(ThreadPool::new(0), Err(Error::ThreadCount { threads: 0, .. })));
    assert!(matches!(ThreadPool::new(MAX_THREADS + 1), Err(Error::ThreadCount { .. })));
    assert_eq!(ThreadPool::new(1).unwrap().threads(), 1);
    assert_eq!(ThreadPool::single().threads(), 1);
    assert!(ThreadPool::single().workers.is_empty());
}

#[test]
fn run_calls_every_index_once() {
    for threads in [1, 2, 3, 8] {
        let pool = ThreadPool::new(threads).unwrap();
        let calls = counts(threads);
        for _ in 0..200 {
            pool.run(&|worker| {
                calls[worker].fetch_add(1, Ordering::Relaxed);
            });
        }
        assert!(all_are(&calls, 200), "{threads} threads: {calls:?}");
    }
}

#[test]
fn index_zero_runs_on_the_caller() {
    let pool = ThreadPool::new(3).unwrap();
    let caller = std::thread::current().id();
    let seen = Mutex::new(None);
    pool.run(&|worker| {
        if worker == 0 {
            *seen.lock().unwrap() = Some(std::thread::current().id());
        }
    });
    assert_eq!(*seen.lock().unwrap(), Some(caller));
}

#[test]
fn chunks_cover_every_item_once_and_start_at_grains() {
    for threads in [1, 2, 5] {
        let pool = ThreadPool::new(threads).unwrap();
        for items in [0, 1, 2, 31, 32, 33, 1000] {
            for grain in [1, 3, 32, 5000] {
                let hits = counts(items);
                pool.for_each_chunk(items, grain, &|range| {
                    assert!(range.start.is_multiple_of(grain) && !range.is_empty());
                    assert!(range.end == items || range.end.is_multiple_of(grain));
                    for i in range {
                        hits[i].fetch_add(1, Ordering::Relaxed);
                    }
                });
                assert!(all_are(&hits, 1), "{threads} threads, {items} items by {grain}");
            }
        }
    }
}

#[test]
fn items_in_order_are_taken_once_and_ascending() {
    for threads in [1, 2, 5] {
        let pool = ThreadPool::new(threads).unwrap();
        for items in [0, 1, 2, 1000] {
            let (taken, last) = (counts(items), counts(threads));
            pool.for_each_in_order(items, &|worker, item| {
                taken[item].fetch_add(1, Ordering::Relaxed);
                let before = last[worker].swap(item + 1, Ordering::Relaxed);
                assert!(before < item + 1, "{item} after {before}");
            });
            assert!(all_are(&taken, 1), "{items} items on {threads} threads");
        }
    }
}

#[test]
fn a_job_inside_a_job_runs_inline() {
    let outer = ThreadPool::new(3).unwrap();
    let other = ThreadPool::new(2).unwrap();
    let hits = counts(3 * 10);
    outer.run(&|worker| {
        outer.for_each_chunk(10, 1, &|range| {
            other.run(&|inner| {
                if inner == 0 {
                    for i in range.clone() {
                        hits[worker * 10 + i].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        });
    });
    assert!(all_are(&hits, 1));
}

#[test]
fn several_callers_take_turns() {
    let pool = ThreadPool::new(2).unwrap();
    let (total, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..300 {
                    pool.for_each_chunk(64, 4, &|range| {
                        total.fetch_add(range.len(), Ordering::Relaxed);
                    });
                }
                ended.fetch_add(1, Ordering::Release);
            });
        }
    });
    // The thread sanitizer misses that the scope joins its threads; it sees this.
    assert_eq!(ended.load(Ordering::Acquire), 4);
    assert_eq!(total.into_inner(), 4 * 300 * 64);
}

#[test]
fn sleeping_workers_wake_up() {
    let pool = ThreadPool::new(2).unwrap();
    let calls = counts(2);
    for _ in 0..20 {
        std::thread::sleep(SPINS.work * 4);
        pool.run(&|worker| {
            // Usually long enough for the other thread to wake up; correctness does not depend on
            // it.
            std::thread::sleep(Duration::from_micros(200));
            calls[worker].fetch_add(1, Ordering::Relaxed);
        });
    }
    assert!(all_are(&calls, 20));
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_survives() {
    let pool = ThreadPool::new(3).unwrap();
    for bad in 0..3 {
        let finished = counts(3);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(&|worker| {
                assert!(worker != bad, "worker {worker} fails");
                finished[worker].fetch_add(1, Ordering::Relaxed);
            });
        }));
        let payload = caught.expect_err("the panic must reach the caller");
        assert_eq!(payload.downcast_ref::<String>().unwrap(), &format!("worker {bad} fails"));
        let others = finished.iter().map(|count| count.load(Ordering::Relaxed)).sum::<usize>();
        assert_eq!(others, 2, "the other indices ran to their end");
    }
    let calls = counts(3);
    pool.run(&|worker| {
        calls[worker].fetch_add(1, Ordering::Relaxed);
    });
    assert!(all_are(&calls, 1));
    assert!(!INSIDE.get(), "the caller has left the job");
}

#[test]
fn later_payloads_whose_drops_panic_do_not_unwind_through_the_protocol() {
    // Without workers the caller runs all tickets, so each job drops two payloads on this thread.
    let crew = Crew::new(3, SPINS);
    let task: &JobFn<'_> = &|_| throw_bomb();
    for _ in 0..2 {
        for payload in [crew.share(task).panic, crew.alone(task)] {
            let first = payload.expect("the first payload is handed out");
            assert!(first.is::<Bomb>());
            forget(first);
        }
    }
}

#[test]
fn jobs_end_when_every_ticket_throws_a_payload_whose_drop_panics() {
    let pool = ThreadPool::new(4).unwrap();
    for _ in 0..200 {
        let calls = counts(4);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(&|worker| {
                calls[worker].fetch_add(1, Ordering::Relaxed);
                throw_bomb();
            });
        }));
        let payload = caught.expect_err("the first panic reaches the caller");
        assert!(payload.is::<Bomb>());
        forget(payload);
        assert!(all_are(&calls, 1), "{calls:?}");
    }
    let calls = counts(4);
    pool.run(&|worker| {
        calls[worker].fetch_add(1, Ordering::Relaxed);
    });
    assert!(all_are(&calls, 1));
}

/// Runs in a second process, which must abort. An emulator of another architecture cannot start
/// one.
#[test]
#[cfg(all(unix, target_arch = "x86_64"))]
fn a_worker_that_unwinds_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;

    const CHILD: &str = "RUVLLM_UNWIND_WORKER";
    const SIGABRT: i32 = 6;
    if std::env::var_os(CHILD).is_none() {
        let test = "pool::tests::a_worker_that_unwinds_ends_the_process";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", test]).env(CHILD, "1").output().unwrap();
        assert_eq!(output.status.signal(), Some(SIGABRT), "{output:?}");
        return;
    }
    let crew = Crew::new(2, Spins { work: Duration::ZERO, done: Duration::ZERO });
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| crew.work(|| resume_unwind(Box::new("woken"))));
        while !worker.is_finished() {
            crew.share(&|_| std::thread::yield_now());
        }
        worker.join().expect_err("the worker has unwound, and the process lives");
    });
}

#[test]
#[cfg(debug_assertions)]
fn a_job_that_waits_for_a_thread_on_the_same_pool_is_reported() {
    let mut pool = ThreadPool::new(2).unwrap();
    pool.turn.patience = 20;
    let report = Mutex::new(None);
    pool.run(&|worker| {
        if worker == 0 {
            let other = std::thread::scope(|scope| scope.spawn(|| pool.run(&|_| {})).join());
            *report.lock().unwrap() = other.err();
        }
    });
    let payload = report.into_inner().unwrap().expect("the thread must not wait without end");
    let message = payload.downcast_ref::<&str>().unwrap();
    assert!(message.contains("a job must not wait for a thread"), "{message}");
    let calls = counts(2);
    pool.run(&|worker| {
        calls[worker].fetch_add(1, Ordering::Relaxed);
    });
    assert!(all_are(&calls, 1));
}

#[test]
fn chunks_of_as_many_items_as_can_be_counted() {
    let pool = ThreadPool::new(2).unwrap();
    let total = AtomicUsize::new(0);
    pool.for_each_chunk(usize::MAX, usize::MAX / 4 + 1, &|range| {
        total.fetch_add(range.len(), Ordering::Relaxed);
    });
    assert_eq!(total.into_inner(), usize::MAX);
}

#[test]
fn dropping_joins_the_workers() {
    let pool = ThreadPool::new(4).unwrap();
    let shared = Arc::downgrade(&pool.crew);
    pool.run(&|_| {});
    drop(pool);
    assert!(shared.upgrade().is_none(), "a worker still holds the shared state");
}
