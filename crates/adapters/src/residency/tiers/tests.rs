//! Simulations of the state machine, without memory.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use ruvllm_testkit::Random;

use super::*;

const LIMITS: Limits = Limits { hot_adapters: 10, hot_bytes: 1000, warm_adapters: 30, warm_bytes: 1500 };

/// Use of the state machine as by [`Residency`](super::super::Residency), without adapters.
struct Simulated {
    tiers: Tiers,
    pins: BTreeSet<Id>,
    moves: usize,
}

impl Simulated {
    fn new(limits: Limits) -> Self {
        Self { tiers: Tiers::new(limits), pins: BTreeSet::new(), moves: 0 }
    }

    fn insert(&mut self, n: usize) -> Vec<Id> {
        (0..n).map(|_| self.tiers.insert(Precision::Tiered, 20, 10)).collect()
    }

    /// Tier that the access found.
    fn access(&mut self, id: Id, now: f64) -> Tier {
        let Self { tiers, pins, .. } = self;
        let is_pinned = |id: Id| pins.contains(&id);
        tiers.touch(id, now);
        let found = tiers.tier(id);
        if found == Tier::Cold {
            let target = tiers.target(id, is_pinned);
            tiers.place(id, target);
        } else if tiers.is_promoted(id, now, is_pinned) {
            tiers.place(id, Tier::Hot);
            self.moves += 1;
        }
        // An adapter that was just taken is in use.
        let is_pinned = |other: Id| other == id || self.pins.contains(&other);
        while let Some(Move { id, to }) = self.tiers.next_move(is_pinned) {
            self.tiers.place(id, to);
            self.moves += 1;
        }
        found
    }

    fn members(&self, tier: Tier) -> BTreeSet<Id> {
        let level = self.tiers.level(tier).expect("a tier in memory");
        level.order.iter().map(|(_, id)| *id).collect()
    }
}

/// Zipf-distributed index below `n` with exponent 1.
fn zipf(random: &mut Random, cumulative: &[f64]) -> usize {
    let total = cumulative.last().copied().unwrap_or_default();
    let at = random.next_u64() as f64 / u64::MAX as f64 * total;
    cumulative.partition_point(|sum| *sum < at).min(cumulative.len() - 1)
}

/// Sums of `1 / rank`.
fn harmonic(n: usize) -> Vec<f64> {
    (1..=n)
        .scan(0.0, |sum, rank| {
            *sum += 1.0 / rank as f64;
            Some(*sum)
        })
        .collect()
}

#[test]
fn frequent_adapters_are_hot_and_the_next_ones_warm() {
    let mut simulated = Simulated::new(LIMITS);
    let ids = simulated.insert(1000);
    let cumulative = harmonic(1000);
    let mut random = Random::new(1);
    let mut found = BTreeMap::from([(Tier::Hot, 0), (Tier::Warm, 0), (Tier::Cold, 0)]);
    for step in 0..20_000 {
        let id = ids[zipf(&mut random, &cumulative)];
        let tier = simulated.access(id, step as f64 / 2000.0);
        if step >= 2000 {
            *found.entry(tier).or_default() += 1;
        }
    }
    // The ten most frequent of 1,000 have 39 % of all accesses, the first 40 57 %.
    assert!(found[&Tier::Hot] > 18_000 * 34 / 100, "{found:?}");
    assert!(found[&Tier::Hot] + found[&Tier::Warm] > 18_000 * 50 / 100, "{found:?}");
    let hot = simulated.members(Tier::Hot);
    assert!(ids[..6].iter().all(|id| hot.contains(id)), "{hot:?}");
}

#[test]
fn a_scan_leaves_the_hot_tier_alone() {
    let mut simulated = Simulated::new(LIMITS);
    let ids = simulated.insert(500);
    for round in 0..5 {
        for &id in &ids[..10] {
            simulated.access(id, f64::from(round) / 100.0);
        }
    }
    let hot = simulated.members(Tier::Hot);
    assert_eq!(hot, ids[..10].iter().copied().collect());
    for &id in &ids[10..] {
        simulated.access(id, 0.1);
    }
    assert_eq!(simulated.members(Tier::Hot), hot);
}

#[test]
fn counts_decay_so_that_new_adapters_become_hot() {
    let mut simulated = Simulated::new(LIMITS);
    let ids = simulated.insert(20);
    for step in 0..1000 {
        simulated.access(ids[step % 10], 0.0);
    }
    // 100 accesses each at 0; ten half-lives later one weighs a tenth of a new one.
    for step in 0..40 {
        simulated.access(ids[10 + step % 10], 10.0 + step as f64 / 100.0);
    }
    assert_eq!(simulated.members(Tier::Hot), ids[10..].iter().copied().collect());
    assert_eq!(simulated.members(Tier::Warm), ids[..10].iter().copied().collect());
}

#[test]
fn adapters_in_turn_do_not_replace_each_other() {
    // One more than the hot tier holds, all used equally often: no cliff, no thrashing.
    for used in [11, 12, 15, 40] {
        let mut simulated = Simulated::new(LIMITS);
        let ids = simulated.insert(used);
        let mut hits = 0;
        for step in 0..used * 100 {
            let tier = simulated.access(ids[step % used], step as f64 / (used * 20) as f64);
            hits += usize::from(tier == Tier::Hot);
        }
        assert!(simulated.moves <= 3, "{} moves", simulated.moves);
        assert!(hits >= 10 * 99, "{hits}");
    }
}

