//! State of a manager, for servers that show it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::health::Checked;
use super::loaded::LoadedPack;
use crate::Release;
use crate::manifest::Category;
use crate::sandbox::Counts;
use crate::signature::{Callable, Mismatch};

/// State of a manager.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Status {
    /// Name of the pack.
    pub name: String,
    /// Pack that new calls run on; `None` before the first one is loaded and after an unload.
    pub active: Option<PackStatus>,
    /// Pack that a rollback goes to without compilation.
    pub previous: Option<PackStatus>,
    /// Time until the previous pack goes.
    pub grace_left: Option<Duration>,
    /// Time in which the quarantine of a kernel leads to a rollback.
    pub probation_left: Option<Duration>,
    /// Packs in memory: active, previous, and those of running calls.
    pub packs_in_memory: usize,
    /// Counters by the id of kernels since the manager was made, over all versions, without the
    /// calls of health checks.
    pub totals: BTreeMap<String, Counts>,
    /// Counters since the manager was made.
    pub counts: ManagerCounts,
    /// Latest rollbacks and refused packs, earliest first, 32 at most.
    pub rollbacks: Vec<Rollback>,
    /// Last failure of a rollback in the store, which the next [`tick`](super::Manager::tick) tries
    /// again.
    pub store_fault: Option<String>,
}

/// Counters since a manager was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ManagerCounts {
    /// Packs that became active by an upgrade.
    pub swaps: u64,
    /// Packs that were refused: they do not compile or failed the health check.
    pub refused: u64,
    /// Rollbacks and unloads by hand.
    pub requested: u64,
    /// Rollbacks after the quarantine of a kernel, to native code without a previous pack.
    pub automatic: u64,
    /// Packs that went without a successor: the first one after a quarantine, or by hand.
    pub unloaded: u64,
    /// Previous packs whose grace period ended.
    pub expired: u64,
}

/// Loaded pack in a status.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PackStatus {
    /// Version and digest.
    pub release: Release,
    /// Kernels in the order of the manifest.
    pub kernels: Vec<KernelStatus>,
}

/// Kernel in a status.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct KernelStatus {
    /// Id.
    pub id: String,
    /// Operation.
    pub category: Category,
    /// Category and type under which an engine can call it, or the reason why it cannot.
    pub callable: Result<Callable, Mismatch>,
    /// Outcome of the health check.
    pub checked: Checked,
    /// True if calls are refused after traps.
    pub is_quarantined: bool,
    /// Counters, calls of the health check included.
    pub counts: Counts,
}

/// Rollback, or an upgrade that left the active pack as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rollback {
    /// Pack that is no longer used, or was refused.
    pub from: Release,
    /// Pack that is active after it; `None` if native code computes.
    pub to: Option<Release>,
    /// Reason.
    pub reason: Reason,
}

/// Reason of a rollback.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A call of [`Manager::rollback`](super::Manager::rollback) or
    /// [`Manager::unload`](super::Manager::unload).
    Requested,
    /// A kernel did not compile or failed its health check.
    Refused {
        /// Text of the error, with the kernel's id.
        why: String,
    },
    /// A kernel was quarantined within the probation time.
    Quarantined {
        /// Id of the kernel.
        kernel: String,
        /// Traps in a row.
        traps: u32,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested => f.write_str("requested"),
            Self::Refused { why } => f.write_str(why),
            Self::Quarantined { kernel, traps } => {
                write!(f, "the kernel {kernel} was quarantined after {traps} traps in a row")
            }
        }
    }
}

impl Status {
    /// Lines for a log: automatic rollbacks since an earlier status, and kernels of the active pack
    /// that were quarantined since.
    pub fn news_since(&self, before: &Self) -> Vec<String> {
        let is_automatic = |rollback: &&Rollback| matches!(rollback.reason, Reason::Quarantined { .. });
        let count = self.counts.automatic.saturating_sub(before.counts.automatic) as usize;
        let mut rollbacks: Vec<&Rollback> =
            self.rollbacks.iter().rev().filter(is_automatic).take(count).collect();
        rollbacks.reverse();
        let rollbacks = rollbacks.into_iter().map(ToString::to_string);
        let active =
            self.active.iter().flat_map(|pack| pack.kernels.iter().map(move |kernel| (pack, kernel)));
        let quarantined =
            active.filter(|(pack, kernel)| kernel.is_quarantined && !before.has_quarantined(pack, kernel));
        let quarantined = quarantined.map(|(pack, kernel)| {
            let (version, id) = (&pack.release.version, &kernel.id);
            let traps = kernel.counts.all_traps();
            format!("the kernel {id} of {version} is quarantined, with {traps} traps; native code computes")
        });
        rollbacks.chain(quarantined).collect()
    }

    /// True if the kernel of this pack was in quarantine.
    fn has_quarantined(&self, pack: &PackStatus, kernel: &KernelStatus) -> bool {
        self.active
            .iter()
            .filter(|active| active.release == pack.release)
            .any(|active| active.kernels.iter().any(|other| other.id == kernel.id && other.is_quarantined))
    }
}

impl fmt::Display for Rollback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, reason } = self;
        write!(f, "{} is out of use: {reason}; ", from.version)?;
        match to {
            Some(to) => write!(f, "{} is in use", to.version),
            None => f.write_str("native code computes"),
        }
    }
}

impl PackStatus {
    pub(super) fn of(pack: &LoadedPack) -> Self {
        let kernel = |loaded: &super::LoadedKernel| KernelStatus {
            id: loaded.kernel.manifest().id.clone(),
            category: loaded.kernel.manifest().category,
            callable: loaded.callable.clone(),
            checked: loaded.checked.clone(),
            is_quarantined: loaded.kernel.is_quarantined(),
            counts: loaded.kernel.counts(),
        };
        Self { release: pack.release().clone(), kernels: pack.kernels().iter().map(kernel).collect() }
    }
}
