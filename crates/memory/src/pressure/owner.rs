//! Owners: caches that offer units of memory and release them when asked.

use std::sync::{Arc, Weak};

use crate::Tenant;
use crate::pressure::{Rung, Use};
use crate::sync::{Mutex, lock};

/// A cache whose units can be evicted: prefixes, adapters.
///
/// It offers each unit once ([`PagePool::offer`](crate::PagePool::offer)). When memory is short,
/// the pool chooses units by its order and calls [`release`](Self::release) on the thread that
/// needs the memory, without any lock of the pool: an owner may take its own lock there, and may
/// offer units while it holds that lock.
pub trait PressureOwner: Send + Sync {
    /// Releases an offered unit, or about `demand.bytes` of it. Requests that the owner makes
    /// meanwhile must have [`PressurePolicy::Reject`](crate::PressurePolicy::Reject), which is the
    /// default.
    fn release(&self, unit: u64, demand: Demand) -> Release;
}

/// An offer of a unit.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// The tenant whose pages it takes.
    pub tenant: &'a Tenant,
    /// The stage of the ladder in which it yields.
    pub rung: Rung,
    /// Time to get a MiB of it back, by recomputing or reading, in a unit that all owners of the
    /// pool share.
    pub cost: u64,
    /// Its last use.
    pub used: Use,
}

/// Memory that the pool asks an owner for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Bytes wanted, at least a page's.
    pub bytes: usize,
    /// `true` if a request waits for them, `false` at a watermark.
    pub is_urgent: bool,
    /// [`Use::turn`] of the unit's last use that the pool knows of.
    pub last_use: u64,
}

/// Answer of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Memory was released. The rest of the unit, if there is one, stays offered at its place.
    Released {
        /// `true` if a part of the unit is left.
        has_rest: bool,
    },
    /// The unit was used since it was offered: its place in the order is that of this use.
    Used(Use),
    /// The unit is in use. It is not asked for again in this round.
    Pinned,
    /// The unit cannot be evicted any more.
    Gone,
    /// The owner releases nothing now. The stage ends.
    Refused,
}

/// An owner that was [registered](crate::PagePool::register).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnerId {
    pub(crate) pool: u64,
    pub(crate) index: u32,
}

/// The owners of a pool by index.
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