#[test]
fn precisions_keep_to_their_tiers() {
    let mut tiers = Tiers::new(Limits { hot_adapters: 1, ..LIMITS });
    let [exact, small] = [Precision::F16, Precision::I8].map(|precision| tiers.insert(precision, 20, 10));
    let other = tiers.insert(Precision::Tiered, 20, 10);
    for id in [exact, small, other] {
        tiers.touch(id, 0.0);
    }
    let free = |_| false;
    assert_eq!((tiers.target(exact, free), tiers.target(small, free)), (Tier::Hot, Tier::Warm));
    tiers.place(small, Tier::Warm);
    tiers.touch(small, 0.0);
    assert!(!tiers.is_promoted(small, 0.0, free));
    tiers.place(exact, Tier::Hot);
    assert_eq!(tiers.target(other, free), Tier::Warm, "the hot tier is full");
    tiers.place(other, Tier::Hot);
    assert_eq!(tiers.next_move(|id| id == other), Some(Move { id: exact, to: Tier::Cold }));
    assert_eq!(tiers.next_move(|id| id == exact), Some(Move { id: other, to: Tier::Warm }));
    assert_eq!(tiers.next_move(|_| true), None, "what is in use does not move");
}

#[test]
fn without_room_for_it_a_tier_is_skipped() {
    let free = |_| false;
    let mut tiers = Tiers::new(Limits { hot_bytes: 15, warm_bytes: 100, ..LIMITS });
    let large = tiers.insert(Precision::Tiered, 20, 10);
    assert_eq!(tiers.target(large, free), Tier::Warm);
    let mut tiers = Tiers::new(Limits { hot_adapters: 0, warm_adapters: 0, ..LIMITS });
    let any = tiers.insert(Precision::Tiered, 20, 10);
    tiers.place(any, Tier::Hot);
    assert_eq!(tiers.next_move(free), Some(Move { id: any, to: Tier::Cold }));
}

/// Operation of the property below; indices are taken modulo the number of adapters.
#[derive(Debug, Clone)]
enum Op {
    Access(usize),
    Pin(usize),
    Unpin(usize),
    Remove(usize),
    Insert(u8),
    Evict(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let index = 0_usize..100;
    prop_oneof![
        8 => index.clone().prop_map(Op::Access),
        1 => index.clone().prop_map(Op::Pin),
        1 => index.clone().prop_map(Op::Unpin),
        1 => index.clone().prop_map(Op::Remove),
        2 => any::<u8>().prop_map(Op::Insert),
        1 => index.prop_map(Op::Evict),
    ]
}

proptest! {
    #[test]
    fn limits_hold_but_for_what_is_in_use(ops in prop::collection::vec(op(), 1..400)) {
        let mut simulated = Simulated::new(LIMITS);
        let mut ids = simulated.insert(20);
        for (step, op) in ops.into_iter().enumerate() {
            let now = step as f64 / 50.0;
            let (mut is_access, mut last) = (false, ids[0]);
            match op {
                Op::Access(i) => {
                    let id = ids[i % ids.len()];
                    simulated.access(id, now);
                    (is_access, last) = (true, id);
                    prop_assert_ne!(simulated.tiers.tier(id), Tier::Cold);
                }
                Op::Pin(i) => drop(simulated.pins.insert(ids[i % ids.len()])),
                Op::Unpin(i) => drop(simulated.pins.remove(&ids[i % ids.len()])),
                Op::Insert(kind) => {
                    let precision = [Precision::Tiered, Precision::F16, Precision::I8][usize::from(kind % 3)];
                    let bytes = usize::from(kind) + 1;
                    ids.push(simulated.tiers.insert(precision, bytes, bytes.div_ceil(2)));
                }
                Op::Remove(i) if ids.len() > 1 => {
                    let id = ids.swap_remove(i % ids.len());
                    simulated.pins.remove(&id);
                    simulated.tiers.remove(id);
                }
                Op::Evict(i) => simulated.tiers.place(ids[i % ids.len()], Tier::Cold),
                Op::Remove(_) => {}
            }
            for (tier, most, most_bytes) in [(Tier::Hot, 10, 1000), (Tier::Warm, 30, 1500)] {
                let members = simulated.members(tier);
                let (n, bytes) = simulated.tiers.size(tier);
                prop_assert_eq!(members.len(), n);
                let sum: usize = members.iter().map(|id| simulated.tiers.slot(*id).unwrap().bytes()).sum();
                prop_assert_eq!(sum, bytes);
                prop_assert!(members.iter().all(|id| simulated.tiers.tier(*id) == tier));
                // Adapters in use may exceed the limits, and stays until the next access.
                if is_access {
                    let free = members.iter().any(|id| *id != last && !simulated.pins.contains(id));
                    prop_assert!(!free || n <= most && bytes <= most_bytes, "{} {}", n, bytes);
                }
            }
        }
    }
}
