//! Model checking of the pool with loom, over thread interleavings and memory orders.
//!
//! Run by `cargo xtask sanitize loom`. Invariants: a tenant's count, changed without a lock, never
//! exceeds its quota and never refuses a request that fits; a page counted as free is always found.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use crate::sync::set_thread_number;
use crate::tenant::Account;
use crate::{Error, PagePool, PoolConfig, Request};

const PAGE_BYTES: usize = 512 << 10;

fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// A pool without spare addresses, with caches that are never full.
fn pool(pages: usize) -> PagePool {
    let config = PoolConfig {
        page_bytes: PAGE_BYTES,
        reserve_bytes: pages * PAGE_BYTES,
        address_factor: 1,
        ..PoolConfig::new(pages * PAGE_BYTES)
    };
    PagePool::new(config).unwrap()
}

#[test]
fn counts_keep_to_the_quota_and_come_back() {
    check(3, || {
        let root = std::sync::Arc::new(Account::root(0, 3));
        let children = [1, 2].map(|id| Arc::new(Account::child(id, "child", &root)));
        let other = thread::spawn({
            let child = Arc::clone(&children[1]);
            move || {
                if child.charge(2).is_ok() {
                    child.refund(2);
                }
            }
        });
        if children[0].charge(2).is_ok() {
            assert!((2..=3).contains(&root.used()), "{} of 3", root.used());
            children[0].refund(2);
        }
        other.join().unwrap();
        assert_eq!([root.used(), children[0].used(), children[1].used()], [0; 3]);
        assert!(children[0].charge(3).is_ok(), "nothing is left over");
    });
}

#[test]
fn two_threads_that_take_a_page_each_both_get_one() {
    check(3, || {
        let pool = pool(2);
        let other = thread::spawn({
            let pool = pool.clone();
            move || {
                set_thread_number(1);
                drop(pool.allocate(1, &Request::default()).unwrap());
                drop(pool.allocate(1, &Request::default()).unwrap());
            }
        });
        drop(pool.allocate(1, &Request::default()).unwrap());
        drop(pool.allocate(1, &Request::default()).unwrap());
        other.join().unwrap();
        assert_eq!(pool.stats().used_pages, 0);
        assert_eq!(pool.allocate(2, &Request::default()).unwrap().len_pages(), 2);
    });
}

#[test]
fn a_page_that_moves_behind_the_back_of_a_search_is_found() {
    check(3, || {
        let pool = pool(2);
        let take = || pool.allocate(1, &Request::default()).unwrap();
        // Puts one page into the second cache.
        set_thread_number(1);
        drop(take());
        let other = thread::spawn({
            let pool = pool.clone();
            move || {
                // Simulates two threads in turn: one fills the first cache, the other empties the
                // second.
                drop(pool.allocate(1, &Request::default()).unwrap());
                set_thread_number(1);
                drop(pool.allocate(1, &Request::default()).unwrap());
            }
        });
        set_thread_number(0);
        drop(take());
        other.join().unwrap();
    });
}

#[test]
fn pages_in_the_cache_of_another_thread_are_found() {
    check(3, || {
        let pool = pool(2);
        let freed = Arc::new(AtomicUsize::new(0));
        let other = thread::spawn({
            let (pool, freed) = (pool.clone(), Arc::clone(&freed));
            move || {
                set_thread_number(1);
                // Fails if this thread comes second.
                drop(pool.allocate(1, &Request::default()));
                freed.store(1, Ordering::Release);
            }
        });
        let was_freed = freed.load(Ordering::Acquire) == 1;
        match pool.allocate(2, &Request::default()) {
            Ok(pages) => assert_eq!(pages.len_pages(), 2),
            Err(error) => assert!(matches!(error, Error::Exhausted { .. }) && !was_freed, "{error}"),
        }
        other.join().unwrap();
    });
}

#[test]
#[should_panic(expected = "two hold the page")]
fn the_model_checker_sees_a_planted_fault() {
    check(3, || {
        let pool = pool(2);
        // Check and allocation are not atomic.
        let take_if_unused = |pool: &PagePool, holders: &AtomicUsize| {
            if pool.stats().used_pages == 0 {
                let _pages = pool.allocate(1, &Request::default());
                assert_eq!(holders.fetch_add(1, Ordering::AcqRel), 0, "two hold the page");
                holders.fetch_sub(1, Ordering::AcqRel);
            }
        };
        let holders = Arc::new(AtomicUsize::new(0));
        let other = thread::spawn({
            let (pool, holders) = (pool.clone(), Arc::clone(&holders));
            move || take_if_unused(&pool, &holders)
        });
        take_if_unused(&pool, &holders);
        other.join().unwrap();
    });
}
