//! One pass over the ladder: at a watermark, or for a request without room.

use std::sync::atomic::Ordering::Relaxed;

use super::order::{Offered, UnitId};
use super::policy::UNTIL;
use super::{Demand, PressurePolicy, Release, Rung};
use crate::state::PoolState;
use crate::sync::lock;
use crate::tenant::Account;
use crate::{Result, Tenant};

/// A request for memory that can release memory of its own.
pub trait Claim {
    /// Error of a failed request.
    type Error;

    /// Tries to allocate.
    ///
    /// # Errors
    /// Too little memory, or another reason.
    fn take(&mut self) -> Result<(), Self::Error>;

    /// Path of the tenant whose quota was exceeded, empty for the pool; `None` if more memory would
    /// not help.
    fn short_tenant<'a>(&self, error: &'a Self::Error) -> Option<&'a str>;

    /// Releases memory of its own; false if it has none in this rung.
    fn yield_own(&mut self, rung: Rung) -> bool;

    /// Pages of each quota that stay unused by it; counted up to a quarter of the quota.
    fn kept_pages(&self) -> usize {
        0
    }
}

/// A pass over the ladder; pinned units are set aside until its end.
struct Round<'a> {
    pool: &'a PoolState,
    pinned: Vec<Offered>,
}

/// See [`PagePool::relieve`](crate::PagePool::relieve).
pub(crate) fn relieve<C: Claim>(pool: &PoolState, tenant: &Tenant, policy: PressurePolicy, claim: &mut C) {
    let Ok(account) = pool.account(tenant) else { return };
    let (kept, is_over_soft) = (claim.kept_pages(), account.is_over_soft_quota());
    for scope in account.line() {
        let target = scope.pages_within(kept, UNTIL);
        for (mark, rungs) in policy.at_marks().into_iter().enumerate().filter(|(_, rungs)| !rungs.is_empty())
        {
            let is_early = mark == 0 && is_over_soft && scope.used() > target;
            if scope.is_beyond(mark, kept, target) || is_early {
                pool.release_spare(scope, target);
                let mut round = Round { pool, pinned: Vec::new() };
                while scope.used() > target
                    && rungs.iter().any(|&rung| round.yield_rung(rung, scope, target, false, claim))
                {
                }
            }
        }
        scope.reached(target);
    }
}

/// See [`PagePool::make_room`](crate::PagePool::make_room).
pub(crate) fn make_room<C: Claim>(
    pool: &PoolState,
    tenant: &Tenant,
    policy: PressurePolicy,
    claim: &mut C,
) -> Result<(), C::Error> {
    let mut round = Round { pool, pinned: Vec::new() };
    loop {
        let Err(error) = claim.take() else { return Ok(()) };
        let (Some(path), Ok(account)) = (claim.short_tenant(&error), pool.account(tenant)) else {
            return Err(error);
        };
        let Some(scope) = account.line().find(|account| account.path == path) else { return Err(error) };
        let rungs = policy.for_request().iter();
        if !rungs.copied().any(|rung| round.yield_rung(rung, scope, 0, true, claim)) {
            return Err(error);
        }
    }
}

impl Round<'_> {
    /// Releases some memory of a rung; false if there is none. `target`: intended use of `scope`,
    /// in pages.
    fn yield_rung<C: Claim>(
        &mut self,
        rung: Rung,
        scope: &Account,
        target: usize,
        is_urgent: bool,
        claim: &mut C,
    ) -> bool {
        let pages = if is_urgent { 1 } else { scope.used().saturating_sub(target).max(1) };
        let demand = Demand { bytes: pages * self.pool.page_bytes, is_urgent, last_use: 0 };
        claim.yield_own(rung) || self.evict(rung, scope, demand)
    }

    /// Evicts a unit of a rung, or a part of it; false if there is none.
    fn evict(&mut self, rung: Rung, scope: &Account, demand: Demand) -> bool {
        while let Some(offered) = self.take_first(rung, scope) {
            let UnitId { owner, unit } = offered.place.id;
            let Some(owner) = self.pool.owners.get(owner) else { continue };
            match owner.release(unit, Demand { last_use: offered.place.turn, ..demand }) {
                Release::Released { has_rest } => {
                    self.pool.clock.evicted(offered.place);
                    self.pool.evicted_units.fetch_add(1, Relaxed);
                    if has_rest {
                        lock(&self.pool.order).put_back(offered);
                    }
                    return true;
                }
                Release::Used(used) => lock(&self.pool.order).put_back(offered.used(used)),
                Release::Pinned => self.pinned.push(offered),
                Release::Gone => {}
                Release::Refused => {
                    self.pool.refusals.fetch_add(1, Relaxed);
                    lock(&self.pool.order).put_back(offered);
                    return false;
                }
            }
        }
        false
    }

    /// Takes the first unit of a rung in `scope`; units of tenants beyond their soft quota come
    /// first.
    fn take_first(&self, rung: Rung, scope: &Account) -> Option<Offered> {
        let over = self.pool.tenants.over_soft_quota(scope);
        let mut order = lock(&self.pool.order);
        let first = order.take_first(rung, over.iter().map(|account| account.id));
        first.or_else(|| order.take_first(rung, std::iter::once(scope.id)))
    }
}

impl Drop for Round<'_> {
    /// Puts pinned units back, with the current time as last use.
    fn drop(&mut self) {
        for offered in self.pinned.drain(..) {
            let used = self.pool.clock.now(offered.rung());
            lock(&self.pool.order).put_back(offered.used(used));
        }
    }
}
