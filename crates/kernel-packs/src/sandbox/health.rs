//! Counters of a kernel, and its quarantine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::trap::TrapKind;

/// Counters since the kernel was loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Calls, also those that failed.
    pub calls: u64,
    /// Calls that failed for any reason.
    pub failed: u64,
    /// Calls that native code replaced.
    pub fallbacks: u64,
    /// Calls that were refused in quarantine; they are no calls of the other counters.
    pub refused: u64,
    /// Traps by kind, in the order of [`TrapKind::ALL`].
    pub traps: [(TrapKind, u64); TrapKind::ALL.len()],
}

/// All 0.
impl Default for Counts {
    fn default() -> Self {
        Self { calls: 0, failed: 0, fallbacks: 0, refused: 0, traps: TrapKind::ALL.map(|kind| (kind, 0)) }
    }
}

impl Counts {
    /// Traps of a kind.
    pub fn traps_of(&self, kind: TrapKind) -> u64 {
        self.traps.iter().find(|(other, _)| *other == kind).map_or(0, |(_, count)| *count)
    }

    /// Traps of all kinds.
    pub fn all_traps(&self) -> u64 {
        self.traps.iter().map(|(_, count)| count).sum()
    }
}

/// Handle of a kernel's counters, which outlives the kernel.
#[derive(Debug)]
pub(crate) struct Counters(Arc<Health>);

impl Counters {
    pub(super) fn new(health: &Arc<Health>) -> Self {
        Self(Arc::clone(health))
    }

    /// The counters.
    pub(crate) fn read(&self) -> Counts {
        self.0.counts()
    }

    /// True if nothing counts any more: the kernel is gone, and no other handle is left.
    pub(crate) fn are_final(&mut self) -> bool {
        Arc::get_mut(&mut self.0).is_some()
    }
}

/// Counters and quarantine of a kernel, for all threads.
#[derive(Debug)]
pub(super) struct Health {
    calls: AtomicU64,
    failed: AtomicU64,
    fallbacks: AtomicU64,
    refused: AtomicU64,
    traps: [AtomicU64; TrapKind::ALL.len()],
    in_a_row: AtomicU32,
    is_quarantined: AtomicBool,
    /// Traps in a row that lead to quarantine; 0 for never.
    most: u32,
}

impl Health {
    pub(super) fn new(most: u32) -> Self {
        let traps = std::array::from_fn(|_| AtomicU64::new(0));
        let [calls, failed, fallbacks, refused] = std::array::from_fn(|_| AtomicU64::new(0));
        let (in_a_row, is_quarantined) = (AtomicU32::new(0), AtomicBool::new(false));
        Self { calls, failed, fallbacks, refused, traps, in_a_row, is_quarantined, most }
    }

    /// Begins a call; false in quarantine.
    pub(super) fn begin(&self) -> bool {
        let is_free = !self.is_quarantined();
        let counter = if is_free { &self.calls } else { &self.refused };
        counter.fetch_add(1, Ordering::Relaxed);
        is_free
    }

    /// Ends a call that the kernel has done.
    pub(super) fn done(&self) {
        // Reading leaves the cache line shared between threads.
        if self.in_a_row.load(Ordering::Relaxed) != 0 {
            self.in_a_row.store(0, Ordering::Relaxed);
        }
    }

    /// Ends a call that failed without a fault of the kernel.
    pub(super) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a call that trapped; true if it leads to quarantine.
    pub(super) fn trapped(&self, kind: TrapKind) -> bool {
        self.failed();
        if let Some(index) = TrapKind::ALL.iter().position(|other| *other == kind) {
            self.traps[index].fetch_add(1, Ordering::Relaxed);
        }
        let in_a_row = self.in_a_row.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        self.most != 0 && in_a_row >= self.most && !self.is_quarantined.swap(true, Ordering::AcqRel)
    }

    /// Counts a call that native code replaced.
    pub(super) fn fell_back(&self) {
        self.fallbacks.fetch_add(1, Ordering::Relaxed);
    }

    /// True in quarantine.
    pub(super) fn is_quarantined(&self) -> bool {
        self.is_quarantined.load(Ordering::Acquire)
    }

    /// Traps since the last call that was done.
    pub(super) fn in_a_row(&self) -> u32 {
        self.in_a_row.load(Ordering::Relaxed)
    }

    /// Ends the quarantine.
    pub(super) fn release(&self) {
        self.in_a_row.store(0, Ordering::Relaxed);
        self.is_quarantined.store(false, Ordering::Release);
    }

    /// The counters.
    pub(super) fn counts(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let traps = std::array::from_fn(|index| (TrapKind::ALL[index], of(&self.traps[index])));
        let (calls, failed) = (of(&self.calls), of(&self.failed));
        Counts { calls, failed, fallbacks: of(&self.fallbacks), refused: of(&self.refused), traps }
    }
}
