//! Order of eviction: `GreedyDual`-Size over the units of each tenant.
//!
//! A unit's key is `L + cost`: `L` is the inflation at its last use, `cost` the time to restore a
//! MiB of it. The unit with the lowest key is evicted first, and `L` becomes its key, so that
//! unused units are overtaken by newer ones, cheap units sooner. Equal costs give LRU order.
//!
//! # Source
//! Cao and Irani, "Cost-Aware WWW Proxy Caching Algorithms" (USITS 1997).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::pressure::Rung;
use crate::pressure::policy::N_RUNGS;
use crate::tenant::Account;

/// Logical time of a use of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    /// Inflation of the unit's rung at that time.
    pub inflation: u64,
    /// Number of earlier uses, of all units.
    pub turn: u64,
}

/// Lock-free logical clock.
#[derive(Default)]
pub(crate) struct Clock {
    turn: AtomicU64,
    inflation: [AtomicU64; N_RUNGS],
}

impl Clock {
    pub(crate) fn now(&self, rung: Rung) -> Use {
        let inflation = self.inflation[rung as usize].load(Relaxed);
        Use { inflation, turn: self.turn.fetch_add(1, Relaxed) }
    }

    /// Raises the rung's inflation to the key of an evicted unit.
    pub(super) fn evicted(&self, place: Place) {
        self.inflation[place.rung as usize].fetch_max(place.key, Relaxed);
    }
}

/// A unit of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct UnitId {
    pub(crate) owner: u32,
    pub(crate) unit: u64,
}

/// Position in the order; the lowest is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    rung: Rung,
    key: u64,
    pub(super) turn: u64,
    pub(super) id: UnitId,
}

/// An offered unit.
pub(crate) struct Offered {
    pub(super) place: Place,
    cost: u64,
    account: Arc<Account>,
}

impl Offered {
    pub(crate) fn new(id: UnitId, rung: Rung, cost: u64, used: Use, account: Arc<Account>) -> Self {
        let Use { inflation, turn } = used;
        let place = Place { rung, key: inflation.saturating_add(cost), turn, id };
        Self { place, cost, account }
    }

    pub(super) fn rung(&self) -> Rung {
        self.place.rung
    }

    /// Updates the last use, if `used` is later.
    pub(super) fn used(self, used: Use) -> Self {
        if used.turn <= self.place.turn {
            return self;
        }
        Self::new(self.place.id, self.place.rung, self.cost, used, self.account)
    }
}

/// All offers: by unit, and ordered for each account that they are charged to.
#[derive(Default)]
pub(crate) struct Order {
    offers: HashMap<UnitId, Offered>,
    /// By account id.
    by_account: Vec<BTreeSet<Place>>,
}

impl Order {
    pub(crate) fn len(&self) -> usize {
        self.offers.len()
    }

    /// Offers a unit, or replaces its offer.
    pub(crate) fn insert(&mut self, offered: Offered) {
        let id = offered.place.id;
        self.remove(id);
        for account in offered.account.line() {
            let index = account.id as usize;
            if self.by_account.len() <= index {
                self.by_account.resize_with(index + 1, BTreeSet::new);
            }
            self.by_account[index].insert(offered.place);
        }
        self.offers.insert(id, offered);
    }

    /// Puts a taken offer back, unless its owner has offered the unit again meanwhile.
    pub(super) fn put_back(&mut self, offered: Offered) {
        if !self.offers.contains_key(&offered.place.id) {
            self.insert(offered);
        }
    }

    /// Takes the first offer of a rung that is charged to one of `accounts`.
    pub(super) fn take_first(&mut self, rung: Rung, accounts: impl Iterator<Item = u32>) -> Option<Offered> {
        let first = |account: u32| {
            let least = UnitId { owner: 0, unit: 0 };
            let from = Place { rung, key: 0, turn: 0, id: least };
            let place = self.by_account.get(account as usize)?.range(from..).next()?;
            (place.rung == rung).then_some(*place)
        };
        let place = accounts.filter_map(first).min()?;
        self.remove(place.id)
    }

    fn remove(&mut self, id: UnitId) -> Option<Offered> {
        let offered = self.offers.remove(&id)?;
        for account in offered.account.line() {
            self.by_account[account.id as usize].remove(&offered.place);
        }
        Some(offered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: [u32; 1] = [0];

    fn offered(unit: u64, cost: u64, used: Use, account: &Arc<Account>) -> Offered {
        Offered::new(UnitId { owner: 0, unit }, Rung::Prefix, cost, used, Arc::clone(account))
    }

    #[test]
    fn equal_costs_leave_by_last_use() {
        let (mut order, clock) = (Order::default(), Clock::default());
        let root = Arc::new(Account::root(0, 100));
        for unit in 0..4 {
            order.insert(offered(unit, 7, clock.now(Rung::Prefix), &root));
        }
        order.insert(offered(1, 7, clock.now(Rung::Prefix), &root));
        let left: Vec<u64> = std::iter::from_fn(|| order.take_first(Rung::Prefix, ROOT.into_iter()))
            .map(|o| o.place.id.unit)
            .collect();
        assert_eq!(left, [0, 2, 3, 1]);
        assert_eq!(order.len(), 0);
    }

    #[test]
    fn cost_keeps_a_unit_until_it_is_overtaken() {
        let (mut order, clock) = (Order::default(), Clock::default());
        let root = Arc::new(Account::root(0, 100));
        order.insert(offered(100, 35, clock.now(Rung::Prefix), &root));
        let mut left = Vec::new();
        for unit in 0..8 {
            order.insert(offered(unit, 10, clock.now(Rung::Prefix), &root));
            let first = order.take_first(Rung::Prefix, ROOT.into_iter()).expect("there are two");
            clock.evicted(first.place);
            left.push(first.place.id.unit);
        }
        // Keys 10, 20, 30 are below 35; the fourth cheap unit has 40.
        assert_eq!(left[..4], [0, 1, 2, 100]);
    }

    #[test]
    fn offers_are_found_by_all_accounts_that_they_count_for() {
        let root = Arc::new(Account::root(0, 100));
        let [ann, bob] = [1, 2].map(|id| Arc::new(Account::child(id, "child", &root)));
        let mut order = Order::default();
        let used = |turn| Use { inflation: 0, turn };
        order.insert(offered(0, 1, used(0), &ann));
        order.insert(offered(1, 1, used(1), &bob));
        let first = order.take_first(Rung::Prefix, [2].into_iter()).expect("bob's");
        assert_eq!(first.place.id.unit, 1);
        assert!(order.take_first(Rung::Prefix, [2].into_iter()).is_none());
        assert!(order.take_first(Rung::Hot, ROOT.into_iter()).is_none());
        order.put_back(first);
        assert_eq!(order.take_first(Rung::Prefix, ROOT.into_iter()).expect("the older").place.id.unit, 0);
    }
}
