//! One round up the ladder: at a watermark, or for a request without room.

use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::order::{Offered, UnitId};
use super::policy::UNTIL;
use super::{Demand, Offer, OwnerId, PressureOwner, PressurePolicy, Release, Rung, Use};
use crate::pool::Shared;
use crate::stats::PressureStats;
use crate::sync::lock;
use crate::tenant::Account;
use crate::{Error, PagePool, Result, Tenant};

/// A request for room, with the rungs that it yields itself.
pub trait Claim {
    /// Error of a request without room.
    type Error;

    /// Takes the room.
    ///
    /// # Errors
    /// Without room, or for another reason.
    fn take(&mut self) -> Result<(), Self::Error>;

    /// Path of the tenant whose quota was short, empty for the pool itself; `None` if no memory
    /// would help.
    fn short_tenant<'a>(&self, error: &'a Self::Error) -> Option<&'a str>;

    /// Yields memory of its own; `false` if it has none in this rung.
    fn yield_own(&mut self, rung: Rung) -> bool;

    /// Pages of each quota that it leaves free, where there are four times as many.
    fn kept_pages(&self) -> usize {
        0
    }
}

/// Counts of the ladder.
#[derive(Default)]
pub(crate) struct Counts {
    evicted_units: AtomicU64,
    refusals: AtomicU64,
}

/// A round: units in use are set aside until it ends.
struct Round<'a> {
    pool: &'a Shared,
    pinned: Vec<Offered>,
}

impl PagePool {
    /// Makes an owner known. The pool does not keep it alive.
    pub fn register(&self, owner: Weak<dyn PressureOwner>) -> OwnerId {
        self.shared.owners.add(self.shared.id, owner)
    }

    /// The time of a use that happens now, for a later [`offer`](Self::offer).
    pub fn now(&self, rung: Rung) -> Use {
        self.shared.clock.now(rung)
    }

    /// Offers a unit of an owner, which may be evicted from now on; an earlier offer of the unit is
    /// replaced. A use of a unit need not be told: the owner answers with it when it is asked
    /// ([`Release::Used`]).
    ///
    /// # Errors
    /// [`Error::OtherPool`].
    pub fn offer(&self, owner: OwnerId, unit: u64, offer: Offer<'_>) -> Result<()> {
        if owner.pool != self.shared.id {
            return Err(Error::OtherPool { what: "owner" });
        }
        let account = self.shared.account_handle(offer.tenant)?;
        let id = UnitId { owner: owner.index, unit };
        let offered = Offered::new(id, offer.rung, offer.cost, offer.used, account);
        lock(&self.shared.order).insert(offered);
        Ok(())
    }

    /// Yields memory where the tenant or one above it uses its quota beyond a watermark of the
    /// policy, until the low one or until nothing is left. For the time between two steps of a
    /// sequence.
    pub fn relieve<C: Claim>(&self, tenant: &Tenant, policy: PressurePolicy, claim: &mut C) {
        let Ok(account) = self.shared.account(tenant) else { return };
        let (kept, is_over_soft) = (claim.kept_pages(), account.is_over_soft_quota());
        for scope in account.line() {
            let target = scope.pages_within(kept, UNTIL);
            for (mark, &rung) in policy.at_marks().iter().enumerate() {
                let is_early = mark == 0 && is_over_soft && scope.used() > target;
                if scope.is_beyond(mark, kept, target) || is_early {
                    self.shared.release_spare(scope, target);
                    let mut round = Round { pool: &self.shared, pinned: Vec::new() };
                    while scope.used() > target && round.yield_rung(rung, scope, target, false, claim) {}
                }
            }
            scope.reached(target);
        }
    }

    /// Takes the room of a claim, for which the rungs of the policy yield, one after the other, in
    /// the scope of the quota that is short.
    ///
    /// # Errors
    /// That of the claim, once nothing is left to yield.
    pub fn make_room<C: Claim>(
        &self,
        tenant: &Tenant,
        policy: PressurePolicy,
        claim: &mut C,
    ) -> Result<(), C::Error> {
        let mut round = Round { pool: &self.shared, pinned: Vec::new() };
        loop {
            let Err(error) = claim.take() else { return Ok(()) };
            let (Some(path), Ok(account)) = (claim.short_tenant(&error), self.shared.account(tenant)) else {
                return Err(error);
            };
            let Some(scope) = account.line().find(|account| account.path == path) else { return Err(error) };
            let rungs = policy.for_request().iter();
            if !rungs.copied().any(|rung| round.yield_rung(rung, scope, 0, true, claim)) {
                return Err(error);
            }
        }
    }

    /// Units that owners offer.
    pub fn offered_units(&self) -> usize {
        lock(&self.shared.order).len()
    }
}

impl Round<'_> {
    /// Yields some memory of a rung; `false` if there is none. `target` is the use of `scope` that
    /// is aimed at.
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

    /// Evicts a unit of a rung, or a part of one.
    fn evict(&mut self, rung: Rung, scope: &Account, demand: Demand) -> bool {
        while let Some(offered) = self.take_first(rung, scope) {
            let UnitId { owner, unit } = offered.place.id;
            let Some(owner) = self.pool.owners.get(owner) else { continue };
            match owner.release(unit, Demand { last_use: offered.place.turn, ..demand }) {
                Release::Released { has_rest } => {
                    self.pool.clock.evicted(offered.place);
                    self.pool.counts.evicted_units.fetch_add(1, Relaxed);
                    if has_rest {
                        lock(&self.pool.order).put_back(offered);
                    }
                    return true;
                }
                Release::Used(used) => lock(&self.pool.order).put_back(offered.used(used)),
                Release::Pinned => self.pinned.push(offered),
                Release::Gone => {}
                Release::Refused => {
                    self.pool.counts.refusals.fetch_add(1, Relaxed);
                    lock(&self.pool.order).put_back(offered);
                    return false;
                }
            }
        }
        false
    }

    /// The first unit of a rung in `scope`: of tenants beyond their soft quota, if there is one.
    fn take_first(&self, rung: Rung, scope: &Account) -> Option<Offered> {
        let over = self.pool.tenants.over_soft_quota(scope);
        let mut order = lock(&self.pool.order);
        let first = order.take_first(rung, over.iter().map(|account| account.id));
        first.or_else(|| order.take_first(rung, std::iter::once(scope.id)))
    }
}

impl Drop for Round<'_> {
    /// What is in use now was used last.
    fn drop(&mut self) {
        for offered in self.pinned.drain(..) {
            let used = self.pool.clock.now(offered.rung());
            lock(&self.pool.order).put_back(offered.used(used));
        }
    }
}

impl Counts {
    pub(crate) fn stats(&self) -> PressureStats {
        PressureStats {
            evicted_units: self.evicted_units.load(Relaxed),
            refusals: self.refusals.load(Relaxed),
        }
    }
}
