//! State of a pool: page budget, fast path over per-thread caches, slow path over free runs.
//!
//! A page is in one of four states: in use, in a thread's cache, in a free run with physical memory
//! (used before), or in a free run without. The first two always have memory. Pages in use are
//! counted by the root tenant, pages with memory by `resident_pages`; neither exceeds the capacity.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pressure::{Clock, Order, Owners};
use crate::region::{Region, Span};
use crate::runs::FreeRuns;
use crate::shards::{Shards, shard_count};
use crate::spares::Spares;
use crate::stats::PressureStats;
use crate::sync::{AtomicUsize, Mutex, MutexGuard, lock};
use crate::tenant::{Account, Tenants};
use crate::writers::PageWriters;
use crate::{Error, PoolConfig, PoolStats, Result, Tenant};

/// Maximum number of pages in a thread's cache.
const MAX_CACHED: usize = 16;

/// State shared by the handles of a pool.
pub(crate) struct PoolState {
    /// Unique among pools.
    pub(crate) id: u64,
    pub(crate) region: Region,
    pub(crate) writers: PageWriters,
    pub(crate) page_bytes: usize,
    pub(crate) capacity_pages: usize,
    pub(crate) tenants: Tenants,
    pub(crate) owners: Owners,
    /// Offers of the owners.
    pub(crate) order: Mutex<Order>,
    pub(crate) clock: Clock,
    pub(crate) evicted_units: AtomicU64,
    pub(crate) refusals: AtomicU64,
    pub(crate) spares: Spares,
    runs: Mutex<FreeRuns>,
    caches: Shards<Cache>,
    /// Maximum number of pages per cache.
    cache_pages: usize,
    /// Maximum number of free pages that keep their memory.
    reserve_pages: usize,
    /// Pages with physical memory. Grows under the lock of `runs` only.
    resident_pages: AtomicUsize,
    returned_pages: AtomicU64,
}

/// Cache of free pages of a thread.
struct Cache {
    pages: Vec<Span>,
    hits: u64,
    misses: u64,
}

