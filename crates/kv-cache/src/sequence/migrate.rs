//! Making older blocks smaller, between steps.

use std::sync::Arc;

use parking_lot::Mutex;
use ruvllm_kernels::{Kernels, KvScratch, ThreadPool};

use super::Sequence;
use crate::block::Block;
use crate::convert::convert;
use crate::store::{HOT, Storage};

/// What a call of [`Sequence::migrate`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Migration {
    /// Blocks that were rewritten in a lower tier.
    pub blocks: usize,
    /// Bytes that they take less.
    pub saved_bytes: usize,
    /// Whether the pool had no page left to write into: the rest stays as it is.
    pub starved: bool,
}

/// What is left of a block's mass when attention is added once more: what was looked at 20 steps ago counts a third.
const MASS_DECAY: f32 = 0.95;

/// A block on its way down.
struct Job {
    block: Block,
    from: Arc<Storage>,
    to: Storage,
}

impl Sequence {
    /// Rewrites up to `limit` whole blocks in the tier that their age asks for, on all `threads`; the oldest first. While
    /// memory is short ([`KvStore::is_short`](crate::KvStore::is_short)), everything that is not hot goes to the lowest tier. To be called between steps; how often only decides how long blocks stay larger than they need to be.
    ///
    /// Blocks only ever go down, each from the numbers that are there now. They are written beside the present ones and
    /// then published, for every sequence that shares them; steps that run meanwhile go on with the old ones.
    pub fn migrate(&mut self, kernels: &Kernels, threads: &ThreadPool, limit: usize) -> Migration {
        self.unpin();
        let mut migration = Migration::default();
        let mut jobs = Vec::new();
        if self.store.n_tiers() > 1 {
            migration.starved = !self.plan(limit, &mut jobs);
        }
        if !jobs.is_empty() {
            self.update_corrections(threads);
        }
        self.rewrite(kernels, threads, &mut jobs);
        for Job { block, from, to } in jobs {
            let saved = from.bytes().saturating_sub(to.bytes());
            if block.publish(&from, to) {
                migration.blocks += 1;
                migration.saved_bytes += saved;
            }
        }
        migration
    }

    /// Adds the share of attention that each block got in some step, from position 0 on; older shares fade. Blocks with the
    /// most of it stay hot, as many as the policy keeps ([`KvPolicy::kept_blocks`](crate::KvPolicy::kept_blocks)). The same
    /// heavy hitters are needed over and over (H2O, arXiv 2306.14048).
    pub fn add_mass(&mut self, shares: &[f32]) {
        if self.mass.len() < shares.len() {
            self.mass.resize(shares.len(), 0.0);
        }
        self.mass.iter_mut().for_each(|mass| *mass *= MASS_DECAY);
        self.mass.iter_mut().zip(shares).for_each(|(mass, share)| *mass += share);
    }

    /// The hot blocks beyond the hot tokens that attention returned to most.
    fn heavy_blocks(&self) -> Vec<usize> {
        let n = self.store.policy().kept_blocks;
        if n == 0 {
            return Vec::new();
        }
        let mass = |index: usize| self.mass.get(index).copied().unwrap_or(0.0);
        let first = self.released;
        let aged = self.blocks().iter().enumerate().filter(|(index, block)| {
            mass(first + index) > 0.0 && block.tier() == HOT && self.tier_by_age(first + index) != HOT
        });
        let mut heavy: Vec<usize> = aged.map(|(index, _)| first + index).collect();
        heavy.sort_by(|&a, &b| mass(b).total_cmp(&mass(a)));
        heavy.truncate(n);
        heavy
    }

    /// Finds blocks to rewrite and memory for them; `false` if the memory ran out.
    fn plan(&self, limit: usize, jobs: &mut Vec<Job>) -> bool {
        let lowest = self.store.n_tiers() - 1;
        let short = self.store.is_short();
        let heavy = self.heavy_blocks();
        for (index, block) in self.blocks().iter().enumerate() {
            if jobs.len() >= limit {
                break;
            }
            let by_age = self.tier_by_age(self.released + index);
            if by_age == HOT || heavy.contains(&(self.released + index)) {
                continue;
            }
            let wanted = if short { lowest } else { by_age };
            let from = block.storage();
            if from.tier() >= wanted {
                continue;
            }
            match self.store.allocate(wanted) {
                Ok(to) => jobs.push(Job { block: block.clone(), from, to }),
                Err(_) => return false,
            }
        }
        true
    }

    /// The tier of block `index` by its distance from the end.
    fn tier_by_age(&self, index: usize) -> usize {
        self.store.tier_by_age(index, self.len, self.hot_tokens)
    }

    /// Converts every layer of every job, spread over the threads.
    fn rewrite(&self, kernels: &Kernels, threads: &ThreadPool, jobs: &mut [Job]) {
        let layers = jobs.iter_mut().flat_map(|Job { from, to, .. }| {
            let tiers = (self.store.tier(from.tier()), self.store.tier(to.tier()));
            let from = &**from;
            to.layers_mut().enumerate().map(move |(layer, target)| (tiers, layer, from, target))
        });
        let layers = Mutex::new(layers);
        threads.run(&|_| {
            let mut scratch = KvScratch::new();
            // The lock is held for the step of the iterator only.
            let next = || layers.lock().next();
            while let Some(((from, to), layer, storage, target)) = next() {
                let (source, corrections) = (storage.layer(layer), self.corrections(layer));
                convert(kernels, (from, source), (to, target), corrections, &mut scratch);
            }
        });
    }
}
