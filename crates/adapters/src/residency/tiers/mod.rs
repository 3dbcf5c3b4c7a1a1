//! State machine of residency: which adapters are hot, warm or cold, and which one moves next.
//!
//! Pure: no clock, no threads, no memory. Time is passed in, in half-lives of the access counts;
//! pins are asked for. [`Residency`](super::Residency) applies the moves to memory.
//!
//! # Counts
//! An access at time `t` weighs `2^(t - now)`. With forward decay the weights of all adapters are
//! multiplied by the same factor as time passes, so that their order changes by accesses only: the
//! score kept is `log2(sum of 2^t)`, and an ordered set gives the least one in O(log n).
//! Source: Cormode, Shkapenyuk, Srivastava and Xu, "Forward Decay" (ICDE 2009).
//!
//! # Hysteresis
//! In a full tier, an adapter replaces another one only with [`MARGIN`] times its count, so that
//! two adapters in turn do not replace each other forever.

use std::collections::BTreeSet;

/// Ratio of counts, as a power of two, from which an adapter replaces another one in a full tier.
const MARGIN: f64 = 1.0;

/// Decayed count from which a warm adapter becomes hot while the hot tier has room.
const PROMOTION_COUNT: f64 = 1.5;

/// Residency of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// F16 factors in pages.
    Hot,
    /// I8 factors in pages.
    Warm,
    /// In its file only.
    Cold,
}

/// Formats in which an adapter may serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// F16 or I8, whichever is resident.
    #[default]
    Tiered,
    /// F16 always: from hot to cold, never warm.
    F16,
    /// I8 always: from warm to cold, never hot.
    I8,
}

/// Limits of the tiers. Adapters in use do not move, so they may exceed them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Adapters in F16.
    pub hot_adapters: usize,
    /// Bytes of adapters in F16.
    pub hot_bytes: usize,
    /// Adapters in I8.
    pub warm_adapters: usize,
    /// Bytes of adapters in I8.
    pub warm_bytes: usize,
}

impl Default for Limits {
    /// 100 hot and 1,000 warm adapters; bytes are limited by the pool alone.
    fn default() -> Self {
        Self { hot_adapters: 100, hot_bytes: usize::MAX, warm_adapters: 1000, warm_bytes: usize::MAX }
    }
}

/// Index of a registered version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id(pub(crate) u32);

/// A change of tier that keeps the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) id: Id,
    pub(crate) to: Tier,
}

/// Non-negative score, ordered: its bits as an integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Score(u64);

impl Score {
    fn new(value: f64) -> Self {
        Self(value.max(0.0).to_bits())
    }

    fn value(self) -> f64 {
        f64::from_bits(self.0)
    }
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    precision: Precision,
    tier: Tier,
    /// `None` before the first access.
    score: Option<Score>,
    hot_bytes: usize,
    warm_bytes: usize,
}

impl Slot {
    fn bytes(&self) -> usize {
        match self.tier {
            Tier::Hot => self.hot_bytes,
            Tier::Warm => self.warm_bytes,
            Tier::Cold => 0,
        }
    }
}

/// A tier in memory: its adapters by score.
#[derive(Debug, Default)]
struct Level {
    order: BTreeSet<(Score, Id)>,
    bytes: usize,
    most_adapters: usize,
    most_bytes: usize,
}

impl Level {
    fn is_over(&self) -> bool {
        self.order.len() > self.most_adapters || self.bytes > self.most_bytes
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.order.len() < self.most_adapters && bytes <= self.most_bytes.saturating_sub(self.bytes)
    }

    /// Least score of an adapter that is not in use.
    fn weakest(&self, is_pinned: impl Fn(Id) -> bool) -> Option<(Score, Id)> {
        self.order.iter().copied().find(|(_, id)| !is_pinned(*id))
    }
}

/// All registered versions and their tiers.
#[derive(Debug)]
pub(crate) struct Tiers {
    slots: Vec<Option<Slot>>,
    free: Vec<Id>,
    hot: Level,
    warm: Level,
}

