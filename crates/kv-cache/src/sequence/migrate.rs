//! Migration of older blocks to lower-precision tiers, between steps.

use std::sync::Arc;

use parking_lot::Mutex;
use ruvllm_kernels::attention::KvScratch;
use ruvllm_kernels::{Kernels, ThreadPool};

use super::Sequence;
use crate::block::Block;
use crate::convert::convert;
use crate::learned::KeyRopes;
use crate::storage::Storage;
use crate::store::HOT;

/// Result of [`Sequence::migrate`] or [`Sequence::shrink`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Migration {
    /// Blocks that were rewritten in a lower tier.
    pub blocks: usize,
    /// Bytes saved.
    pub saved_bytes: usize,
    /// `true` if the pool had no page left to write into; the rest was not moved.
    pub starved: bool,
}

impl Migration {
    /// `true` if it ran out of memory after saving some.
    pub(super) fn should_retry(self) -> bool {
        self.starved && self.blocks > 0
    }
}

/// Decay of a block's mass when attention is added: that of 20 steps ago counts a third.
const MASS_DECAY: f32 = 0.95;

/// Choice of blocks to migrate, and their tiers.
#[derive(Debug, Clone, Copy)]
struct Selection {
    /// Maximum number of blocks.
    limit: usize,
    /// Tokens at the end that stay hot.
    hot_tokens: usize,
    /// `true` for the lowest tier, whatever a block's age.
    to_lowest: bool,
    /// `true` to keep heavy hitters hot.
    keeps_heavy: bool,
}

/// A block that is being migrated.
struct Job {
    block: Block,
    /// Position of its first token.
    position: usize,
    from: Arc<Storage>,
    to: Arc<Storage>,
}

/// Working memory of migrations, kept from call to call.
#[derive(Default)]
pub(super) struct MigrationScratch {
    jobs: Vec<Job>,
    heavy: Vec<usize>,
    /// One per thread. Only one thread at a time uses each, so the locks are never contended.
    workers: Vec<Mutex<KvScratch>>,
    /// Lower tiers that all of `workers` have room for.
    ready: Vec<usize>,
}

impl Sequence {
    /// Rewrites up to `limit` whole blocks in the tier of their age, on all `threads`; the oldest
    /// first. To be called between steps.
    ///
    /// Blocks only move to lower tiers, each from its present precision. They are written beside
    /// the present ones and then published, for every sequence that shares them; steps that run
    /// meanwhile keep the old ones.
    pub fn migrate(&mut self, kernels: &Kernels, threads: &ThreadPool, limit: usize) -> Migration {
        let selection = Selection { limit, hot_tokens: self.hot_tokens, to_lowest: false, keeps_heavy: true };
        self.lower(kernels, threads, selection)
    }

    /// Moves all blocks that are not hot to the lowest tier, whatever their age.
    pub(super) fn lower_due(&mut self, kernels: &Kernels, threads: &ThreadPool) -> Migration {
        let selection =
            Selection { limit: usize::MAX, hot_tokens: self.hot_tokens, to_lowest: true, keeps_heavy: true };
        self.lower(kernels, threads, selection)
    }

    /// Moves all whole blocks but the first tokens and the last `hot_tokens` to the lowest tier,
    /// the policy's hot tokens and kept blocks included. This costs quality, unlike
    /// [`migrate`](Self::migrate).
    pub fn shrink(&mut self, kernels: &Kernels, threads: &ThreadPool, hot_tokens: usize) -> Migration {
        let selection = Selection { limit: usize::MAX, hot_tokens, to_lowest: true, keeps_heavy: false };
        self.lower(kernels, threads, selection)
    }

    /// Adds each block's share of attention in a step, from position 0 on; older shares decay.
    /// Heavy hitters (H2O, arXiv 2306.14048) stay hot, as many as
    /// [`KvPolicy::kept_blocks`](crate::KvPolicy::kept_blocks).
    pub fn add_mass(&mut self, shares: &[f32]) {
        if self.mass.len() < shares.len() {
            self.mass.reserve(self.most_blocks().saturating_sub(self.mass.len()));
            self.mass.resize(shares.len(), 0.0);
        }
        self.mass.iter_mut().for_each(|mass| *mass *= MASS_DECAY);
        self.mass.iter_mut().zip(shares).for_each(|(mass, share)| *mass += share);
    }

    fn lower(&mut self, kernels: &Kernels, threads: &ThreadPool, selection: Selection) -> Migration {
        let mut migration = Migration::default();
        if self.store.n_tiers() == 1 {
            return migration;
        }
        let mut scratch = std::mem::take(&mut self.migration_scratch);
        migration.starved = !self.select(selection, &mut scratch);
        if !scratch.jobs.is_empty() {
            self.update_corrections(threads);
        }
        scratch.rewrite(kernels, threads, self);
        for Job { block, from, to, .. } in scratch.jobs.drain(..) {
            let saved = from.bytes().saturating_sub(to.bytes());
            if block.publish(&from, to) {
                migration.blocks += 1;
                migration.saved_bytes += saved;
            }
            self.handles.keep(from);
        }
        self.migration_scratch = scratch;
        migration
    }

