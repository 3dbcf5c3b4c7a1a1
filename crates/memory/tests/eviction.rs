//! Who is asked to give pages back, in which order, and how far.

use std::sync::{Arc, Mutex, Weak};

use ruvllm_memory::{
    Content, Error, OwnerId, PageOwner, PagePool, PageRange, Pages, PoolConfig, Quota, Request, Slab, Tenant,
    Watermarks,
};

const PAGE_BYTES: usize = 512 << 10;

fn pool(pages: usize) -> PagePool {
    PagePool::new(PoolConfig { page_bytes: PAGE_BYTES, ..PoolConfig::new(pages * PAGE_BYTES) }).unwrap()
}

/// Keeps pages and gives back what is proposed, in that order, unless it is told to refuse.
#[derive(Default)]
struct Shelf {
    pages: Mutex<Vec<Pages>>,
    given: Mutex<Vec<PageRange>>,
    refuses: bool,
}

impl PageOwner for Shelf {
    fn release(&self, _: usize) -> usize {
        panic!("ranges are proposed")
    }

    fn release_ranges(&self, ranges: &[PageRange]) -> usize {
        if self.refuses {
            return 0;
        }
        // Requests of this owner are made without the lock.
        let mut pages = self.pages.lock().unwrap();
        for range in ranges {
            let at = pages.iter().position(|pages| pages.range() == *range).expect("one of its own");
            pages.remove(at);
            self.given.lock().unwrap().push(*range);
        }
        ranges.iter().map(|range| range.n_pages).sum()
    }
}

impl Shelf {
    fn new(pool: &PagePool, refuses: bool) -> (Arc<Self>, OwnerId) {
        let shelf = Arc::new(Self { refuses, ..Self::default() });
        let weak: Weak<Self> = Arc::downgrade(&shelf);
        (shelf, pool.register(weak))
    }

    fn put(&self, pages: Pages) -> PageRange {
        let range = pages.range();
        self.pages.lock().unwrap().push(pages);
        range
    }

    fn given(&self) -> Vec<PageRange> {
        std::mem::take(&mut *self.given.lock().unwrap())
    }
}

#[test]
fn eviction_starts_at_the_high_watermark_and_stops_at_the_low_one() {
    let pool = pool(100);
    let (shelf, owner) = Shelf::new(&pool, false);
    let request = Request::default().owner(owner);
    let mut most = 0;
    for _ in 0..1000 {
        let before = pool.stats();
        shelf.put(pool.allocate(1, &request).unwrap());
        let after = pool.stats();
        most = most.max(after.used_pages);
        if after.eviction.rounds > before.eviction.rounds {
            assert_eq!((before.used_pages, after.used_pages), (84, 70));
        }
    }
    assert_eq!(most, 84);
    // 84 pages before the first round, then one round per 15.
    assert_eq!(pool.stats().eviction.rounds, 1 + (1000 - 85) / 15);
}

#[test]
fn the_least_recently_used_goes_first_and_pins_stay() {
    let pool = pool(100);
    let (shelf, owner) = Shelf::new(&pool, false);
    let request = Request::default().owner(owner);
    let ranges: Vec<_> = (0..6).map(|_| shelf.put(pool.allocate(1, &request).unwrap())).collect();
    {
        let pages = shelf.pages.lock().unwrap();
        pages[1].touch();
        std::mem::forget(pages[2].pin());
    }
    assert_eq!(pool.evict_to(3), 3);
    assert_eq!(shelf.given(), [ranges[0], ranges[3], ranges[4]]);
    assert_eq!(pool.evict_to(0), 1, "the pinned page stays");
    assert_eq!(shelf.given(), [ranges[5], ranges[1]]);
}

#[test]
fn of_two_that_are_equally_idle_the_longer_goes_first() {
    let pool = pool(100);
    let (shelf, owner) = Shelf::new(&pool, false);
    let request = Request::default().owner(owner);
    let short = shelf.put(pool.allocate(1, &request).unwrap());
    let long = shelf.put(pool.allocate(9, &request).unwrap());
    assert_eq!(pool.evict_to(5), 1);
    assert_eq!(pool.evict_to(0), 0);
    assert_eq!(shelf.given(), [long, short]);
}

