//! A warm pool makes no heap allocations.
//!
//! Counts the allocations of the working thread only; the waiting thread makes its own.

use ruvllm_memory::{PagePool, PoolConfig, Request, Slab};
use ruvllm_testkit::allocator::{Counting, calls, count_calls};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_step_that_was_run_before_allocates_nothing() {
    let pool = PagePool::new(PoolConfig::new(256 << 20)).unwrap();
    let request = Request::default().tenant(pool.tenant("org/team/user").unwrap());
    let slab = Slab::new(&pool, 48 << 10, request.clone()).unwrap();
    let mut blocks = Vec::with_capacity(100);
    let mut step = || {
        let _page = pool.allocate(1, &request).unwrap();
        let _pages = pool.prepare(5, &request).unwrap().commit();
        // Three pages, two of which are returned to the pool each time.
        blocks.extend((0..100).map(|_| slab.allocate().unwrap()));
        blocks.clear();
    };
    (0..10).for_each(|_| step());
    count_calls();
    let before = calls();
    (0..100).for_each(|_| step());
    let after = calls();
    assert_eq!(after - before, 0);
    let boxed = std::hint::black_box(Box::new(1));
    assert_eq!(calls() - after, *boxed, "the counter counts");
}
