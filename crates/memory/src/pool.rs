//! The pool: a budget of pages, the fast path over per-thread caches and the slow path over the
//! free runs.
//!
//! A page is in one of four places: in use, in a thread's cache, in a free run with memory behind
//! it (it was used before), or in a free run without. The first two always have memory. Pages in
//! use are counted by the root tenant, pages with memory by `resident_pages`; neither exceeds the
//! capacity.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pressure::{Claim, Clock, Counts, Order, Owners, PressurePolicy, Rung};
use crate::region::{Region, Span};
use crate::runs::FreeRuns;
use crate::shards::{Shards, shard_count};
use crate::slab::Spares;
use crate::sync::{AtomicUsize, Mutex, MutexGuard, lock};
use crate::tenant::{Account, Tenants};
use crate::writers::PageWriters;
use crate::{Error, Pages, PoolConfig, PoolStats, Quota, Request, Reservation, Result, Tenant, TenantUsage};

/// Most pages in the cache of a thread.
const MAX_CACHED: usize = 16;

/// A budget of memory in pages that many threads and tenants share. Clones are handles of the same
/// pool.
///
/// See the [crate](crate) for an example.
#[derive(Clone)]
pub struct PagePool {
    pub(crate) shared: Arc<Shared>,
}

/// What the handles of a pool share.
pub(crate) struct Shared {
    /// Unlike that of any other pool.
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
    pub(crate) counts: Counts,
    pub(crate) spares: Spares,
    runs: Mutex<FreeRuns>,
    caches: Shards<Cache>,
    /// Most pages in each cache.
    cache_pages: usize,
    /// Free pages that keep their memory.
    reserve_pages: usize,
    /// Pages with memory behind them. Grows under the lock of `runs` only.
    resident_pages: AtomicUsize,
    returned_pages: AtomicU64,
}

/// Free pages of a thread.
struct Cache {
    pages: Vec<Span>,
    hits: u64,
    misses: u64,
}

