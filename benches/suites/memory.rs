//! Allocation in page pool and slabs. Pages are never written: bookkeeping only.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use criterion::Criterion;
use parking_lot::Mutex;
use ruvllm_memory::{
    Demand, Offer, OwnerId, PagePool, Pages, PoolConfig, PressureOwner, PressurePolicy, Release, Request,
    Rung, Slab, Tenant,
};

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
    for pages in [256, 1024, 4096, 16_384, 65_536] {
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
    let slab = Slab::new(pool, 64 << 10, Request::default()).expect("blocks smaller than the pool");
    let _kept = slab.allocate().expect("free pages");
    let allocate = || slab.allocate().expect("free pages");
    criterion.bench_function("allocate+free/1 block", |b| b.iter(|| black_box(allocate())));
}

/// Time per page and thread while all threads allocate and free one.
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

/// A cache of pages; unit `i` is its page `i`.
struct Shelf {
    pool: PagePool,
    id: OwnerId,
    pages: Mutex<Vec<Option<Pages>>>,
    /// Last evicted unit.
    vacant: AtomicU64,
}

impl Shelf {
    fn new(pool: &PagePool) -> Arc<Self> {
        Arc::new_cyclic(|shelf: &Weak<Self>| {
            let id = pool.register(Weak::<Self>::clone(shelf));
            Self { pool: pool.clone(), id, pages: Mutex::default(), vacant: AtomicU64::new(0) }
        })
    }

    /// Stores a page as a unit and offers it at one of a few costs.
    fn put(&self, unit: usize, tenant: &Tenant, page: Pages) {
        self.pages.lock()[unit] = Some(page);
        let offer = Offer {
            tenant,
            rung: Rung::Prefix,
            cost: 1 + unit as u64 % 7,
            used: self.pool.now(Rung::Prefix),
        };
        self.pool.offer(self.id, unit as u64, offer).expect("its own pool");
    }
}

impl PressureOwner for Shelf {
    fn release(&self, unit: u64, _: Demand) -> Release {
        self.vacant.store(unit, Relaxed);
        let page = self.pages.lock()[unit as usize].take();
        if page.is_some() { Release::Released { has_rest: false } } else { Release::Gone }
    }
}

/// Evicts one of `n_pages` units of a tenant, reallocates its page and offers it again. One tenant,
/// because pages are zeroed between tenants.
fn eviction(criterion: &mut Criterion, n_pages: usize) {
    let config = PoolConfig { address_factor: 1, ..PoolConfig::new(n_pages << 21) };
    let pool = PagePool::new(config).expect("addresses");
    let shelf = Shelf::new(&pool);
    let tenant = pool.tenant("org/team").expect("a path");
    let request = Request::default().tenant(tenant.clone()).pressure(PressurePolicy::EvictPrefixes);
    shelf.pages.lock().resize_with(n_pages, || None);
    for unit in 0..n_pages {
        shelf.put(unit, &tenant, pool.allocate(1, &request).expect("a free page"));
    }
    criterion.bench_function(&format!("evict 1 unit of {n_pages}"), |b| {
        b.iter(|| {
            let page = pool.allocate(1, &request).expect("a unit to evict");
            shelf.put(shelf.vacant.load(Relaxed) as usize, &tenant, page);
        });
    });
}
