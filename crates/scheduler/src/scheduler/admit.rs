//! Start of waiting requests.

use std::time::Duration;

use super::Scheduler;
use crate::entries::{Place, Slot};
use crate::prefixes;
use crate::request::RequestId;

impl Scheduler {
    /// Starts the next waiting request, if `free_tokens` of KV cache suffice for its prompt and its
    /// expected output. Call [`started`](Self::started) before anything else.
    ///
    /// `free_tokens` is the room in the cache now, blocks that can be evicted included; tokens that
    /// running requests still need are subtracted here. The expected output is the share of
    /// `max_new_tokens` that finished requests used, at least one block. If nothing runs, the next
    /// request starts in any case.
    ///
    /// A request that does not fit is passed by others for
    /// [`Config::ageing`](crate::Config::ageing); after that nothing else starts until it fits.
    pub fn admit(&mut self, now: Duration, free_tokens: usize) -> Option<RequestId> {
        self.admit_sharing(now, free_tokens, |_| 0)
    }

    /// As [`admit`](Self::admit), with the number of a request's tokens whose blocks running
    /// requests hold: they need no room.
    pub fn admit_sharing(
        &mut self,
        now: Duration,
        free_tokens: usize,
        shared_tokens: impl Fn(RequestId) -> usize,
    ) -> Option<RequestId> {
        self.now = self.now.max(now);
        if self.running.len() >= self.config.max_running {
            return None;
        }
        self.release_overdue(now);
        let alone = self.running.is_empty();
        let room = free_tokens.saturating_sub(self.claimed);
        let fits = |this: &Self, slot: Slot, kept: usize| {
            let shared = shared_tokens(this.entries.get(slot).request.id);
            alone || this.need(slot, shared).saturating_add(kept) <= room
        };
        if let Some((slot, since)) = self.blocked {
            if fits(self, slot, 0) {
                return Some(self.start(now, slot));
            }
            if now.saturating_sub(since) >= self.config.ageing {
                return None;
            }
        }
        let places = self.config.max_running - self.running.len();
        let kept_places = self.kept(self.config.max_running);
        let mut slot = self.choose(now, !alone && places <= kept_places)?;
        let capacity = free_tokens.saturating_add(self.tokens);
        let kept = if self.is_below_share(slot, capacity) { 0 } else { self.kept(capacity) };
        if fits(self, slot, 0) && !fits(self, slot, kept) {
            slot = self.choose(now, true)?;
            if !self.is_below_share(slot, capacity) {
                return None;
            }
        }
        if fits(self, slot, 0) {
            return Some(self.start(now, slot));
        }
        if self.blocked.is_none() {
            self.leave_queue(slot);
            self.entries.get_mut(slot).place = Place::Blocked;
            self.blocked = Some((slot, now));
            return self.admit_sharing(now, free_tokens, shared_tokens);
        }
        None
    }

    /// Says that an admitted request has `cached_tokens` from the prefix cache. The last token of
    /// the prompt is computed in any case: its logits are needed.
    pub fn started(&mut self, id: RequestId, cached_tokens: usize) {
        let Some(slot) = self.entries.slot(id) else { return };
        let entry = self.entries.get_mut(slot);
        if entry.place != Place::Running || cached_tokens == 0 {
            return;
        }
        let tenant = entry.tenant;
        let former = entry.computed;
        entry.computed = cached_tokens.min(entry.known - 1).max(former);
        let (found, computed) = (entry.computed - former, entry.computed);
        // Tokens computed before a preemption are paid already.
        let unpaid = computed.saturating_sub(entry.seen.max(former));
        entry.seen = entry.seen.max(computed);
        self.statistics.cached += found as u64;
        self.tokens += found;
        self.queue.tenants.get_mut(tenant).tokens += found;
        self.queue.refund(tenant, unpaid);
        self.update_turn(tenant);
        self.claim(slot);
        // The others find this prefix where this request found it.
        self.stop_leading(slot);
    }

    /// Tokens of KV cache that a waiting request needs, in whole blocks.
    fn need(&self, slot: Slot, shared: usize) -> usize {
        let known = self.entries.get(slot).known;
        let tokens = known - shared.min(known) + self.reserve(slot);
        tokens.next_multiple_of(self.config.block_tokens)
    }

    /// Tokens to keep free for the output of a request.
    fn reserve(&self, slot: Slot) -> usize {
        let left = self.entries.get(slot).output_left();
        self.rates.expected_output(left).max(self.config.block_tokens).min(left)
    }

    /// Counts what a running request still needs.
    pub(super) fn claim(&mut self, slot: Slot) {
        let claim = self.entries.get(slot).missing() + self.reserve(slot);
        let former = std::mem::replace(&mut self.entries.get_mut(slot).claim, claim);
        self.claimed = self.claimed - former + claim;
    }

    /// Part of a total that is kept for tenants below their share.
    fn kept(&self, total: usize) -> usize {
        let is_shared = self.config.fair_shares && self.queue.tenants.len() > 1;
        if is_shared { (total as f64 * self.config.headroom).round() as usize } else { 0 }
    }

    /// True if the tenant of a request has less than its share of places and of KV cache.
    fn is_below_share(&self, slot: Slot, capacity: usize) -> bool {
        let at = self.entries.get(slot).tenant;
        let (tenant, share) = (self.queue.tenants.get(at), self.queue.tenants.share(at));
        (tenant.running as f64) < self.config.max_running as f64 * share
            && (tenant.tokens as f64) < capacity as f64 * share
    }

