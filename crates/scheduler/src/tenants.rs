//! Tenants: weights, accounts, and the waiting requests of each.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::entries::Slot;
use crate::rank::Rank;
use crate::request::TenantId;
use crate::shares::Account;

/// Weights are limited so that no account loses its precision.
const WEIGHTS: (f64, f64) = (1.0 / 1024.0, 1024.0);

/// One tenant.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) id: TenantId,
    pub(crate) weight: f64,
    /// True if the weight was set: the tenant is not forgotten.
    pub(crate) is_weighted: bool,
    /// Service charged when requests start, new tokens as they are sampled.
    pub(crate) admission: Account,
    /// Service charged as tokens are computed.
    pub(crate) computed: Account,
    /// Waiting requests, held and blocked ones too.
    pub(crate) waiting: usize,
    /// Prompt tokens of the waiting requests.
    pub(crate) waiting_prompt: usize,
    /// New tokens that the waiting requests may generate.
    pub(crate) waiting_output: usize,
    /// Refused requests that were told when to come back, less the places that came free.
    pub(crate) booked: usize,
    /// Running requests.
    pub(crate) running: usize,
    /// Tokens of the running requests in the KV cache.
    pub(crate) tokens: usize,
    pub(crate) last_seen: Duration,
    /// Waiting requests that may start.
    pub(crate) queue: BTreeSet<(Rank, Slot)>,
    /// The same by prefix.
    pub(crate) groups: BTreeSet<(u64, Rank, Slot)>,
}

impl Tenant {
    /// True if it has waiting or running requests.
    pub(crate) fn is_active(&self) -> bool {
        self.waiting + self.running > 0
    }
}

/// Sum of the weights of some tenants.
#[derive(Debug, Default, Clone, Copy)]
struct Weights {
    count: usize,
    sum: f64,
}

impl Weights {
    /// Counts a tenant that was among them, and is now or not.
    fn change(&mut self, was: bool, is: bool, weight: f64) {
        match (was, is) {
            (false, true) => *self = Self { count: self.count + 1, sum: self.sum + weight },
            // No rounding remains of those that have left.
            (true, false) if self.count == 1 => *self = Self::default(),
            (true, false) => *self = Self { count: self.count - 1, sum: self.sum - weight },
            (true, true) | (false, false) => {}
        }
    }
}

/// Tenants that have requests, had some lately, or have a weight.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    slots: Vec<Option<Tenant>>,
    free: Vec<usize>,
    index: HashMap<TenantId, usize>,
    /// Sum of the weights of tenants with requests.
    active: Weights,
    /// Sum of the weights of tenants with waiting requests.
    waiting: Weights,
    /// Next time to forget tenants.
    forget_at: Duration,
}

impl Tenants {
    /// The tenant at an index that a request or a tree names.
    pub(crate) fn get(&self, at: usize) -> &Tenant {
        self.slots[at].as_ref().expect("requests name occupied slots")
    }

    /// As [`get`](Self::get).
    pub(crate) fn get_mut(&mut self, at: usize) -> &mut Tenant {
        self.slots[at].as_mut().expect("requests name occupied slots")
    }

    /// Number of known tenants.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Sum of the weights of the tenants that wait, and of this one.
    pub(crate) fn weight_beside(&self, at: usize) -> f64 {
        let tenant = self.get(at);
        self.waiting.sum + if tenant.waiting > 0 { 0.0 } else { tenant.weight }
    }

    /// True if a tenant other than this one waits.
    pub(crate) fn others_wait(&self, at: usize) -> bool {
        self.waiting.count > usize::from(self.get(at).waiting > 0)
    }

    /// Part of the total that belongs to a tenant while it and all others with requests want more,
    /// and one more tenant of weight 1 may come.
    pub(crate) fn share(&self, at: usize) -> f64 {
        let tenant = self.get(at);
        let others = self.active.sum - if tenant.is_active() { tenant.weight } else { 0.0 };
        tenant.weight / (tenant.weight + others.max(1.0))
    }

    /// Index of a tenant, made with these accounts if it is not known.
    pub(crate) fn find_or_insert(&mut self, id: TenantId, admission: Account, computed: Account) -> usize {
        if let Some(&at) = self.index.get(&id) {
            return at;
        }
        let tenant = Tenant {
            id,
            weight: 1.0,
            is_weighted: false,
            admission,
            computed,
            waiting: 0,
            waiting_prompt: 0,
            waiting_output: 0,
            booked: 0,
            running: 0,
            tokens: 0,
            last_seen: Duration::ZERO,
            queue: BTreeSet::new(),
            groups: BTreeSet::new(),
        };
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[at] = Some(tenant);
        self.index.insert(id, at);
        at
    }

    /// Index of a known tenant.
    pub(crate) fn find(&self, id: TenantId) -> Option<usize> {
        self.index.get(&id).copied()
    }

    /// Sets a weight; what is no number or not positive counts as the least.
    pub(crate) fn set_weight(&mut self, at: usize, weight: f64) {
        let weight = if weight.is_nan() { WEIGHTS.0 } else { weight.clamp(WEIGHTS.0, WEIGHTS.1) };
        let tenant = self.get_mut(at);
        let former = std::mem::replace(&mut tenant.weight, weight);
        tenant.is_weighted = true;
        let (is_active, waits) = (tenant.is_active(), tenant.waiting > 0);
        for (weights, counts) in [(&mut self.active, is_active), (&mut self.waiting, waits)] {
            weights.change(counts, false, former);
            weights.change(false, counts, weight);
        }
    }

    /// Changes the numbers of waiting and running requests of a tenant.
    pub(crate) fn count(&mut self, at: usize, change: impl FnOnce(&mut Tenant)) {
        let tenant = self.get_mut(at);
        let (was_active, waited) = (tenant.is_active(), tenant.waiting > 0);
        change(tenant);
        let (is_active, waits, weight) = (tenant.is_active(), tenant.waiting > 0, tenant.weight);
        self.active.change(was_active, is_active, weight);
        self.waiting.change(waited, waits, weight);
    }

    /// Forgets tenants without requests and weight that were not seen for `memory`.
    pub(crate) fn forget(&mut self, now: Duration, memory: Duration) {
        if now < self.forget_at {
            return;
        }
        self.forget_at = now.saturating_add(memory.max(Duration::from_secs(1)));
        for at in 0..self.slots.len() {
            let is_idle = |tenant: &Tenant| {
                let silence = now.saturating_sub(tenant.last_seen);
                !tenant.is_active() && !tenant.is_weighted && silence >= memory
            };
            if let Some(tenant) = self.slots[at].take_if(|tenant| is_idle(tenant)) {
                self.index.remove(&tenant.id);
                self.free.push(at);
            }
        }
    }
}
