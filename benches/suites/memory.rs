//! The page pool and slabs: what handing out memory costs. Nothing is written to the pages, so these are the
//! times of the bookkeeping alone.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use criterion::Criterion;
use parking_lot::Mutex;
use ruvllm_memory::{PageOwner, PagePool, PageRange, Pages, PoolConfig, Request, Slab};

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let pool = PagePool::new(PoolConfig::new(2 << 30)).expect("addresses for 2 GiB");
    uncontended(&mut criterion, &pool);
    for threads in [1, 2, 4, 8] {
        contended(&mut criterion, &pool, threads);
    }
    for pages in [256, 2048] {
        eviction(&mut criterion, pages);
    }
    criterion.final_summary();
}

fn uncontended(criterion: &mut Criterion, pool: &PagePool) {
    let request = Request::default();
    let allocate = |n_pages| pool.allocate(n_pages, &request).expect("free pages");
    criterion.bench_function("allocate+free/1 page", |b| b.iter(|| black_box(allocate(1))));
    criterion.bench_function("allocate+free/2 pages", |b| b.iter(|| black_box(allocate(2))));
    criterion.bench_function("allocate+free/100 pages", |b| b.iter(|| black_box(allocate(100))));
    let tenant = Request::default().tenant(pool.tenant("org/team/user").expect("a path"));
    let allocate = |n_pages| pool.allocate(n_pages, &tenant).expect("free pages");
    criterion.bench_function("allocate+free/1 page of org/team/user", |b| b.iter(|| black_box(allocate(1))));
    let pages = allocate(1);
    criterion.bench_function("pin+unpin", |b| {
        b.iter(|| {
            let _pin = black_box(pages.pin());
        });
    });
    let slab = Slab::new(pool, 64 << 10, Request::default()).expect("blocks smaller than the pool");
    let _kept = slab.allocate().expect("free pages");
    let allocate = || slab.allocate().expect("free pages");
    criterion.bench_function("allocate+free/1 block", |b| b.iter(|| black_box(allocate())));
}

/// Time of one page per thread, while all threads take and free one.
fn contended(criterion: &mut Criterion, pool: &PagePool, threads: u32) {
    criterion.bench_function(&format!("allocate+free/1 page, {threads} threads"), |b| {
        b.iter_custom(|runs| {
            let start = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        for _ in 0..runs {
                            black_box(pool.allocate(1, &Request::default()).expect("free pages"));
                        }
                    });
                }
            });
            start.elapsed()
        });
    });
}

/// Gives back what the pool proposes.
struct Shelf(Mutex<HashMap<PageRange, Pages>>);

impl PageOwner for Shelf {
    fn release(&self, _: usize) -> usize {
        0
    }

    fn release_ranges(&self, ranges: &[PageRange]) -> usize {
        let mut shelf = self.0.lock();
        ranges.iter().filter_map(|range| shelf.remove(range)).map(|pages| pages.len_pages()).sum()
    }
}

/// One page, the least recently used of `n_pages`, in a pool of twice as many so that no watermark plays a part.
fn eviction(criterion: &mut Criterion, n_pages: usize) {
    let pool = PagePool::new(PoolConfig::new((2 * n_pages) << 21)).expect("addresses");
    let shelf = Arc::new(Shelf(Mutex::default()));
    let weak: Weak<Shelf> = Arc::downgrade(&shelf);
    let request = Request::default().owner(pool.register(weak));
    let fill = || {
        let pages = pool.allocate(1, &request).expect("a free page");
        shelf.0.lock().insert(pages.range(), pages);
    };
    (0..n_pages).for_each(|_| fill());
    criterion.bench_function(&format!("evict 1 page of {n_pages}"), |b| {
        b.iter(|| {
            let target = n_pages - 1;
            assert_eq!(pool.evict_to(target), target);
            fill();
        });
    });
}
