//! Sizes and recent steps of an engine, for metrics and a live view.

use ruvllm_adapters::ResidencyStatistics;
use ruvllm_kv_cache::KvStore;
use ruvllm_kv_cache::prefix::PrefixNode;
use ruvllm_memory::{PoolStats, Tenant};

use crate::engine::Engine;
use crate::prefix::{PrefixCache, PrefixEvents};
use crate::step::StepRecord;

/// Keys and values of one tier, of sequences and cached prefixes; shared blocks count once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KvTierUsage {
    /// Blocks.
    pub blocks: usize,
    /// Their bytes, scales and padding included.
    pub bytes: usize,
}

/// Keys and values in memory by tier, of all KV policies together, and the pages of the budget,
/// which adapters share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KvUsage {
    /// Tier of the latest tokens.
    pub hot: KvTierUsage,
    /// Tier of older ones; empty without such a tier.
    pub warm: KvTierUsage,
    /// Tier of the oldest ones; empty without such a tier.
    pub cold: KvTierUsage,
    /// Pages: capacity, used and free ones.
    pub pool: PoolStats,
}

impl KvUsage {
    fn add(&mut self, store: &KvStore) {
        let Self { hot, warm, cold, .. } = self;
        let policy = store.policy();
        let below = [policy.warm.is_some().then_some(warm), Some(cold)];
        for (tier, sum) in store.tiers().zip([Some(hot)].into_iter().chain(below).flatten()) {
            sum.blocks += tier.blocks;
            sum.bytes += tier.bytes;
        }
    }
}

impl Engine {
    /// Keys and values in memory by tier, and the pages of the KV budget.
    pub fn kv_usage(&self) -> KvUsage {
        let (core, none) = (self.core(), KvTierUsage::default());
        let mut usage = KvUsage { hot: none, warm: none, cold: none, pool: core.kv.pool().stats() };
        usage.add(&core.kv);
        core.request_kv.iter().for_each(|store| usage.add(store));
        usage
    }

    /// Registered adapters by tier, their bytes in memory, hits, loads and evictions. Loads are
    /// [`misses`](ResidencyStatistics::misses), by requests, and
    /// [`prefetches`](ResidencyStatistics::prefetches), ahead of them.
    pub fn adapter_statistics(&self) -> ResidencyStatistics {
        self.core().residency.statistics()
    }

    /// Steps with the number `first` and later ones, oldest first. The last 4096 are kept: gaps in
    /// the numbers are steps that nobody has asked for in time.
    ///
    /// ```no_run
    /// # let engine = ruvllm::Engine::open("model.gguf")?;
    /// let mut next = 0;
    /// for step in engine.steps_since(next) {
    ///     println!("{} sequences in {:?}", step.sequences, step.duration);
    ///     next = step.number + 1;
    /// }
    /// # Ok::<(), ruvllm::Error>(())
    /// ```
    pub fn steps_since(&self, first: u64) -> Vec<StepRecord> {
        self.core().counters.steps_since(first)
    }

    /// The `most` nodes of the prefix tree that were used last, latest first, without their tokens
    /// and their tenants; a parent comes before its children. Empty without a prefix cache.
    pub fn prefix_nodes(&self, most: usize) -> Vec<PrefixNode> {
        self.core().prefixes.as_deref().map(|prefixes: &PrefixCache| prefixes.nodes(most)).unwrap_or_default()
    }

    /// Changes of the prefixes that requests of a tenant can reuse, after those that are there now;
    /// `None` without a prefix cache.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use ruvllm::{Engine, PrefixEvent, Tenant};
    /// let engine = Engine::open("model.gguf")?;
    /// let mut events = engine.prefix_events(&Tenant::root()).expect("the cache is on");
    /// for event in events.next(Duration::from_millis(100)) {
    ///     if let PrefixEvent::Stored { hashes, .. } = event {
    ///         println!("{} new blocks", hashes.len());
    ///     }
    /// }
    /// # Ok::<(), ruvllm::Error>(())
    /// ```
    pub fn prefix_events(&self, tenant: &Tenant) -> Option<PrefixEvents> {
        Some(self.core().prefixes.clone()?.events(tenant))
    }
}
