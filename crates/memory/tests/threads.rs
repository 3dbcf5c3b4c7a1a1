//! Concurrency: no thread sees another's writes, and everything is free at the end. Also run under
//! the thread sanitizer, which does not see the ordering by locks of the standard library; hence
//! other locks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use ruvllm_memory::{
    Demand, Error, Offer, OwnerId, PagePool, Pages, PoolConfig, PressureOwner, PressurePolicy, Release,
    Request, Rung, Slab, Tenant,
};
use ruvllm_testkit::Random;

const PAGE_BYTES: usize = 512 << 10;
const THREADS: usize = 8;
const STEPS: usize = if cfg!(debug_assertions) { 400 } else { 4000 };

fn pool(pages: usize) -> PagePool {
    PagePool::new(PoolConfig { page_bytes: PAGE_BYTES, ..PoolConfig::new(pages * PAGE_BYTES) }).unwrap()
}

/// Runs `work` on all threads, with the thread's number.
fn run(work: impl Fn(usize) + Sync) {
    let ended = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (work, ended) = (&work, &ended);
            scope.spawn(move || {
                work(thread);
                ended.fetch_add(1, Ordering::Release);
            });
        }
    });
    // The thread sanitizer does not see the join of a scope, but does see this.
    assert_eq!(ended.load(Ordering::Acquire), THREADS);
}

/// Random numbers below a limit, different for each thread.
fn random(thread: usize) -> impl FnMut(usize) -> usize {
    let mut random = Random::new(thread as u64);
    move |below| random.below(below)
}

#[test]
fn threads_and_tenants_share_a_pool() {
    let pool = pool(64);
    run(|thread| {
        let mut random = random(thread);
        let request = Request::default().tenant(pool.tenant(&format!("org/{thread}")).unwrap());
        let mut held = Vec::<Pages>::new();
        for _ in 0..STEPS {
            if random(2) == 0 && !held.is_empty() {
                let pages = held.swap_remove(random(held.len()));
                assert!(pages.bytes().chunks(PAGE_BYTES).all(|page| page[0] == thread as u8 + 1));
                continue;
            }
            match pool.allocate(1 + random(3) * random(3), &request) {
                Ok(mut pages) => {
                    for page in pages.bytes_mut().chunks_mut(PAGE_BYTES) {
                        assert!(page[0] == 0 || page[0] == thread as u8 + 1, "another tenant's {}", page[0]);
                        page[0] = thread as u8 + 1;
                    }
                    held.push(pages);
                }
                Err(error) => assert!(matches!(error, Error::Exhausted { .. }), "{error}"),
            }
            assert!(pool.stats().used_pages <= 64);
        }
    });
    assert_eq!(pool.stats().used_pages, 0);
    assert_eq!(pool.usage(&pool.tenant("org").unwrap()).unwrap().used_pages, 0);
    assert!(pool.allocate(64, &Request::default()).is_ok(), "no cache hides a page");
}

#[test]
fn a_page_within_the_budget_is_always_found() {
    let pool = PagePool::new(PoolConfig {
        page_bytes: PAGE_BYTES,
        address_factor: 1,
        ..PoolConfig::new(THREADS * PAGE_BYTES)
    })
    .unwrap();
    run(|_| {
        for _ in 0..10 * STEPS {
            pool.allocate(1, &Request::default()).unwrap();
        }
    });
}

#[test]
fn threads_share_a_slab() {
    let pool = pool(256);
    let slab = Slab::new(&pool, 50_000, Request::default()).unwrap();
    run(|thread| {
        let mut random = random(thread);
        let mut held = Vec::new();
        for _ in 0..STEPS {
            if random(2) == 0 && !held.is_empty() {
                held.swap_remove(random(held.len()));
            } else if held.len() < 20 {
                held.push(slab.allocate().unwrap());
            }
            for block in &mut held {
                block.bytes_mut()[..2].fill(thread as u8);
            }
        }
        assert!(held.iter().all(|block| block.bytes()[..2] == [thread as u8; 2]));
    });
    assert_eq!(slab.stats().used_blocks, 0);
    drop(slab);
    assert_eq!(pool.stats().used_pages, 0);
}

/// A cache of pages; unit `i` is its page `i`.
struct Cache {
    pool: PagePool,
    id: OwnerId,
    pages: Mutex<Vec<Option<Pages>>>,
}

impl PressureOwner for Cache {
    fn release(&self, unit: u64, _: Demand) -> Release {
        let pages = self.pages.lock()[unit as usize].take();
        if pages.is_some() { Release::Released { has_rest: false } } else { Release::Gone }
    }
}

#[test]
fn threads_evict_while_others_allocate() {
    let pool = pool(64);
    let cache = |_| {
        Arc::new_cyclic(|cache: &Weak<Cache>| {
            let id = pool.register(Weak::<Cache>::clone(cache));
            Cache { pool: pool.clone(), id, pages: Mutex::default() }
        })
    };
    let caches: Vec<_> = (0..THREADS).map(cache).collect();
    run(|thread| {
        let cache = &caches[thread];
        let request = Request::default().pressure(PressurePolicy::LowerPrecision);
        for _ in 0..STEPS {
            match pool.allocate(1, &request) {
                Ok(mut page) => {
                    page.bytes_mut()[0] = 1;
                    let mut pages = cache.pages.lock();
                    pages.push(Some(page));
                    // Under the owner's lock, for which another thread's round may wait.
                    let used = cache.pool.now(Rung::Prefix);
                    let offer = Offer { tenant: &Tenant::root(), rung: Rung::Prefix, cost: 1, used };
                    cache.pool.offer(cache.id, pages.len() as u64 - 1, offer).unwrap();
                }
                Err(error) => assert!(matches!(error, Error::Exhausted { .. }), "{error}"),
            }
        }
    });
    assert!(pool.stats().pressure.evicted_units > 0);
    let all = pool.allocate(64, &Request::default().pressure(PressurePolicy::LowerPrecision));
    assert!(all.is_ok(), "no page is without an offer");
    assert_eq!((pool.stats().used_pages, pool.offered_units()), (64, 0));
}
