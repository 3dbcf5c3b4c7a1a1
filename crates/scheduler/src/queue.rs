//! Waiting requests that may start, and the tenant whose turn it is.

use std::collections::BTreeSet;

use crate::entries::Slot;
use crate::rank::Rank;
use crate::shares::Rounds;
use crate::tenants::Tenants;

/// Tenants with credit that are looked at for one below its share.
const SEARCH: usize = 32;

/// Key of a tenant with credit: highest priority of a first request, then least service, then rank.
type Ready = (i32, i64, Rank, usize);

/// Order of the tenants that have requests in their queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) tenants: Tenants,
    /// Shares of admission.
    pub(crate) rounds: Rounds,
    ready: BTreeSet<Ready>,
    /// Tenants without credit, by the round in which they have some.
    indebted: BTreeSet<(i64, usize)>,
    /// Key of each tenant in one of the two, by its index.
    turns: Vec<Option<Turn>>,
    fair: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Turn {
    Ready(Ready),
    Indebted(i64),
}

impl Queue {
    pub(crate) fn new(rounds: Rounds, fair: bool) -> Self {
        Self {
            tenants: Tenants::default(),
            rounds,
            ready: BTreeSet::new(),
            indebted: BTreeSet::new(),
            turns: Vec::new(),
            fair,
        }
    }

    /// Adds a request to the queue of its tenant.
    pub(crate) fn insert(&mut self, at: usize, rank: Rank, slot: Slot, prefix: Option<u64>) {
        let tenant = self.tenants.get_mut(at);
        tenant.queue.insert((rank, slot));
        if let Some(hash) = prefix {
            tenant.groups.insert((hash, rank, slot));
        }
    }

    /// Removes a request from the queue of its tenant.
    pub(crate) fn remove(&mut self, at: usize, rank: Rank, slot: Slot, prefix: Option<u64>) {
        let tenant = self.tenants.get_mut(at);
        tenant.queue.remove(&(rank, slot));
        if let Some(hash) = prefix {
            tenant.groups.remove(&(hash, rank, slot));
        }
    }

    /// Charges tokens to a tenant.
    pub(crate) fn charge(&mut self, at: usize, tokens: usize) {
        let contended = self.tenants.others_wait(at);
        let tenant = self.tenants.get_mut(at);
        self.rounds.charge(&mut tenant.admission, tenant.weight, tokens, contended);
    }

    /// Returns tokens that a tenant was charged in vain.
    pub(crate) fn refund(&mut self, at: usize, tokens: usize) {
        let tenant = self.tenants.get_mut(at);
        self.rounds.refund(&mut tenant.admission, tenant.weight, tokens);
    }

    /// Puts a tenant where its account and its first request, of priority `priority`, belong. To be
    /// called after every change of either.
    pub(crate) fn update(&mut self, at: usize, priority: impl Fn(Slot) -> i32) {
        let tenant = self.tenants.get(at);
        let turn = tenant.queue.first().map(|&(rank, slot)| {
            let turn = tenant.admission.turn();
            if !self.fair {
                Turn::Ready((0, 0, rank, at))
            } else if self.rounds.has_credit(tenant.admission) {
                Turn::Ready((-priority(slot), turn, rank, at))
            } else {
                Turn::Indebted(turn)
            }
        });
        if self.turns.len() <= at {
            self.turns.resize(at + 1, None);
        }
        if self.turns[at] == turn {
            return;
        }
        match std::mem::replace(&mut self.turns[at], turn) {
            Some(Turn::Ready(key)) => drop(self.ready.remove(&key)),
            Some(Turn::Indebted(round)) => drop(self.indebted.remove(&(round, at))),
            None => {}
        }
        match turn {
            Some(Turn::Ready(key)) => drop(self.ready.insert(key)),
            Some(Turn::Indebted(round)) => drop(self.indebted.insert((round, at))),
            None => {}
        }
    }

    /// Tenant whose turn it is; begins the next round if nobody with a request has credit.
    pub(crate) fn next(&mut self, priority: impl Fn(Slot) -> i32) -> Option<usize> {
        self.pay(&priority);
        if self.ready.is_empty() {
            let &(turn, _) = self.indebted.first()?;
            self.rounds.advance_to(turn);
            self.pay(&priority);
        }
        self.ready.first().map(|key| key.3)
    }

    /// Tenant whose turn it is among those with credit that `suits`.
    pub(crate) fn next_where(
        &mut self,
        priority: impl Fn(Slot) -> i32,
        suits: impl Fn(&Self, usize) -> bool,
    ) -> Option<usize> {
        self.pay(&priority);
        self.ready.iter().take(SEARCH).map(|key| key.3).find(|&at| suits(self, at))
    }

    /// Moves tenants whose debt is paid to those with credit.
    fn pay(&mut self, priority: impl Fn(Slot) -> i32) {
        while let Some(&(turn, at)) = self.indebted.first()
            && turn <= self.rounds.current()
        {
            self.update(at, &priority);
        }
    }
}
