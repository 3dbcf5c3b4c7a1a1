//! Prefixes of the running requests, and the waiting requests that want one of them.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::entries::{Entry, Slot};
use crate::rank::Rank;

/// Running requests by prefix.
#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    /// One line per prefix: at most as many as requests run.
    running: Vec<Prefix>,
    held: BTreeSet<(u64, Rank, Slot)>,
    /// The same requests by the end of their patience.
    held_until: BTreeSet<(Duration, Rank, Slot)>,
}

#[derive(Debug)]
struct Prefix {
    hash: u64,
    running: usize,
    /// Running requests whose prefill computes this prefix.
    leaders: usize,
}

impl Prefixes {
    /// True if a running request computes this prefix.
    pub(crate) fn is_led(&self, hash: u64) -> bool {
        self.running.iter().any(|prefix| prefix.hash == hash && prefix.leaders > 0)
    }

    /// True if a running request has this prefix.
    pub(crate) fn runs(&self, hash: u64) -> bool {
        self.running.iter().any(|prefix| prefix.hash == hash)
    }

    /// Prefixes that are computed and in use.
    pub(crate) fn ready(&self) -> impl Iterator<Item = u64> + '_ {
        self.running.iter().filter(|prefix| prefix.leaders == 0).map(|prefix| prefix.hash)
    }

    /// A request with this prefix starts, and leads.
    pub(crate) fn start(&mut self, hash: u64) {
        match self.running.iter_mut().find(|prefix| prefix.hash == hash) {
            Some(prefix) => {
                prefix.running += 1;
                prefix.leaders += 1;
            }
            None => self.running.push(Prefix { hash, running: 1, leaders: 1 }),
        }
    }

    /// A leader has computed its prefix, found it, or stops.
    pub(crate) fn stop_leading(&mut self, hash: u64) {
        if let Some(prefix) = self.running.iter_mut().find(|prefix| prefix.hash == hash) {
            prefix.leaders = prefix.leaders.saturating_sub(1);
        }
    }

    /// A running request with this prefix stops; leading has stopped before.
    pub(crate) fn stop(&mut self, hash: u64) {
        if let Some(at) = self.running.iter().position(|prefix| prefix.hash == hash) {
            self.running[at].running -= 1;
            if self.running[at].running == 0 {
                self.running.swap_remove(at);
            }
        }
    }

    /// Sets a waiting request aside.
    pub(crate) fn hold(&mut self, hash: u64, rank: Rank, slot: Slot, until: Duration) {
        self.held.insert((hash, rank, slot));
        self.held_until.insert((until, rank, slot));
    }

    /// Removes a request that is held until `until`.
    pub(crate) fn unhold(&mut self, hash: u64, rank: Rank, slot: Slot, until: Duration) {
        self.held.remove(&(hash, rank, slot));
        self.held_until.remove(&(until, rank, slot));
    }

    /// First request held for a prefix.
    pub(crate) fn first_held(&self, hash: u64) -> Option<Slot> {
        let first = self.held.range((hash, Rank::FIRST, 0)..).next();
        first.filter(|held| held.0 == hash).map(|held| held.2)
    }

    /// A request whose patience has ended.
    pub(crate) fn overdue(&self, now: Duration) -> Option<Slot> {
        self.held_until.first().filter(|held| held.0 <= now).map(|held| held.2)
    }
}

/// Prefix that orders a request, if prefixes do.
pub(crate) fn key(entry: &Entry, enabled: bool) -> Option<u64> {
    entry.request.prefix.filter(|_| enabled)
}