#[test]
fn what_is_made_anew_goes_before_what_is_costly() {
    let pool = pool(100);
    let (shelf, owner) = Shelf::new(&pool, false);
    let put = |content| {
        let range = shelf.put(pool.allocate(1, &Request::new(content).owner(owner)).unwrap());
        (content, range)
    };
    let put: Vec<_> =
        [Content::Adapter, Content::Kv, Content::Gradient, Content::Activation, Content::Temporary]
            .map(put)
            .into();
    // Far more accesses elsewhere than lie between these pages: all are equally idle but for their content.
    let other = pool.allocate(1, &Request::default()).unwrap();
    (0..1000).for_each(|_| other.touch());
    pool.evict_to(1);
    let order: Vec<_> = put.iter().rev().map(|(_, range)| *range).collect();
    assert_eq!(shelf.given(), order);
}

#[test]
fn a_refusal_is_an_answer() {
    let pool = pool(10);
    let (kept, kept_owner) = Shelf::new(&pool, true);
    let (shelf, owner) = Shelf::new(&pool, false);
    kept.put(pool.allocate(4, &Request::default().owner(kept_owner)).unwrap());
    let range = shelf.put(pool.allocate(2, &Request::default().owner(owner)).unwrap());
    let pages = pool.allocate(6, &Request::default()).unwrap();
    assert_eq!(shelf.given(), [range], "asked after the other had refused");
    assert_eq!(pool.stats().eviction.refusals, 2, "for this request and at the watermark after it");
    let error = pool.allocate(1, &Request::default()).unwrap_err();
    let Error::Exhausted { wanted_pages: 1, free_pages: 0, largest_run_pages: 0, capacity_pages: 10 } = error
    else {
        panic!("{error}");
    };
    drop(pages);
    assert_eq!(kept.pages.lock().unwrap().len(), 1);
}

#[test]
fn owners_who_refuse_are_not_asked_for_each_page() {
    let pool = pool(1000);
    let (shelf, owner) = Shelf::new(&pool, true);
    let request = Request::default().owner(owner);
    (0..1000).for_each(|_| {
        shelf.put(pool.allocate(1, &request).unwrap());
    });
    let refusals = pool.stats().eviction.refusals;
    assert!((5..=15).contains(&refusals), "{refusals} of 150 pages beyond the watermark");
}

#[test]
fn tenants_beyond_their_soft_quota_go_first() {
    let pool = pool(100);
    let (shelf, owner) = Shelf::new(&pool, false);
    let greedy = pool.tenant("greedy").unwrap();
    pool.set_quota(&greedy, Quota { soft_pages: 3, ..Quota::default() }).unwrap();
    let modest = shelf.put(pool.allocate(1, &Request::default().owner(owner)).unwrap());
    let of_greedy = Request::default().owner(owner).tenant(pool.tenant("greedy/child").unwrap());
    let ranges: Vec<_> = (0..4).map(|_| shelf.put(pool.allocate(1, &of_greedy).unwrap())).collect();
    assert_eq!(pool.evict_to(4), 4);
    assert_eq!(shelf.given(), [ranges[0]], "younger, but of the tenant that has too much");
    assert_eq!(pool.evict_to(3), 3);
    assert_eq!(shelf.given(), [modest], "three are within the quota");
}

