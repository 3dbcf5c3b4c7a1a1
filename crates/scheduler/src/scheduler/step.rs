//! Content of a step, and the account of what it computed.

use std::time::Duration;

use super::{MAX_TOKENS, Scheduler};
use crate::entries::{Place, Slot};
use crate::rank::Rank;
use crate::request::RequestId;
use crate::shares::Account;
use crate::work::Work;

/// Longest run of known tokens after the prompt that counts as a decode: verified drafts, and
/// tokens that a grammar forces.
const DECODE_RUN: usize = 16;

/// Memory that planning reuses.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    prefills: Vec<Prefill>,
    /// Accounts that planning charges tentatively.
    accounts: Vec<(usize, Account)>,
    /// Position in the list of running requests at which decodes begin.
    turn: usize,
}

#[derive(Debug, Clone, Copy)]
struct Prefill {
    slot: Slot,
    tenant: usize,
    priority: i32,
    rank: Rank,
    missing: usize,
    /// Index of its line in the step.
    line: Option<usize>,
}

impl Scratch {
    /// Makes room for `running` requests.
    pub(super) fn reserve(&mut self, running: usize) {
        self.prefills.clear();
        self.prefills.reserve(running);
        self.accounts.clear();
        self.accounts.reserve(running);
    }
}

impl Scheduler {
    /// Fills `step` with the tokens of each running request in the next step; decodes first.
    ///
    /// Prefill gets the rest of [`Config::step_tokens`](crate::Config::step_tokens), beside decodes
    /// no more than measured steps allow within
    /// [`Config::token_latency`](crate::Config::token_latency), and at least
    /// [`Config::min_prefill_tokens`](crate::Config::min_prefill_tokens). Tenants share it by
    /// deficit round robin; within a tenant the request that goes first gets all that it can use.
    pub fn plan(&mut self, now: Duration, step: &mut Vec<Work>) {
        self.now = self.now.max(now);
        step.clear();
        self.collect_prefills();
        let least = self.config.min_prefill_tokens.min(self.config.step_tokens / 2);
        let kept = if self.scratch.prefills.is_empty() { 0 } else { least };
        let decodes = self.plan_decodes(self.config.step_tokens - kept, step);
        let left = self.config.step_tokens - decodes;
        let budget = if decodes == 0 {
            left
        } else {
            self.cost.prefill_within(self.config.token_latency, decodes).max(least).min(left)
        };
        self.plan_prefills(budget, step);
    }

    fn collect_prefills(&mut self) {
        let Self { scratch, running, entries, .. } = self;
        scratch.prefills.clear();
        for &slot in running.iter() {
            let entry = entries.get(slot);
            let missing = if entry.is_suspended { 0 } else { entry.missing() };
            if missing > 0 && !is_decode(missing, entry.in_prefill()) {
                scratch.prefills.push(Prefill {
                    slot,
                    tenant: entry.tenant,
                    priority: entry.request.priority,
                    rank: entry.rank,
                    missing,
                    line: None,
                });
            }
        }
    }

    /// Adds decodes of at most `budget` tokens; returns their tokens. Where they are more, each
    /// step begins behind the last one's.
    fn plan_decodes(&mut self, budget: usize, step: &mut Vec<Work>) -> usize {
        let (count, mut used) = (self.running.len(), 0);
        let first = self.scratch.turn.checked_rem(count).unwrap_or(0);
        for i in 0..count {
            let at = (first + i) % count;
            let entry = self.entries.get(self.running[at]);
            let missing = entry.missing();
            if entry.is_suspended || missing == 0 || !is_decode(missing, entry.in_prefill()) {
                continue;
            }
            let tokens = missing.min(budget - used);
            if tokens == 0 {
                self.scratch.turn = at;
                break;
            }
            used += tokens;
            step.push(Work { id: entry.request.id, tokens, samples: tokens == missing });
        }
        used
    }