    /// Lists blocks to rewrite and allocates memory for them; `false` if the memory ran out.
    fn select(&mut self, selection: Selection, scratch: &mut MigrationScratch) -> bool {
        let MigrationScratch { jobs, heavy, .. } = scratch;
        let Selection { limit, hot_tokens, to_lowest, keeps_heavy } = selection;
        heavy.clear();
        if keeps_heavy {
            self.find_heavy(hot_tokens, heavy);
        }
        let lowest = self.store.n_tiers() - 1;
        for at in 0..self.blocks().len() {
            if jobs.len() >= limit {
                break;
            }
            let index = self.index(at);
            let by_age = self.tier_by_age(index, hot_tokens);
            if by_age == HOT || heavy.contains(&index) {
                continue;
            }
            let wanted = if to_lowest { lowest } else { by_age };
            let from = self.blocks[at].storage();
            if from.tier() >= wanted {
                continue;
            }
            // The new tier's memory is charged to the tenant of the block.
            match self.handles.allocate(self.blocks[at].store(), wanted) {
                Ok(to) => {
                    let position = index * self.store.block_tokens();
                    jobs.push(Job { block: self.blocks[at].clone(), position, from, to });
                }
                Err(_) => return false,
            }
        }
        true
    }

    /// The hot blocks beyond the hot tokens with the largest mass.
    fn find_heavy(&self, hot_tokens: usize, heavy: &mut Vec<usize>) {
        let n = self.store.policy().kept_blocks;
        if n == 0 {
            return;
        }
        let mass = |index: usize| self.mass.get(index).copied().unwrap_or(0.0);
        let aged = self.blocks().iter().enumerate().filter(|(at, block)| {
            let index = self.index(*at);
            mass(index) > 0.0 && block.tier() == HOT && self.tier_by_age(index, hot_tokens) != HOT
        });
        heavy.extend(aged.map(|(at, _)| self.index(at)));
        heavy.sort_unstable_by(|&a, &b| mass(b).total_cmp(&mass(a)).then(a.cmp(&b)));
        heavy.truncate(n);
    }

    /// The tier of whole block `index` by its distance from the end.
    pub(super) fn tier_by_age(&self, index: usize, hot_tokens: usize) -> usize {
        self.store.tier_by_age(index, self.len, hot_tokens)
    }
}

impl Job {
    /// Allocates every worker's scratch for the new tier, by rewriting a layer of each width.
    /// The threads that take part depend on timing; none may allocate later.
    fn reserve_scratch(
        &mut self,
        kernels: &Kernels,
        sequence: &Sequence,
        key_ropes: Option<&KeyRopes>,
        workers: &mut [Mutex<KvScratch>],
    ) {
        let tiers = (sequence.store.tier(self.from.tier()), sequence.store.tier(self.to.tier()));
        let to = Arc::get_mut(&mut self.to).expect("nobody else has a storage before it is published");
        for layer in sequence.store.shape().first_layers() {
            let context = sequence.context(layer, key_ropes, self.position);
            for scratch in &mut *workers {
                let source = (tiers.0.layout(layer), self.from.layer(layer));
                let target = (tiers.1.layout(layer), to.layer_mut(layer));
                convert(kernels, source, target, context, scratch.get_mut());
            }
        }
    }
}

impl MigrationScratch {
    /// Converts every layer of every job, spread over the threads.
    fn rewrite(&mut self, kernels: &Kernels, threads: &ThreadPool, sequence: &Sequence) {
        let store = &sequence.store;
        let Self { jobs, workers, ready, .. } = self;
        if jobs.is_empty() {
            return;
        }
        if workers.len() < threads.threads() {
            workers.resize_with(threads.threads(), Mutex::default);
            ready.clear();
            ready.reserve(store.n_tiers());
        }
        let key_ropes = store.key_ropes(sequence.len, sequence.capacity);
        for job in jobs.iter_mut() {
            if !ready.contains(&job.to.tier()) {
                ready.push(job.to.tier());
                job.reserve_scratch(kernels, sequence, key_ropes.as_ref(), workers);
            }
        }
        let layers = jobs.iter_mut().flat_map(|Job { position, from, to, .. }| {
            let tiers = (store.tier(from.tier()), store.tier(to.tier()));
            let (from, position) = (&**from, *position);
            let to = Arc::get_mut(to).expect("nobody else has a storage before it is published");
            to.layers_mut().enumerate().map(move |(layer, target)| (tiers, (layer, position), from, target))
        });
        let layers = Mutex::new(layers);
        threads.run(&|worker| {
            let mut scratch = workers[worker].lock();
            // The lock is held for the step of the iterator only.
            let next = || layers.lock().next();
            while let Some(((from, to), (layer, position), storage, target)) = next() {
                let context = sequence.context(layer, key_ropes.as_ref(), position);
                let source = (from.layout(layer), storage.layer(layer));
                convert(kernels, source, (to.layout(layer), target), context, &mut scratch);
            }
        });
    }
}