impl PagePool {
    /// Reserves the addresses of a pool. No memory is taken yet.
    ///
    /// # Errors
    /// [`Error::Config`] for a setting out of range, [`Error::Reserve`] when the system refuses the
    /// addresses.
    pub fn new(config: PoolConfig) -> Result<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        config.check()?;
        let (page_bytes, capacity_pages) = (config.page_bytes, config.capacity_pages());
        let address_pages = capacity_pages * config.address_factor;
        let bytes = address_pages * page_bytes;
        let (region, all) =
            Region::reserve(bytes, page_bytes).map_err(|source| Error::Reserve { bytes, source })?;
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let reserve_pages = config.reserve_bytes / page_bytes;
        // Half of what may be kept stays for ranges.
        let cache_pages = (reserve_pages / 2 / shard_count()).clamp(1, MAX_CACHED);
        let shared = Shared {
            id,
            region,
            writers: PageWriters::new(address_pages),
            page_bytes,
            capacity_pages,
            tenants: Tenants::new(id, capacity_pages),
            owners: Owners::default(),
            order: Mutex::new(Order::default()),
            clock: Clock::default(),
            counts: Counts::default(),
            spares: Spares::default(),
            runs: Mutex::new(FreeRuns::new(all, config.fit)),
            caches: Shards::new(|| Cache { pages: Vec::with_capacity(cache_pages), hits: 0, misses: 0 }),
            cache_pages,
            reserve_pages,
            resident_pages: AtomicUsize::new(0),
            returned_pages: AtomicU64::new(0),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// `n_pages` pages in one piece. When memory is short, units of owners are evicted as the
    /// request's policy says.
    ///
    /// # Errors
    /// [`Error::NoPages`] for none; [`Error::Exhausted`] without room, which says whether the total
    /// or only a piece of that length is missing; [`Error::QuotaExceeded`]; [`Error::OtherPool`].
    #[inline]
    pub fn allocate(&self, n_pages: usize, request: &Request) -> Result<Pages> {
        Ok(self.prepare(n_pages, request)?.commit())
    }

    /// The first phase of [`allocate`](Self::allocate): counts the pages and sets them aside.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    #[inline]
    pub fn prepare(&self, n_pages: usize, request: &Request) -> Result<Reservation> {
        match request.pressure {
            PressurePolicy::Reject => self.reserve(n_pages, request),
            policy => self.reserve_under_pressure(n_pages, request, policy),
        }
    }

    #[cold]
    fn reserve_under_pressure(
        &self,
        n_pages: usize,
        request: &Request,
        policy: PressurePolicy,
    ) -> Result<Reservation> {
        let mut claim = PageClaim { pool: self, n_pages, request, made: Err(Error::NoPages) };
        self.make_room(&request.tenant, policy, &mut claim)?;
        claim.made
    }

    fn reserve(&self, n_pages: usize, request: &Request) -> Result<Reservation> {
        let shared = &self.shared;
        if n_pages == 0 {
            return Err(Error::NoPages);
        }
        let account = shared.account(&request.tenant)?;
        shared.charge(account, n_pages)?;
        let Some(span) = shared.take(n_pages, account.id) else {
            account.refund(n_pages);
            return Err(shared.exhausted(n_pages));
        };
        Ok(Reservation::new(Arc::clone(shared), span, n_pages, request))
    }

    /// The tenant with a path like `org/team/user`: one to eight names. It and its ancestors are
    /// made when they are new, and exist as long as the pool.
    ///
    /// # Errors
    /// [`Error::TenantPath`] for empty names, more than eight, or more than 255 bytes.
    pub fn tenant(&self, path: &str) -> Result<Tenant> {
        Ok(Tenant(Some(self.shared.tenants.get_or_create(path)?)))
    }

    /// Limits a tenant together with its descendants, from the next request on. The root's hard
    /// quota is the capacity, and cannot be raised beyond it.
    ///
    /// # Errors
    /// [`Error::OtherPool`].
    pub fn set_quota(&self, tenant: &Tenant, quota: Quota) -> Result<()> {
        let account = self.shared.account_handle(tenant)?;
        let most = if account.id == 0 { self.shared.capacity_pages } else { usize::MAX };
        let quota = Quota { hard_pages: quota.hard_pages.min(most), ..quota };
        self.shared.tenants.set_quota(&account, quota);
        Ok(())
    }

    /// What a tenant and its descendants have.
    ///
    /// # Errors
    /// [`Error::OtherPool`].
    pub fn usage(&self, tenant: &Tenant) -> Result<TenantUsage> {
        Ok(self.shared.account(tenant)?.usage())
    }

    /// What a tenant, its parent and so on up to the root have, with their paths: a request needs
    /// room with each of them.
    ///
    /// # Errors
    /// [`Error::OtherPool`].
    pub fn usages<'a>(
        &'a self,
        tenant: &'a Tenant,
    ) -> Result<impl Iterator<Item = (&'a str, TenantUsage)> + 'a> {
        let line = self.shared.account(tenant)?.line();
        Ok(line.map(|account| (account.path.as_str(), account.usage())))
    }

    /// Returns the memory of all free pages to the system.
    pub fn trim(&self) {
        self.shared.drain_caches();
        self.shared.discard_free(&mut lock(&self.shared.runs), usize::MAX);
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.shared.page_bytes
    }

    /// Pages in the budget.
    pub fn capacity_pages(&self) -> usize {
        self.shared.capacity_pages
    }

    #[inline]
    pub(crate) fn region(&self) -> &Region {
        &self.shared.region
    }

    /// Counts, taken one after another: while other threads are at work they need not add up.
    pub fn stats(&self) -> PoolStats {
        let shared = &self.shared;
        let (mut cached_pages, mut cache_hits, mut cache_misses) = (0, 0, 0);
        for cache in shared.caches.each() {
            cached_pages += cache.pages.len();
            cache_hits += cache.hits;
            cache_misses += cache.misses;
        }
        let used_pages = shared.tenants.root.used();
        let free_pages = shared.capacity_pages.saturating_sub(used_pages);
        PoolStats {
            page_bytes: shared.page_bytes,
            capacity_pages: shared.capacity_pages,
            used_pages,
            free_pages,
            cached_pages,
            resident_pages: shared.resident_pages.load(Ordering::Relaxed),
            returned_pages: shared.returned_pages.load(Ordering::Relaxed),
            largest_run_pages: shared.longest_run_pages().min(free_pages),
            cache_hits,
            cache_misses,
            pressure: shared.counts.stats(),
        }
    }
}

impl Shared {
    /// The account of a tenant of this pool.
    #[inline]
    pub(crate) fn account<'a>(&'a self, tenant: &'a Tenant) -> Result<&'a Account> {
        match &tenant.0 {
            None => Ok(&self.tenants.root),
            Some(account) if account.is_of(self.id) => Ok(account),
            Some(_) => Err(Error::OtherPool { what: "tenant" }),
        }
    }

