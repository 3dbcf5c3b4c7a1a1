//! Return of running requests to the queue.

use std::cmp::Reverse;
use std::time::Duration;

use super::Scheduler;
use crate::entries::{Place, Slot};
use crate::request::RequestId;

impl Scheduler {
    /// Chooses the running request to preempt so that `short` can go on; `short` itself if it is
    /// the one that should yield. Suspended ones are not chosen: they have computed nothing since
    /// they started.
    ///
    /// The lowest effective priority yields, then the tenant with the most service per weight, then
    /// the youngest. The effective priority of a running request rises with the time that it waited
    /// after preemptions; its wait before the first start says how long its tenant's queue was, and
    /// does not count.
    pub fn victim(&self, short: RequestId) -> RequestId {
        let awake = self.running.iter().copied().filter(|&slot| !self.entries.get(slot).is_suspended);
        let victim = awake.min_by(|&a, &b| {
            let ((level_a, age_a), (level_b, age_b)) = (self.standing(a), self.standing(b));
            let by_level = level_a.cmp(&level_b);
            by_level.then_with(|| self.service(b).total_cmp(&self.service(a))).then(age_a.cmp(&age_b))
        });
        victim.map_or(short, |slot| self.entries.get(slot).request.id)
    }

    /// Effective priority, and the order of age: the youngest first.
    fn standing(&self, slot: Slot) -> (i64, Reverse<(Duration, u64)>) {
        let entry = self.entries.get(slot);
        let priority = i64::from(entry.request.priority);
        let levels = entry.waited_again.as_nanos().checked_div(self.config.ageing.as_nanos());
        let level = priority + i64::try_from(levels.unwrap_or(0)).unwrap_or(i64::MAX / 2);
        (level, Reverse((entry.submitted, entry.request.id.0)))
    }

    fn service(&self, slot: Slot) -> f64 {
        if !self.config.fair_shares {
            return 0.0;
        }
        self.queue.tenants.get(self.entries.get(slot).tenant).computed.service()
    }

    /// Puts a running request back into the queue, with its age. Its tokens so far are then its
    /// prompt; those that are computed again are not charged again. It starts again when there is
    /// room for all of them and its expected output, of which more is expected from now on.
    pub fn preempted(&mut self, id: RequestId) {
        let Some(slot) = self.entries.slot(id) else { return };
        if self.entries.get(slot).place != Place::Running {
            return;
        }
        self.stop(slot);
        self.rates.memory_was_short();
        let now = self.now;
        let entry = self.entries.get_mut(slot);
        entry.since = now;
        entry.was_preempted = true;
        self.count_waiting(slot, true);
        self.enqueue(slot);
        self.statistics.preempted += 1;
    }
}