impl PoolState {
    /// Reserves addresses, takes no memory yet.
    ///
    /// # Errors
    /// As [`PagePool::new`](crate::PagePool::new).
    pub(crate) fn new(config: &PoolConfig) -> Result<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        config.check()?;
        let (page_bytes, capacity_pages) = (config.page_bytes, config.capacity_pages());
        let address_pages = capacity_pages * config.address_factor;
        let bytes = address_pages * page_bytes;
        let (region, all) =
            Region::reserve(bytes, page_bytes).map_err(|source| Error::Reserve { bytes, source })?;
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let reserve_pages = config.reserve_bytes / page_bytes;
        // Half of the reserve is left for ranges.
        let cache_pages = (reserve_pages / 2 / shard_count()).clamp(1, MAX_CACHED);
        Ok(Self {
            id,
            region,
            writers: PageWriters::new(address_pages),
            page_bytes,
            capacity_pages,
            tenants: Tenants::new(id, capacity_pages),
            owners: Owners::default(),
            order: Mutex::new(Order::default()),
            clock: Clock::default(),
            evicted_units: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
            spares: Spares::default(),
            runs: Mutex::new(FreeRuns::new(all, config.fit)),
            caches: Shards::new(|| Cache { pages: Vec::with_capacity(cache_pages), hits: 0, misses: 0 }),
            cache_pages,
            reserve_pages,
            resident_pages: AtomicUsize::new(0),
            returned_pages: AtomicU64::new(0),
        })
    }

    /// Account of a tenant of this pool.
    #[inline]
    pub(crate) fn account<'a>(&'a self, tenant: &'a Tenant) -> Result<&'a Account> {
        match &tenant.0 {
            None => Ok(&self.tenants.root),
            Some(account) if account.is_of(self.id) => Ok(account),
            Some(_) => Err(Error::OtherPool { what: "tenant" }),
        }
    }

    /// As [`account`](Self::account), but shared ownership.
    pub(crate) fn account_handle(&self, tenant: &Tenant) -> Result<Arc<Account>> {
        self.account(tenant)?;
        Ok(Arc::clone(tenant.0.as_ref().unwrap_or(&self.tenants.root)))
    }

    /// Charges pages to a tenant and takes them from the free ones. Releases only spare pages.
    ///
    /// # Errors
    /// As [`PagePool::allocate`](crate::PagePool::allocate).
    #[inline]
    pub(crate) fn reserve(&self, n_pages: usize, tenant: &Tenant) -> Result<Span> {
        if n_pages == 0 {
            return Err(Error::NoPages);
        }
        let account = self.account(tenant)?;
        self.charge(account, n_pages)?;
        self.take(n_pages, account.id).ok_or_else(|| {
            account.refund(n_pages);
            self.exhausted(n_pages)
        })
    }

    /// Charges pages to a tenant, releasing spare pages if a quota or the pool is short.
    #[inline]
    fn charge(&self, account: &Account, n_pages: usize) -> Result<()> {
        account.charge(n_pages).or_else(|short| self.charge_spare(account, n_pages, short))
    }

    #[cold]
    fn charge_spare<'a>(&self, account: &'a Account, n_pages: usize, mut short: &'a Account) -> Result<()> {
        // Retries: other threads may take freed pages, or another quota may be exceeded next.
        for _ in 0..3 {
            let limit = short.usage().quota.hard_pages;
            let Some(target) = limit.checked_sub(n_pages) else { break };
            if self.release_spare(short, target) == 0 && short.used() > target {
                break;
            }
            match account.charge(n_pages) {
                Ok(()) => return Ok(()),
                Err(next) => short = next,
            }
        }
        if short.id == 0 {
            return Err(self.exhausted(n_pages));
        }
        let usage = short.usage();
        Err(Error::QuotaExceeded {
            tenant: short.path.clone(),
            wanted_pages: n_pages,
            used_pages: usage.used_pages,
            quota_pages: usage.quota.hard_pages,
        })
    }

    /// Releases spare pages until `scope` uses at most `target_pages`; returns their number.
    #[cold]
    pub(crate) fn release_spare(&self, scope: &Account, target_pages: usize) -> usize {
        let mut released = 0;
        for holder in self.spares.holders() {
            if scope.used() <= target_pages {
                break;
            }
            released += holder.release_spare(scope);
        }
        released
    }

    #[cold]
    fn exhausted(&self, wanted_pages: usize) -> Error {
        self.drain_caches();
        // The root's quota may be below the pool's size.
        let capacity_pages = self.tenants.root.usage().quota.hard_pages;
        let free_pages = capacity_pages.saturating_sub(self.tenants.root.used());
        let largest_run_pages = self.longest_run_pages().min(free_pages);
        Error::Exhausted { wanted_pages, free_pages, largest_run_pages, capacity_pages }
    }

    /// Takes contiguous free pages, charged already, and marks them resident.
    #[inline]
    fn take(&self, n_pages: usize, tenant: u32) -> Option<Span> {
        if n_pages == 1
            && let Some(page) = self.take_cached(tenant)
        {
            return Some(page);
        }
        self.take_run(n_pages, tenant)
    }

    #[inline]
    fn take_cached(&self, tenant: u32) -> Option<Span> {
        let mut cache = self.caches.own();
        // Prefers a page that needs no zeroing.
        let is_ready = |page: &Span| !self.writers.is_foreign(page.start() / self.page_bytes, tenant);
        let found = match cache.pages.iter().rposition(is_ready) {
            Some(index) => Some(cache.pages.swap_remove(index)),
            None => cache.pages.pop(),
        };
        match found {
            Some(_) => cache.hits += 1,
            None => cache.misses += 1,
        }
        found
    }

    fn take_run(&self, n_pages: usize, tenant: u32) -> Option<Span> {
        let bytes = n_pages.checked_mul(self.page_bytes)?;
        let mut runs = lock(&self.runs);
        let span = match runs.take(bytes) {
            Some(span) => span,
            None => {
                drop(runs);
                // Locks all caches: every free page is then in the runs, so a single page is always
                // found.
                let mut caches = self.caches.all();
                runs = lock(&self.runs);
                drain(&mut caches, &mut runs);
                runs.take(bytes)?
            }
        };
        let fresh = self.writers.back(span.start() / self.page_bytes, n_pages, tenant);
        let resident = self.resident_pages.fetch_add(fresh, Ordering::Relaxed) + fresh;
        let excess = resident.saturating_sub(self.capacity_pages);
        if excess > self.discard_free(&mut runs, excess) {
            // The rest is in caches: pages in use never exceed the capacity.
            drop(runs);
            self.drain_caches();
            self.discard_free(&mut lock(&self.runs), excess);
        }
        Some(span)
    }

    /// Frees pages.
    #[inline]
    pub(crate) fn give_back(&self, mut span: Span, n_pages: usize, account: Option<&Account>) {
        debug_assert_eq!(span.len(), n_pages * self.page_bytes, "a slab's blocks are not back");
        let account = account.unwrap_or(&self.tenants.root);
        if n_pages == 1 {
            let mut cache = self.caches.own();
            if cache.pages.len() < self.cache_pages {
                cache.pages.push(span);
                drop(cache);
                return account.refund(1);
            }
        }
        let used_after = self.tenants.root.used().saturating_sub(n_pages);
        let kept_after = self.resident_pages.load(Ordering::Relaxed).saturating_sub(used_after);
        if kept_after > self.reserve_pages {
            self.discard(&mut span, 0, n_pages);
        }
        lock(&self.runs).insert(span);
        account.refund(n_pages);
    }

    /// Returns the memory of pages of a span to the system.
    fn discard(&self, span: &mut Span, page: usize, n_pages: usize) {
        let first = span.start() / self.page_bytes + page;
        self.region.discard(span, page * self.page_bytes, n_pages * self.page_bytes);
        (first..first + n_pages).for_each(|page| self.writers.unback(page));
        self.resident_pages.fetch_sub(n_pages, Ordering::Relaxed);
        self.returned_pages.fetch_add(n_pages as u64, Ordering::Relaxed);
    }

    /// Returns the memory of up to `wanted` pages of free runs to the system; returns their number.
    fn discard_free(&self, runs: &mut FreeRuns, wanted: usize) -> usize {
        let mut discarded = 0;
        for run in runs.iter_mut() {
            if discarded >= wanted {
                break;
            }
            let (first, n_pages) = (run.start() / self.page_bytes, run.len() / self.page_bytes);
            let mut page = 0;
            while page < n_pages && discarded < wanted {
                let backed = (page..n_pages).take_while(|&at| self.writers.is_backed(first + at)).count();
                if backed > 0 {
                    self.discard(run, page, backed);
                    discarded += backed;
                }
                page += backed.max(1);
            }
        }
        discarded
    }

    /// Returns the memory of all free pages to the system.
    pub(crate) fn trim(&self) {
        self.drain_caches();
        self.discard_free(&mut lock(&self.runs), usize::MAX);
    }

    /// See [`PagePool::stats`](crate::PagePool::stats).
    pub(crate) fn stats(&self) -> PoolStats {
        let (mut cached_pages, mut cache_hits, mut cache_misses) = (0, 0, 0);
        for cache in self.caches.each() {
            cached_pages += cache.pages.len();
            cache_hits += cache.hits;
            cache_misses += cache.misses;
        }
        let used_pages = self.tenants.root.used();
        let free_pages = self.capacity_pages.saturating_sub(used_pages);
        PoolStats {
            page_bytes: self.page_bytes,
            capacity_pages: self.capacity_pages,
            used_pages,
            free_pages,
            cached_pages,
            resident_pages: self.resident_pages.load(Ordering::Relaxed),
            returned_pages: self.returned_pages.load(Ordering::Relaxed),
            largest_run_pages: self.longest_run_pages().min(free_pages),
            cache_hits,
            cache_misses,
            pressure: PressureStats {
                evicted_units: self.evicted_units.load(Ordering::Relaxed),
                refusals: self.refusals.load(Ordering::Relaxed),
            },
        }
    }

    fn drain_caches(&self) {
        let mut caches = self.caches.all();
        drain(&mut caches, &mut lock(&self.runs));
    }

    fn longest_run_pages(&self) -> usize {
        lock(&self.runs).longest() / self.page_bytes
    }
}

/// Moves the pages of all caches to the free runs.
///
/// Locks are taken in this order, caches before runs, and otherwise one at a time.
fn drain(caches: &mut [MutexGuard<'_, Cache>], runs: &mut FreeRuns) {
    for cache in caches {
        cache.pages.drain(..).for_each(|page| runs.insert(page));
    }
}
