//! Active and previous pack of a manager: what a swap, a rollback and the clock change.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::loaded::LoadedPack;
use super::status::{ManagerCounts, PackStatus, Reason, Rollback, Status};
use crate::Release;
use crate::sandbox::Counts;

/// Rollbacks that are kept for the status, and refused packs that the store is not rolled back to.
const KEPT: usize = 32;

/// Packs that are no longer used. They are dropped after the lock of the state is released: this
/// unmaps memory.
pub(super) type Unused = Vec<Arc<LoadedPack>>;

/// State of a manager. Times are those of its clock.
#[derive(Default)]
pub(super) struct State {
    pub(super) active: Option<Arc<LoadedPack>>,
    previous: Option<Previous>,
    probation_until: Option<Instant>,
    pub(super) counts: ManagerCounts,
    rollbacks: VecDeque<Rollback>,
    /// Packs that were refused or rolled back automatically.
    faulty: VecDeque<Release>,
    /// Pack that went without a successor: the store is not to load it again.
    pub(super) unloaded: Option<Release>,
    /// Current version of the store from which it is still to be rolled back.
    pub(super) unsettled: Option<Release>,
    pub(super) store_fault: Option<String>,
}

struct Previous {
    pack: Arc<LoadedPack>,
    until: Instant,
}

impl State {
    /// Makes a pack the active one, on probation.
    pub(super) fn swap(
        &mut self,
        next: Arc<LoadedPack>,
        now: Instant,
        grace: Duration,
        probation: Duration,
    ) -> Unused {
        self.counts.swaps += 1;
        // A release that is loaded now has passed: the host may have been at fault before.
        self.faulty.retain(|release| release != next.release());
        self.probation_until = Some(later(now, probation));
        self.unloaded = None;
        let former = self.active.replace(next);
        let previous = former.map(|pack| Previous { pack, until: later(now, grace) });
        replaced(std::mem::replace(&mut self.previous, previous))
    }

    /// Records a pack that is not loaded.
    pub(super) fn refuse(&mut self, refused: Release, why: String, is_faulty: bool) {
        self.counts.refused += 1;
        if is_faulty {
            self.add_faulty(refused.clone());
        }
        let to = self.release();
        self.record(Rollback { from: refused, to, reason: Reason::Refused { why } });
    }

    /// Exchanges active and previous pack. Without probation: the other pack is the one in doubt.
    /// `None` without a previous one.
    pub(super) fn exchange(&mut self, now: Instant, grace: Duration) -> Option<Rollback> {
        let Previous { pack, .. } = self.previous.take()?;
        let former = self.active.replace(pack)?;
        let rollback =
            Rollback { from: former.release().clone(), to: self.release(), reason: Reason::Requested };
        self.counts.requested += 1;
        self.probation_until = None;
        if former.is_from_store {
            self.unsettled = Some(former.release().clone());
        }
        self.previous = Some(Previous { pack: former, until: later(now, grace) });
        self.record(rollback.clone());
        Some(rollback)
    }

    /// Counts a rollback by hand that loaded the previous pack from the store.
    pub(super) fn requested(&mut self, from: Release) {
        self.counts.requested += 1;
        self.probation_until = None;
        let to = self.release();
        self.record(Rollback { from, to, reason: Reason::Requested });
    }

    /// Goes back from the pack with this number if it is active and on probation, to native code
    /// without a pack to go back to. The faulty pack does not become the previous one.
    pub(super) fn quarantine(&mut self, number: u64, now: Instant, reason: Reason) -> Option<Unused> {
        let is_active = self.active.as_ref().is_some_and(|active| active.number() == number);
        if !is_active || self.left(self.probation_until, now).is_none() {
            return None;
        }
        let previous = self.previous.take_if(|previous| now < previous.until);
        let (faulty, unused) = match previous {
            Some(Previous { pack, .. }) => {
                let faulty = self.active.replace(pack)?;
                self.record(Rollback { from: faulty.release().clone(), to: self.release(), reason });
                (faulty.clone(), vec![faulty])
            }
            None => self.unload(reason)?,
        };
        self.counts.automatic += 1;
        self.probation_until = None;
        self.add_faulty(faulty.release().clone());
        if faulty.is_from_store {
            self.unsettled = Some(faulty.release().clone());
        }
        Some(unused)
    }

    /// Takes the active pack without a successor, and the previous one; `None` without one.
    pub(super) fn unload(&mut self, reason: Reason) -> Option<(Arc<LoadedPack>, Unused)> {
        let pack = self.active.take()?;
        let release = pack.release().clone();
        self.counts.unloaded += 1;
        self.probation_until = None;
        self.unloaded = Some(release.clone());
        self.record(Rollback { from: release, to: None, reason });
        let mut unused = replaced(self.previous.take());
        unused.push(pack.clone());
        Some((pack, unused))
    }

    /// Takes the previous pack if its grace period has ended.
    pub(super) fn expire(&mut self, now: Instant) -> Unused {
        let expired = replaced(self.previous.take_if(|previous| now >= previous.until));
        self.counts.expired += expired.len() as u64;
        expired
    }

    /// True for packs that were refused or rolled back automatically.
    pub(super) fn is_faulty(&self, release: &Release) -> bool {
        self.faulty.contains(release)
    }

    /// Version and digest of the active pack.
    pub(super) fn release(&self) -> Option<Release> {
        self.active.as_ref().map(|active| active.release().clone())
    }

    pub(super) fn status(
        &self,
        name: &str,
        now: Instant,
        packs_in_memory: usize,
        totals: BTreeMap<String, Counts>,
    ) -> Status {
        let grace_left = self.left(self.previous.as_ref().map(|previous| previous.until), now);
        Status {
            name: name.to_owned(),
            active: self.active.as_deref().map(PackStatus::of),
            previous: self.previous.as_ref().map(|previous| PackStatus::of(&previous.pack)),
            grace_left,
            probation_left: self.left(self.probation_until, now),
            packs_in_memory,
            totals,
            counts: self.counts,
            rollbacks: self.rollbacks.iter().cloned().collect(),
            store_fault: self.store_fault.clone(),
        }
    }

    /// Time until `end`; `None` from then on.
    fn left(&self, end: Option<Instant>, now: Instant) -> Option<Duration> {
        end?.checked_duration_since(now).filter(|left| !left.is_zero())
    }

    fn add_faulty(&mut self, release: Release) {
        self.faulty.retain(|other| *other != release);
        push(&mut self.faulty, release);
    }

    fn record(&mut self, rollback: Rollback) {
        push(&mut self.rollbacks, rollback);
    }
}

fn replaced(previous: Option<Previous>) -> Unused {
    previous.into_iter().map(|previous| previous.pack).collect()
}

/// Adds an item; the first one goes beyond [`KEPT`].
fn push<T>(list: &mut VecDeque<T>, item: T) {
    if list.len() == KEPT {
        list.pop_front();
    }
    list.push_back(item);
}

/// Time after `now`, or a century later for durations that no clock can add.
fn later(now: Instant, time: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    now.checked_add(time).or_else(|| now.checked_add(CENTURY)).unwrap_or(now)
}