impl Tiers {
    pub(crate) fn new(limits: Limits) -> Self {
        let Limits { hot_adapters, hot_bytes, warm_adapters, warm_bytes } = limits;
        let level = |most_adapters, most_bytes| Level { most_adapters, most_bytes, ..Level::default() };
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            hot: level(hot_adapters, hot_bytes),
            warm: level(warm_adapters, warm_bytes),
        }
    }

    /// Adds a cold version that takes these bytes in each tier.
    pub(crate) fn insert(&mut self, precision: Precision, hot_bytes: usize, warm_bytes: usize) -> Id {
        let slot = Some(Slot { precision, tier: Tier::Cold, score: None, hot_bytes, warm_bytes });
        if let Some(id) = self.free.pop() {
            self.slots[id.0 as usize] = slot;
            return id;
        }
        let id = Id(u32::try_from(self.slots.len()).unwrap_or(u32::MAX));
        self.slots.push(slot);
        id
    }

    /// Removes a version; its id may be given to another one.
    pub(crate) fn remove(&mut self, id: Id) {
        self.place(id, Tier::Cold);
        if self.slots.get_mut(id.0 as usize).and_then(Option::take).is_some() {
            self.free.push(id);
        }
    }

    /// Tier of a version; cold for one that was removed.
    pub(crate) fn tier(&self, id: Id) -> Tier {
        self.slot(id).map_or(Tier::Cold, |slot| slot.tier)
    }

    /// Number of versions.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adapters and bytes of a tier in memory.
    pub(crate) fn size(&self, tier: Tier) -> (usize, usize) {
        self.level(tier).map_or((0, 0), |level| (level.order.len(), level.bytes))
    }

    /// Counts an access at `now`, in half-lives since any fixed time, not before earlier ones.
    pub(crate) fn touch(&mut self, id: Id, now: f64) {
        let Some(slot) = self.slot(id) else { return };
        let tier = slot.tier;
        let score = match slot.score.map(Score::value) {
            None => now,
            // log2(2^a + 2^b), from the larger one.
            Some(score) => score.max(now) + (-(score - now).abs()).exp2().ln_1p() / std::f64::consts::LN_2,
        };
        self.place(id, Tier::Cold);
        if let Some(slot) = self.slots[id.0 as usize].as_mut() {
            slot.score = Some(Score::new(score));
        }
        self.place(id, tier);
    }

    /// Tier to load a cold version into.
    pub(crate) fn target(&self, id: Id, is_pinned: impl Fn(Id) -> bool) -> Tier {
        let Some(slot) = self.slot(id) else { return Tier::Cold };
        match slot.precision {
            Precision::F16 => Tier::Hot,
            Precision::Tiered if self.may_be_hot(slot, is_pinned) => Tier::Hot,
            Precision::Tiered | Precision::I8 => Tier::Warm,
        }
    }

    /// True if a warm version is used often enough to become hot.
    pub(crate) fn is_promoted(&self, id: Id, now: f64, is_pinned: impl Fn(Id) -> bool) -> bool {
        let Some(slot) = self.slot(id) else { return false };
        let count = slot.score.map_or(0.0, |score| (score.value() - now).exp2());
        slot.tier == Tier::Warm
            && slot.precision == Precision::Tiered
            && count >= PROMOTION_COUNT
            && self.may_be_hot(slot, is_pinned)
    }

    /// True if there is room in the hot tier, or something in it that is used less often.
    fn may_be_hot(&self, slot: &Slot, is_pinned: impl Fn(Id) -> bool) -> bool {
        if self.hot.most_adapters == 0 || slot.hot_bytes > self.hot.most_bytes {
            return false;
        }
        let score = slot.score.unwrap_or_default().value();
        let is_stronger = |(weakest, _): (Score, Id)| score >= weakest.value() + MARGIN;
        self.hot.has_room(slot.hot_bytes) || self.hot.weakest(is_pinned).is_some_and(is_stronger)
    }

    /// Records that a version is in a tier now.
    pub(crate) fn place(&mut self, id: Id, tier: Tier) {
        let Some(mut slot) = self.slot(id).copied() else { return };
        let at = (slot.score.unwrap_or_default(), id);
        if let Some(level) = self.level_mut(slot.tier) {
            level.order.remove(&at);
            level.bytes -= slot.bytes();
        }
        slot.tier = tier;
        if let Some(level) = self.level_mut(tier) {
            level.order.insert(at);
            level.bytes += slot.bytes();
        }
        self.slots[id.0 as usize] = Some(slot);
    }

    /// Next move that brings a tier back to its limits; `None` if all are kept, or what exceeds
    /// them is in use.
    pub(crate) fn next_move(&self, is_pinned: impl Fn(Id) -> bool) -> Option<Move> {
        if self.hot.is_over()
            && let Some((_, id)) = self.hot.weakest(&is_pinned)
        {
            return Some(Move { id, to: self.below(id, &is_pinned) });
        }
        let (_, id) = self.warm.weakest(is_pinned).filter(|_| self.warm.is_over())?;
        Some(Move { id, to: Tier::Cold })
    }

    /// Tier below the hot one: warm if the version may serve from there, and is used at least as
    /// often as an adapter that would leave for it.
    pub(crate) fn below(&self, id: Id, is_pinned: impl Fn(Id) -> bool) -> Tier {
        let Some(slot) = self.slot(id).filter(|slot| slot.precision == Precision::Tiered) else {
            return Tier::Cold;
        };
        let is_stronger = |(weakest, _): (Score, Id)| slot.score.unwrap_or_default() >= weakest;
        let warm = &self.warm;
        let fits = warm.most_adapters > 0 && slot.warm_bytes <= warm.most_bytes;
        if fits && (warm.has_room(slot.warm_bytes) || warm.weakest(is_pinned).is_some_and(is_stronger)) {
            Tier::Warm
        } else {
            Tier::Cold
        }
    }

    fn slot(&self, id: Id) -> Option<&Slot> {
        self.slots.get(id.0 as usize)?.as_ref()
    }

    fn level(&self, tier: Tier) -> Option<&Level> {
        match tier {
            Tier::Hot => Some(&self.hot),
            Tier::Warm => Some(&self.warm),
            Tier::Cold => None,
        }
    }

    fn level_mut(&mut self, tier: Tier) -> Option<&mut Level> {
        match tier {
            Tier::Hot => Some(&mut self.hot),
            Tier::Warm => Some(&mut self.warm),
            Tier::Cold => None,
        }
    }
}

#[cfg(test)]
mod tests;
