//! Eviction: who is asked to give pages back, when, and in which order.
//!
//! It starts when the pool is used up to the high watermark and goes on until the low one; or when a request is short, for
//! the pages that it lacks. Ranges are taken in this order: those of tenants beyond their soft quota first; then by
//! idle time × pages × [weight of the content](crate::Content::eviction_weight), the largest first. Of two ranges that are equally
//! idle the longer goes first, since it relieves more. Pinned ranges and those without an owner are left alone.

use std::cell::Cell;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::pool::Shared;
use crate::stats::EvictionStats;
use crate::table::Holding;
use crate::tenant::Account;
use crate::{PageOwner, PageRange, Watermarks};

thread_local! {
    /// Whether this thread asks owners: requests that they make meanwhile do not ask again.
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// When to evict, and what came of it.
pub(crate) struct Eviction {
    high_pages: usize,
    low_pages: usize,
    /// Use at which owners are asked: the high watermark, or more after they have refused.
    trigger_pages: AtomicUsize,
    /// More use after a refusal until they are asked again.
    patience_pages: usize,
    /// A thread is at it.
    busy: AtomicBool,
    rounds: AtomicU64,
    released_pages: AtomicU64,
    refusals: AtomicU64,
}

impl Eviction {
    pub(crate) fn new(watermarks: Watermarks, capacity_pages: usize) -> Self {
        let pages = |fraction: f64| (capacity_pages as f64 * fraction) as usize;
        let high_pages = pages(watermarks.high).max(1);
        Self {
            high_pages,
            low_pages: pages(watermarks.low),
            trigger_pages: AtomicUsize::new(high_pages),
            patience_pages: (capacity_pages / 64).max(1),
            busy: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
            released_pages: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
        }
    }

    pub(crate) fn stats(&self) -> EvictionStats {
        EvictionStats {
            rounds: self.rounds.load(Relaxed),
            released_pages: self.released_pages.load(Relaxed),
            refusals: self.refusals.load(Relaxed),
        }
    }
}

impl Shared {
    /// Brings the pool from the high watermark to the low one.
    #[inline]
    pub(crate) fn evict_under_pressure(&self) {
        if ASKING.get() {
            return;
        }
        let used = self.tenants.root.used();
        let trigger = self.eviction.trigger_pages.load(Relaxed);
        if used < self.eviction.high_pages {
            if trigger != self.eviction.high_pages {
                self.eviction.trigger_pages.store(self.eviction.high_pages, Relaxed);
            }
        } else if used >= trigger {
            self.evict_to_low_watermark();
        }
    }

    #[cold]
    fn evict_to_low_watermark(&self) {
        let eviction = &self.eviction;
        let Some(_busy) = Busy::begin(&eviction.busy) else { return };
        self.relieve(&self.tenants.root, eviction.low_pages);
        let used = self.tenants.root.used();
        let next = if used <= eviction.low_pages { 0 } else { used + eviction.patience_pages };
        eviction.trigger_pages.store(next.max(eviction.high_pages), Relaxed);
    }

    /// Asks owners of `scope`'s pages until it has at most `target_pages` or nobody gives more; how many pages were given.
    #[cold]
    pub(crate) fn relieve(&self, scope: &Account, target_pages: usize) -> usize {
        let Some(_asking) = Asking::begin() else { return 0 };
        self.eviction.rounds.fetch_add(1, Relaxed);
        let owners = self.owners.alive();
        let mut released = 0;
        for (_, owner) in &owners {
            if scope.used() <= target_pages {
                break;
            }
            released += owner.release_unused();
        }
        if scope.used() > target_pages {
            released += self.evict(scope, target_pages, owners.into_iter().collect());
        }
        self.eviction.released_pages.fetch_add(released as u64, Relaxed);
        released
    }

    fn evict(
        &self,
        scope: &Account,
        target_pages: usize,
        mut owners: HashMap<u32, Arc<dyn PageOwner>>,
    ) -> usize {
        let mut candidates = self.candidates(scope);
        let mut released = 0;
        loop {
            let wanted = scope.used().saturating_sub(target_pages);
            let mut asked = Vec::<(u32, Vec<PageRange>)>::new();
            let mut n_pages = 0;
            while n_pages < wanted
                && let Some(candidate) = candidates.pop()
            {
                let (owner, range) = (candidate.owner, candidate.range());
                if !owners.contains_key(&owner) {
                    continue;
                }
                n_pages += range.n_pages;
                match asked.iter_mut().find(|(other, _)| *other == owner) {
                    Some((_, ranges)) => ranges.push(range),
                    None => asked.push((owner, vec![range])),
                }
            }
            if asked.is_empty() {
                return released;
            }
            for (index, ranges) in asked {
                let given = owners[&index].release_ranges(&ranges);
                released += given;
                if given == 0 {
                    self.eviction.refusals.fetch_add(1, Relaxed);
                    owners.remove(&index);
                }
            }
        }
    }

    /// What may be evicted from `scope`'s pages.
    fn candidates(&self, scope: &Account) -> BinaryHeap<Candidate> {
        // By tenant: absent outside of `scope`, else whether it has more than its soft quota.
        let tenants: Vec<Option<bool>> = self
            .tenants
            .by_id()
            .iter()
            .map(|account| account.is_within(scope).then(|| account.is_over_soft_quota()))
            .collect();
        let candidate = |holding: Holding| {
            let owner = holding.owner?;
            let over_soft_quota = (*tenants.get(holding.tenant as usize)?)?;
            (!holding.is_pinned).then(|| Candidate::new(&holding, owner, over_soft_quota))
        };
        self.table.holdings().filter_map(candidate).collect()
    }
}

/// A range that may be evicted; the greatest goes first. Small, because there may be one for each page of the pool.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    score: u64,
    owner: u32,
    first_page: u32,
    n_pages: u32,
}

impl Candidate {
    /// Set in the score of a tenant beyond its soft quota.
    const OVER_SOFT_QUOTA: u64 = 1 << 63;

    fn new(holding: &Holding, owner: u32, over_soft_quota: bool) -> Self {
        let score = (holding.idle + 1)
            .saturating_mul(holding.n_pages as u64)
            .saturating_mul(holding.content.eviction_weight())
            .min(Self::OVER_SOFT_QUOTA - 1);
        Self {
            score: if over_soft_quota { score | Self::OVER_SOFT_QUOTA } else { score },
            owner,
            first_page: holding.first_page as u32,
            n_pages: holding.n_pages as u32,
        }
    }

    fn range(&self) -> PageRange {
        PageRange { first_page: self.first_page as usize, n_pages: self.n_pages as usize }
    }
}

/// Marks the thread as asking until dropped.
struct Asking;

impl Asking {
    fn begin() -> Option<Self> {
        (!ASKING.replace(true)).then_some(Self)
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        ASKING.set(false);
    }
}

/// Keeps other threads from evicting to the low watermark until dropped.
struct Busy<'a>(&'a AtomicBool);

impl<'a> Busy<'a> {
    fn begin(flag: &'a AtomicBool) -> Option<Self> {
        (!flag.swap(true, Relaxed)).then_some(Self(flag))
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}
