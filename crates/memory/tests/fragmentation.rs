//! Free memory stays contiguous after a million random requests at 90 % use.
//!
//! Linux only: elsewhere freed pages are zeroed by writing, at gigabytes per second at best, and a
//! million requests would take an hour.

#![cfg(target_os = "linux")]

use ruvllm_memory::{Error, Fit, PagePool, Pages, PoolConfig, Request};
use ruvllm_testkit::Random;

const CAPACITY_PAGES: usize = 2048;
const OPERATIONS: usize = 1_000_000;

/// Half of the requests are for one page, the rest for up to 64; a random handle is dropped for
/// each request beyond 90 %. Returns the smallest share of free pages in one run, and the pages
/// held at the end.
fn run(pool: &PagePool) -> (f64, Vec<Pages>) {
    let mut generator = Random::new(1);
    let mut random = |below| generator.below(below);
    let (mut held, mut used, mut lowest) = (Vec::<Pages>::new(), 0, 1.0_f64);
    for operation in 0..OPERATIONS {
        let n_pages = if random(2) == 0 { 1 } else { 1 + random(64) };
        let fits = used + n_pages <= CAPACITY_PAGES / 10 * 9;
        match fits.then(|| pool.allocate(n_pages, &Request::default())) {
            Some(Ok(pages)) => {
                used += n_pages;
                held.push(pages);
            }
            Some(Err(Error::Exhausted { .. })) | None => {
                used -= held.swap_remove(random(held.len())).len_pages();
            }
            Some(Err(error)) => panic!("{error}"),
        }
        if operation > OPERATIONS / 2 && operation % 1000 == 0 {
            lowest = lowest.min(1.0 - pool.stats().fragmentation());
        }
    }
    (lowest, held)
}

#[test]
fn spare_addresses_keep_the_free_memory_in_one_piece() {
    for fit in [Fit::Best, Fit::First] {
        let pool = PagePool::new(PoolConfig { fit, ..PoolConfig::new(CAPACITY_PAGES << 21) }).unwrap();
        let (lowest, held) = run(&pool);
        assert!(lowest >= 0.8, "{fit:?}: {lowest}");
        let free = pool.stats().free_pages;
        assert!(pool.allocate(free, &Request::default()).is_ok());
        drop(held);
    }
}

#[test]
fn without_spare_addresses_a_request_that_finds_no_run_says_so() {
    let config = PoolConfig { address_factor: 1, ..PoolConfig::new(CAPACITY_PAGES << 21) };
    let pool = PagePool::new(config).unwrap();
    let (lowest, _held) = run(&pool);
    assert!(lowest < 0.8, "{lowest}: spare addresses would not be needed");
    let wanted = pool.stats().free_pages;
    let error = pool.allocate(wanted, &Request::default()).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("enough is free but not in one piece; ask for smaller pieces or raise address_factor")
    );
    let Error::Exhausted { wanted_pages, free_pages, largest_run_pages, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((wanted_pages, free_pages), (wanted, wanted));
    assert!(pool.allocate(largest_run_pages, &Request::default()).is_ok());
}