    fn plan_prefills(&mut self, mut budget: usize, step: &mut Vec<Work>) {
        while budget > 0
            && let Some(at) = self.next_prefill()
        {
            let Prefill { slot, tenant, missing, line, .. } = self.scratch.prefills[at];
            let owner = self.queue.tenants.get_mut(tenant);
            let turn = self.computed.turn_tokens(owner.weight);
            let tokens = missing.min(budget).min(turn);
            if !self.scratch.accounts.iter().any(|(charged, _)| *charged == tenant) {
                self.scratch.accounts.push((tenant, owner.computed));
            }
            self.computed.charge(&mut owner.computed, owner.weight, tokens, true);
            budget -= tokens;
            let line = line.unwrap_or_else(|| {
                step.push(Work { id: self.entries.get(slot).request.id, tokens: 0, samples: false });
                step.len() - 1
            });
            step[line].tokens += tokens;
            step[line].samples = tokens == missing;
            let prefill = &mut self.scratch.prefills[at];
            (prefill.missing, prefill.line) = (missing - tokens, Some(line));
        }
        // Tokens are charged when they have been computed.
        for (tenant, account) in self.scratch.accounts.drain(..) {
            self.queue.tenants.get_mut(tenant).computed = account;
        }
    }

    /// Unfinished prefill of the tenant whose turn it is; begins a round if none has credit.
    fn next_prefill(&mut self) -> Option<usize> {
        let Self { scratch, queue, computed, config, .. } = self;
        let unfinished = scratch.prefills.iter().enumerate().filter(|(_, prefill)| prefill.missing > 0);
        let account = |prefill: &Prefill| queue.tenants.get(prefill.tenant).computed;
        let order = |prefill: &Prefill| {
            if !config.fair_shares {
                return (false, 0, 0, prefill.rank);
            }
            let account = account(prefill);
            let turn = account.turn();
            let owes = !computed.has_credit(account);
            // Among those that owe, the next round is that of the smallest debt.
            (owes, if owes { 0 } else { -prefill.priority }, turn, prefill.rank)
        };
        let (at, prefill) = unfinished.min_by_key(|(_, prefill)| order(prefill))?;
        let account = account(prefill);
        if !computed.has_credit(account) {
            computed.advance_to(account.turn());
        }
        Some(at)
    }

    /// Says that `tokens` of a request were computed, and that `sampled` new ones are known.
    pub fn advanced(&mut self, id: RequestId, tokens: usize, sampled: usize) {
        let Some(slot) = self.entries.slot(id) else { return };
        let entry = self.entries.get_mut(slot);
        if entry.place != Place::Running {
            return;
        }
        let (tenant, former, was_prefill) = (entry.tenant, entry.computed, entry.in_prefill());
        entry.known = entry.known.saturating_add(sampled).min(2 * MAX_TOKENS);
        entry.computed = former.saturating_add(tokens).min(entry.known);
        let computed = entry.computed;
        let new = computed.saturating_sub(entry.seen.max(former));
        entry.seen = entry.seen.max(computed);
        let unpaid = entry.known.saturating_sub(entry.charged);
        entry.charged += unpaid;
        let ends_prefill = was_prefill && !entry.in_prefill();
        self.statistics.recomputed += (computed - former - new) as u64;
        let counter = if was_prefill { &mut self.statistics.prefilled } else { &mut self.statistics.decoded };
        *counter += new as u64;
        self.tokens += computed - former;
        let contended = self.queue.tenants.others_wait(tenant);
        let owner = self.queue.tenants.get_mut(tenant);
        owner.tokens += computed - former;
        self.computed.charge(&mut owner.computed, owner.weight, new, contended);
        self.queue.charge(tenant, unpaid);
        self.update_turn(tenant);
        self.claim(slot);
        if ends_prefill {
            self.stop_leading(slot);
        }
    }

    /// Says how long a step took.
    pub fn observe(&mut self, step: &[Work], duration: Duration) {
        self.cost.observe(step, duration);
        self.rates.served(step.iter().map(|work| work.tokens).sum(), duration);
    }
}

/// True if the missing tokens of a request are computed beside those of the others, not in chunks.
fn is_decode(missing: usize, in_prefill: bool) -> bool {
    missing == 1 || (!in_prefill && missing <= DECODE_RUN)
}
