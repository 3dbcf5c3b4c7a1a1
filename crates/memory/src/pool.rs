//! Handle of a pool: requests, tenants, offers of owners.

use std::sync::{Arc, Weak};

use crate::pressure::{
    Claim, Offer, Offered, OwnerId, PressureOwner, PressurePolicy, Rung, UnitId, Use, make_room, relieve,
};
use crate::state::PoolState;
use crate::sync::lock;
use crate::{Error, Pages, PoolConfig, PoolStats, Quota, Request, Reservation, Result, Tenant, TenantUsage};

/// A memory budget in pages, shared by threads and tenants. Clones are handles of the same pool.
///
/// See the [crate] for an example.
#[derive(Clone)]
pub struct PagePool {
    pub(crate) state: Arc<PoolState>,
}

impl PagePool {
    /// Creates a pool: reserves addresses, takes no memory yet.
    ///
    /// # Errors
    /// [`Error::Config`] for a setting out of range, [`Error::Reserve`] when the system refuses the
    /// addresses.
    pub fn new(config: PoolConfig) -> Result<Self> {
        Ok(Self { state: Arc::new(PoolState::new(&config)?) })
    }

    /// Allocates `n_pages` contiguous pages. If memory is short, units of owners are evicted under
    /// the request's policy.
    ///
    /// # Errors
    /// [`Error::NoPages`] for 0 pages; [`Error::Exhausted`] if memory or a contiguous range of that
    /// length is missing; [`Error::QuotaExceeded`]; [`Error::OtherPool`].
    #[inline]
    pub fn allocate(&self, n_pages: usize, request: &Request) -> Result<Pages> {
        Ok(self.prepare(n_pages, request)?.commit())
    }

    /// First phase of [`allocate`](Self::allocate): charges and reserves the pages.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    #[inline]
    pub fn prepare(&self, n_pages: usize, request: &Request) -> Result<Reservation> {
        match request.pressure {
            PressurePolicy::Reject => Reservation::new(&self.state, n_pages, request),
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
        let mut claim = PageClaim { pool: &self.state, n_pages, request, made: Err(Error::NoPages) };
        self.make_room(&request.tenant, policy, &mut claim)?;
        claim.made
    }

    /// Returns the tenant of a path like `org/team/user`: one to eight names. Missing tenants are
    /// created with their ancestors and exist as long as the pool.
    ///
    /// # Errors
    /// [`Error::TenantPath`] for empty names, more than eight, or more than 255 bytes.
    pub fn tenant(&self, path: &str) -> Result<Tenant> {
        Ok(Tenant(Some(self.state.tenants.get_or_create(path)?)))
    }

    /// Sets the quota of a tenant and its descendants, from the next request on. The root's hard
    /// quota is at most the capacity.
    ///
    /// # Errors
    /// [`Error::OtherPool`].
    pub fn set_quota(&self, tenant: &Tenant, quota: Quota) -> Result<()> {
        let account = self.state.account_handle(tenant)?;
        let most = if account.id == 0 { self.state.capacity_pages } else { usize::MAX };
        let quota = Quota { hard_pages: quota.hard_pages.min(most), ..quota };
        self.state.tenants.set_quota(&account, quota);
        Ok(())
    }

    /// Usage of a tenant and its descendants.
    ///
    /// # Errors
    /// [`Error::OtherPool`].
    pub fn usage(&self, tenant: &Tenant) -> Result<TenantUsage> {
        Ok(self.state.account(tenant)?.usage())
    }

    /// Paths and usages of a tenant and its ancestors up to the root; a request needs room in each.
    ///
    /// # Errors
    /// [`Error::OtherPool`].
    pub fn usages<'a>(
        &'a self,
        tenant: &'a Tenant,
    ) -> Result<impl Iterator<Item = (&'a str, TenantUsage)> + 'a> {
        let line = self.state.account(tenant)?.line();
        Ok(line.map(|account| (account.path.as_str(), account.usage())))
    }

    /// Returns the memory of all free pages to the system.
    pub fn trim(&self) {
        self.state.trim();
    }

    /// Page size in bytes.
    pub fn page_bytes(&self) -> usize {
        self.state.page_bytes
    }

    /// Size of the budget in pages.
    pub fn capacity_pages(&self) -> usize {
        self.state.capacity_pages
    }

    /// Counters, read one after another: inconsistent while other threads allocate.
    pub fn stats(&self) -> PoolStats {
        self.state.stats()
    }

    /// Registers an owner; the pool holds a weak reference.
    pub fn register(&self, owner: Weak<dyn PressureOwner>) -> OwnerId {
        self.state.owners.add(self.state.id, owner)
    }

    /// Current logical time, for [`Offer::used`].
    pub fn now(&self, rung: Rung) -> Use {
        self.state.clock.now(rung)
    }

    /// Offers a unit of an owner for eviction, replacing an earlier offer of the unit. Later uses
    /// are not reported; the owner returns them when asked for the unit
    /// ([`Release::Used`](crate::Release::Used)).
    ///
    /// # Errors
    /// [`Error::OtherPool`].
    pub fn offer(&self, owner: OwnerId, unit: u64, offer: Offer<'_>) -> Result<()> {
        if owner.pool != self.state.id {
            return Err(Error::OtherPool { what: "owner" });
        }
        let account = self.state.account_handle(offer.tenant)?;
        let id = UnitId { owner: owner.index, unit };
        let offered = Offered::new(id, offer.rung, offer.cost, offer.used, account);
        lock(&self.state.order).insert(offered);
        Ok(())
    }

    /// Relieves memory pressure between two steps of a sequence: if the tenant or an ancestor is
    /// above a watermark of the policy, down to the low watermark or until nothing is left to
    /// evict.
    pub fn relieve<C: Claim>(&self, tenant: &Tenant, policy: PressurePolicy, claim: &mut C) {
        relieve(&self.state, tenant, policy, claim);
    }

    /// Makes room for a claim: evicts rung by rung under the policy, in the scope of the exceeded
    /// quota.
    ///
    /// # Errors
    /// The claim's error once nothing is left to evict.
    pub fn make_room<C: Claim>(
        &self,
        tenant: &Tenant,
        policy: PressurePolicy,
        claim: &mut C,
    ) -> Result<(), C::Error> {
        make_room(&self.state, tenant, policy, claim)
    }

    /// Number of offered units.
    pub fn offered_units(&self) -> usize {
        lock(&self.state.order).len()
    }
}

/// Claim of a plain page request, without memory of its own to yield.
struct PageClaim<'a> {
    pool: &'a Arc<PoolState>,
    n_pages: usize,
    request: &'a Request,
    made: Result<Reservation>,
}

impl Claim for PageClaim<'_> {
    type Error = Error;

    fn take(&mut self) -> Result<()> {
        self.made = Ok(Reservation::new(self.pool, self.n_pages, self.request)?);
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
