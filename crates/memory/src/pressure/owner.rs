//! Owners: caches that offer units of memory for eviction.

use std::sync::{Arc, Weak};

use crate::Tenant;
use crate::pressure::{Rung, Use};
use crate::sync::{Mutex, lock};

/// A cache whose units can be evicted: prefixes, adapters.
///
/// It offers each unit once ([`PagePool::offer`](crate::PagePool::offer)). If memory is short, the
/// pool selects units and calls [`release`](Self::release) on the requesting thread, without
/// holding a lock of the pool: an owner may take its own lock there, and may offer units while
/// holding it.
pub trait PressureOwner: Send + Sync {
    /// Releases an offered unit, or about `demand.bytes` of it. Requests made inside must have
    /// [`PressurePolicy::Reject`](crate::PressurePolicy::Reject), the default.
    fn release(&self, unit: u64, demand: Demand) -> Release;
}

/// An offer of a unit.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// Tenant charged for the unit.
    pub tenant: &'a Tenant,
    /// Rung of the ladder.
    pub rung: Rung,
    /// Time to restore a MiB of it, by recomputing or reading, in a unit common to all owners of
    /// the pool.
    pub cost: u64,
    /// Last use.
    pub used: Use,
}

/// Memory demanded from an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Bytes wanted, at least one page.
    pub bytes: usize,
    /// True if a request waits, false at a watermark.
    pub is_urgent: bool,
    /// [`Use::turn`] of the unit's last use known to the pool.
    pub last_use: u64,
}

/// Answer of an owner to [`PressureOwner::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Memory was released. The rest of the unit, if any, stays offered at its position.
    Released {
        /// `true` if a part of the unit is left.
        has_rest: bool,
    },
    /// Not released: the unit was used since the offer, and is reordered by this use.
    Used(Use),
    /// Not released: the unit is pinned; it is skipped for the rest of this round.
    Pinned,
    /// The unit no longer exists.
    Gone,
    /// The owner releases nothing now; eviction of this rung ends.
    Refused,
}

/// Id of a [registered](crate::PagePool::register) owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnerId {
    pub(crate) pool: u64,
    pub(crate) index: u32,
}

/// Owners of a pool by index.
#[derive(Default)]
pub(crate) struct Owners(Mutex<Vec<Weak<dyn PressureOwner>>>);

impl Owners {
    pub(crate) fn add(&self, pool: u64, owner: Weak<dyn PressureOwner>) -> OwnerId {
        let mut owners = lock(&self.0);
        owners.push(owner);
        OwnerId { pool, index: (owners.len() - 1) as u32 }
    }

    pub(super) fn get(&self, index: u32) -> Option<Arc<dyn PressureOwner>> {
        lock(&self.0).get(index as usize)?.upgrade()
    }
}