#[test]
fn a_tenant_at_its_hard_quota_evicts_its_own_pages_only() {
    let pool = pool(100);
    let (shelf, owner) = Shelf::new(&pool, false);
    let tenant = pool.tenant("org/team").unwrap();
    pool.set_quota(&tenant, Quota { hard_pages: 4, ..Quota::default() }).unwrap();
    shelf.put(pool.allocate(8, &Request::default().owner(owner)).unwrap());
    let own = Request::default().owner(owner).tenant(tenant.clone());
    let first = shelf.put(pool.allocate(3, &own).unwrap());
    let ours = pool.allocate(2, &own).unwrap();
    assert_eq!(shelf.given(), [first]);
    let error = pool.allocate(5, &own).unwrap_err();
    let Error::QuotaExceeded { wanted_pages: 5, used_pages: 2, quota_pages: 4, .. } = error else {
        panic!("{error}");
    };
    drop(ours);
    assert_eq!(pool.usage(&Tenant::root()).unwrap().used_pages, 8);
}

/// Asks the pool while it is asked, as an owner does that moves what it has to a smaller form.
struct Shrinker {
    pool: PagePool,
    pages: Mutex<Option<Pages>>,
}

impl PageOwner for Shrinker {
    fn release(&self, _: usize) -> usize {
        let Ok(mut place) = self.pages.try_lock() else { return 0 };
        let Some(large) = place.take() else { return 0 };
        let small = self.pool.allocate(1, &Request::default());
        let n_pages = large.len_pages();
        drop((large, small));
        n_pages
    }
}

#[test]
fn an_owner_may_make_requests_while_it_is_asked() {
    let pool = pool(10);
    let shrinker = Arc::new(Shrinker { pool: pool.clone(), pages: Mutex::default() });
    let weak: Weak<Shrinker> = Arc::downgrade(&shrinker);
    let request = Request::default().owner(pool.register(weak));
    *shrinker.pages.lock().unwrap() = Some(pool.allocate(7, &request).unwrap());
    assert_eq!(pool.allocate(5, &request).unwrap().len_pages(), 5);
    // Asked while its own lock is held, it refuses instead of waiting for itself.
    let mut place = shrinker.pages.lock().unwrap();
    *place = Some(pool.allocate(7, &request).unwrap());
    assert!(matches!(pool.allocate(5, &request), Err(Error::Exhausted { .. })));
}

#[test]
fn a_spare_page_of_a_slab_goes_before_anything_is_evicted() {
    let watermarks = Watermarks { high: 1.0, low: 1.0 };
    let config = PoolConfig { page_bytes: PAGE_BYTES, watermarks, ..PoolConfig::new(10 * PAGE_BYTES) };
    let pool = PagePool::new(config).unwrap();
    let (shelf, owner) = Shelf::new(&pool, false);
    shelf.put(pool.allocate(6, &Request::default().owner(owner)).unwrap());
    let slab = Slab::new(&pool, 1 << 10, Request::default()).unwrap();
    drop(slab.allocate().unwrap());
    assert_eq!(slab.stats().pages, 1);
    let pages = pool.prepare(4, &Request::default()).unwrap();
    assert_eq!(slab.stats().pages, 0);
    assert!(shelf.given().is_empty(), "the slab's page was enough");
    drop(pages);
    assert_eq!(slab.allocate().unwrap().bytes().len(), 1 << 10);
}

#[test]
fn an_access_to_a_block_counts_for_its_page() {
    let pool = pool(10);
    let (shelf, owner) = Shelf::new(&pool, false);
    let request = Request::default().owner(owner);
    let slab = Slab::new(&pool, 1 << 10, request.clone()).unwrap();
    let block = slab.allocate().unwrap();
    let other = shelf.put(pool.allocate(1, &request).unwrap());
    block.touch();
    assert_eq!(block.range().n_pages, 1);
    assert_eq!(pool.evict_to(1), 1);
    assert_eq!(shelf.given(), [other]);
}

#[test]
fn owners_that_are_gone_are_not_asked() {
    let pool = pool(10);
    let (shelf, owner) = Shelf::new(&pool, false);
    let pages = pool.allocate(8, &Request::default().owner(owner)).unwrap();
    drop(shelf);
    assert!(matches!(pool.allocate(3, &Request::default()), Err(Error::Exhausted { free_pages: 2, .. })));
    assert_eq!(pages.len_pages(), 8);
}
