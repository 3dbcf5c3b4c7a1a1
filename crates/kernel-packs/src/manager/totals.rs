//! Counters of kernels over all versions of a pack, so that those of a version that is gone are not
//! lost: its traps are the reason why it is gone.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::loaded::LoadedPack;
use crate::sandbox::{Counters, Counts};

/// Counters of all packs that a manager has loaded, without the calls of health checks.
#[derive(Debug, Default)]
pub(super) struct Totals(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Kernels of packs in memory.
    alive: Vec<Counted>,
    /// Sums of kernels that are gone, by id.
    gone: BTreeMap<String, Counts>,
}

#[derive(Debug)]
struct Counted {
    id: String,
    counters: Counters,
    /// Counters at the end of the health check.
    before: Counts,
}

impl Totals {
    /// Adds the kernels of a pack that is about to serve.
    pub(super) fn add(&self, pack: &LoadedPack) {
        let counted = pack.kernels().iter().map(|loaded| Counted {
            id: loaded.kernel.manifest().id.clone(),
            counters: loaded.kernel.counters(),
            before: loaded.kernel.counts(),
        });
        self.0.lock().alive.extend(counted);
    }

    /// Counters by the id of kernels. None of them falls from one call to the next.
    pub(super) fn read(&self) -> BTreeMap<String, Counts> {
        let Inner { alive, gone } = &mut *self.0.lock();
        alive.retain_mut(|counted| {
            let is_final = counted.counters.are_final();
            if is_final {
                counted.add_to(gone);
            }
            !is_final
        });
        let mut totals = gone.clone();
        alive.iter().for_each(|counted| counted.add_to(&mut totals));
        totals
    }
}

impl Counted {
    fn add_to(&self, totals: &mut BTreeMap<String, Counts>) {
        let Self { id, counters, before } = self;
        let now = counters.read();
        let total = totals.entry(id.clone()).or_default();
        total.calls += now.calls - before.calls;
        total.failed += now.failed - before.failed;
        total.fallbacks += now.fallbacks - before.fallbacks;
        total.refused += now.refused - before.refused;
        for ((total, now), before) in total.traps.iter_mut().zip(now.traps).zip(before.traps) {
            total.1 += now.1 - before.1;
        }
    }
}