    /// As [`account`](Self::account), to be kept.
    pub(crate) fn account_handle(&self, tenant: &Tenant) -> Result<Arc<Account>> {
        self.account(tenant)?;
        Ok(Arc::clone(tenant.0.as_ref().unwrap_or(&self.tenants.root)))
    }

    /// Counts pages for a tenant, after taking spare pages of slabs if its quota or the pool is
    /// short.
    #[inline]
    fn charge(&self, account: &Account, n_pages: usize) -> Result<()> {
        account.charge(n_pages).or_else(|short| self.charge_spare(account, n_pages, short))
    }

    #[cold]
    fn charge_spare<'a>(&self, account: &'a Account, n_pages: usize, mut short: &'a Account) -> Result<()> {
        // Others may take what was freed, and another quota may be short then.
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

    /// Takes spare pages of slabs until `scope` uses at most `target_pages`; returns how many were
    /// taken.
    #[cold]
    pub(crate) fn release_spare(&self, scope: &Account, target_pages: usize) -> usize {
        let mut released = 0;
        for slab in self.spares.slabs() {
            if scope.used() <= target_pages {
                break;
            }
            released += slab.release_spare(scope);
        }
        released
    }

    #[cold]
    fn exhausted(&self, wanted_pages: usize) -> Error {
        self.drain_caches();
        // The root's quota, which may have been set below the pool's size.
        let capacity_pages = self.tenants.root.usage().quota.hard_pages;
        let free_pages = capacity_pages.saturating_sub(self.tenants.root.used());
        let largest_run_pages = self.longest_run_pages().min(free_pages);
        Error::Exhausted { wanted_pages, free_pages, largest_run_pages, capacity_pages }
    }

    /// Free pages in one piece, with memory behind them. They are counted already.
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
        // Rather one that needs no zeroing.
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
                // All at once: whatever is counted as free is in sight then, so a single page is
                // always found.
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
            // The rest lies in caches: pages in use never exceed the capacity.
            drop(runs);
            self.drain_caches();
            self.discard_free(&mut lock(&self.runs), excess);
        }
        Some(span)
    }

    /// Takes pages back that are not in use any more.
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

    /// Returns the memory of at least `wanted` pages of free runs, if there are so many; how many
    /// it were.
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

    fn drain_caches(&self) {
        let mut caches = self.caches.all();
        drain(&mut caches, &mut lock(&self.runs));
    }

    fn longest_run_pages(&self) -> usize {
        lock(&self.runs).longest() / self.page_bytes
    }
}

/// Moves the pages of all caches to the free runs, where any thread and any length finds them.
///
/// Locks are taken in this order, caches before runs, and otherwise one at a time.
fn drain(caches: &mut [MutexGuard<'_, Cache>], runs: &mut FreeRuns) {
    for cache in caches {
        cache.pages.drain(..).for_each(|page| runs.insert(page));
    }
}

/// Pages that a request asks for, with nothing of its own to yield.
struct PageClaim<'a> {
    pool: &'a PagePool,
    n_pages: usize,
    request: &'a Request,
    made: Result<Reservation>,
}

impl Claim for PageClaim<'_> {
    type Error = Error;

    fn take(&mut self) -> Result<()> {
        self.made = Ok(self.pool.reserve(self.n_pages, self.request)?);
        Ok(())
    }

    fn short_tenant<'a>(&self, error: &'a Error) -> Option<&'a str> {
        error.short_tenant()
    }

    fn yield_own(&mut self, _: Rung) -> bool {
        false
    }
}

impl std::fmt::Debug for PagePool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PagePool").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
