//! Tables of a pool grow with its pages in use, not with its budget.
//!
//! A test binary of its own, because it counts allocations of the whole process.
#![cfg(target_os = "linux")]

use ruvllm_memory::{Error, PagePool, PoolConfig, Request};
use ruvllm_testkit::allocator::{Counting, live_bytes};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_large_budget_takes_no_memory_before_its_pages_do() {
    // 2^25 pages of addresses; 4 bytes for each would be 128 MiB.
    let before = live_bytes();
    let pool = PagePool::new(PoolConfig::new(32 << 40)).unwrap();
    let empty = live_bytes() - before;
    assert!(empty < 1 << 20, "{empty} bytes for an empty pool");
    let pages = pool.allocate(10_000, &Request::default()).unwrap();
    let used = live_bytes() - before;
    assert!(used < 1 << 20, "{used} bytes for {} pages", pages.len_pages());
    drop((pages, pool));

    for bytes in [1 << 60, usize::MAX] {
        let before = live_bytes();
        let error = PagePool::new(PoolConfig::new(bytes)).expect_err("no system has the addresses");
        assert!(matches!(error, Error::Config { .. } | Error::Reserve { .. }), "{error}");
        assert!(live_bytes() - before < 1 << 16);
    }
}