    /// Next request to start, of a tenant that is below its share of places if `only_below`.
    fn choose(&mut self, now: Duration, only_below: bool) -> Option<Slot> {
        loop {
            let places = self.config.max_running as f64;
            let Self { queue, entries, .. } = self;
            let priority = |slot: Slot| entries.get(slot).request.priority;
            let at = if only_below {
                queue.next_where(priority, |queue, at| {
                    (queue.tenants.get(at).running as f64) < places * queue.tenants.share(at)
                })?
            } else {
                queue.next(priority)?
            };
            let &(_, slot) = queue.tenants.get(at).queue.first()?;
            if !self.hold(now, slot) {
                return Some(self.companion(at, slot));
            }
        }
    }

    /// Sets a request aside if a running one computes its prefix; false if not, or if it has waited
    /// for that already.
    fn hold(&mut self, now: Duration, slot: Slot) -> bool {
        let entry = self.entries.get(slot);
        let Some(hash) = prefixes::key(entry, self.config.prefix_ordering) else { return false };
        if entry.held_until.is_some() || !self.prefixes.is_led(hash) {
            return false;
        }
        self.leave_queue(slot);
        let until = now.saturating_add(self.config.ageing);
        let entry = self.entries.get_mut(slot);
        (entry.place, entry.held_until) = (Place::Held, Some(until));
        self.prefixes.hold(hash, entry.rank, slot, until);
        self.statistics.held += 1;
        true
    }

    /// Request of the same tenant and level of priority that shares a prefix with running ones, if
    /// `first` does not: it needs no room of its own for the prefix, and uses it while it is there.
    fn companion(&self, tenant: usize, first: Slot) -> Slot {
        let entry = self.entries.get(first);
        let enabled = self.config.prefix_ordering;
        if !enabled || prefixes::key(entry, enabled).is_some_and(|hash| self.prefixes.runs(hash)) {
            return first;
        }
        let groups = &self.queue.tenants.get(tenant).groups;
        let in_group = |hash| groups.range((hash, crate::rank::Rank::FIRST, 0)..).next();
        let companions = self.prefixes.ready().filter_map(|hash| {
            in_group(hash).filter(|group| group.0 == hash).map(|&(_, rank, slot)| (rank, slot))
        });
        let near = companions.filter(|(rank, _)| rank.within(entry.rank, self.config.ageing));
        near.min().map_or(first, |(_, slot)| slot)
    }

    /// Returns requests to the queue whose patience has ended.
    fn release_overdue(&mut self, now: Duration) {
        while let Some(slot) = self.prefixes.overdue(now) {
            self.leave_queue(slot);
            self.enqueue(slot);
        }
    }

    /// A running request no longer computes the prefix that others wait for.
    pub(super) fn stop_leading(&mut self, slot: Slot) {
        let entry = self.entries.get_mut(slot);
        if !std::mem::take(&mut entry.leads) {
            return;
        }
        let Some(hash) = entry.request.prefix else { return };
        self.prefixes.stop_leading(hash);
        while !self.prefixes.is_led(hash)
            && let Some(held) = self.prefixes.first_held(hash)
        {
            self.leave_queue(held);
            self.enqueue(held);
        }
    }

    fn start(&mut self, now: Duration, slot: Slot) -> RequestId {
        self.leave_queue(slot);
        self.count_waiting(slot, false);
        let entry = self.entries.get_mut(slot);
        let (id, tenant, waited) = (entry.request.id, entry.tenant, now.saturating_sub(entry.since));
        if entry.was_preempted {
            entry.waited_again += waited;
        }
        entry.place = Place::Running;
        (entry.computed, entry.prefill_end) = (0, entry.known);
        entry.is_suspended = false;
        let unpaid = entry.known.saturating_sub(entry.charged);
        entry.charged = entry.charged.max(entry.known);
        if let Some(hash) = prefixes::key(entry, self.config.prefix_ordering) {
            entry.leads = true;
            self.prefixes.start(hash);
        }
        self.running.push(slot);
        self.scratch.reserve(self.running.len());
        self.queue.tenants.count(tenant, |tenant| tenant.running += 1);
        self.queue.tenants.get_mut(tenant).last_seen = now;
        self.queue.charge(tenant, unpaid);
        self.update_turn(tenant);
        self.claim(slot);
        self.booked = self.booked.saturating_sub(1);
        let booked = &mut self.queue.tenants.get_mut(tenant).booked;
        *booked = booked.saturating_sub(1);
        self.statistics.admitted += 1;
        self.statistics.waited += waited;
        self.statistics.longest_wait = self.statistics.longest_wait.max(waited);
        id
    }

    /// Takes a request out of the running ones.
    pub(super) fn stop(&mut self, slot: Slot) {
        self.stop_leading(slot);
        self.running.retain(|&running| running != slot);
        let entry = self.entries.get_mut(slot);
        self.claimed -= std::mem::take(&mut entry.claim);
        let (tenant, computed) = (entry.tenant, std::mem::take(&mut entry.computed));
        if let Some(hash) = prefixes::key(entry, self.config.prefix_ordering) {
            self.prefixes.stop(hash);
        }
        self.tokens -= computed;
        self.queue.tenants.count(tenant, |tenant| tenant.running -= 1);
        self.queue.tenants.get_mut(tenant).tokens -= computed;
    }
}
