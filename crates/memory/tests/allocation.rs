//! Once warm, the pool takes nothing from the system's allocator.
//!
//! Alone in its binary, because it counts the allocations of the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use ruvllm_memory::{Arena, BufferPool, Content, PagePool, PoolConfig, Request, Slab, ThreadScratch};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: both functions pass their arguments on to the system allocator unchanged, and the counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller keeps `GlobalAlloc::alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `GlobalAlloc::dealloc`'s contract, and `alloc` gave out the system's pointer.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_step_that_was_run_before_allocates_nothing() {
    let pool = PagePool::new(PoolConfig::new(256 << 20)).unwrap();
    let request = Request::new(Content::Temporary).tenant(pool.tenant("org/team/user").unwrap());
    let slab = Slab::new(&pool, 48 << 10, request.clone()).unwrap();
    let buffers = BufferPool::new(&pool, &request).unwrap();
    let mut arena = Arena::new(&pool, 1 << 20, &request).unwrap();
    let threads = ThreadScratch::new(&pool, 1 << 20, request.clone());
    let mut blocks = Vec::with_capacity(100);
    let mut step = || {
        let page = pool.allocate(1, &request).unwrap();
        let pages = pool.prepare(5, &request).unwrap().commit();
        let _pin = pages.pin();
        page.touch();
        // Of three pages, two of which go back to the pool each time.
        blocks.extend((0..100).map(|_| slab.allocate().unwrap()));
        blocks.clear();
        let _buffers = [100, 5000, 200_000].map(|bytes| buffers.take(bytes).unwrap());
        let mut frame = arena.frame();
        let row: &mut [f32] = frame.zeroed(1000).unwrap();
        threads.with(|mut frame| frame.slice::<f32>(1000).unwrap().copy_from_slice(row)).unwrap();
    };
    (0..10).for_each(|_| step());
    let before = ALLOCATIONS.load(Relaxed);
    (0..100).for_each(|_| step());
    let after = ALLOCATIONS.load(Relaxed);
    assert_eq!(after - before, 0);
    let boxed = std::hint::black_box(Box::new(1));
    assert_eq!(ALLOCATIONS.load(Relaxed) - after, *boxed, "the counter counts");
}
