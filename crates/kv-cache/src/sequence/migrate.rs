//! Older blocks move to lower-precision tiers, between steps.

use std::sync::Arc;

use parking_lot::Mutex;
use ruvllm_kernels::attention::KvScratch;
use ruvllm_kernels::{Kernels, ThreadPool};

use super::Sequence;
use crate::block::Block;
use crate::convert::convert;
use crate::learned::KeyRotations;
use crate::storage::Storage;
use crate::store::HOT;

/// What a call of [`Sequence::migrate`] or [`Sequence::shrink`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Migration {
    /// Blocks that were rewritten in a lower tier.
    pub blocks: usize,
    /// Bytes that they take less.
    pub saved_bytes: usize,
    /// Whether the pool had no page left to write into: the rest stays as it is.
    pub starved: bool,
}

impl Migration {
    /// Whether it stopped for lack of room that it has made since.
    pub(super) fn is_to_repeat(self) -> bool {
        self.starved && self.blocks > 0
    }
}

/// What is left of a block's mass when attention is added once more: what was looked at 20 steps
/// ago counts a third.
const MASS_DECAY: f32 = 0.95;

/// Which blocks go down, and how far.
#[derive(Debug, Clone, Copy)]
struct Aim {
    /// Tokens at the end that stay hot.
    hot_tokens: usize,
    /// Whether what goes down goes to the lowest tier, whatever its age.
    to_lowest: bool,
    /// Whether what attention returns to stays hot.
    keeps_heavy: bool,
}

/// A block on its way down.
struct Job {
    block: Block,
    /// Position of its first token.
    position: usize,
    from: Arc<Storage>,
    to: Arc<Storage>,
}

/// What migrations work with, kept for its memory.
#[derive(Default)]
pub(super) struct Workbench {
    jobs: Vec<Job>,
    heavy: Vec<usize>,
    /// One per thread. Only one thread at a time uses each, so the locks are never contended.
    scratch: Vec<Mutex<KvScratch>>,
    /// Lower tiers that all of `scratch` has room for.
    ready: Vec<usize>,
}

impl Sequence {
    /// Rewrites up to `limit` whole blocks in the tier that their age asks for, on all `threads`;
    /// the oldest first. To be called between steps; how often only decides how long blocks stay
    /// larger than they need to be.
    ///
    /// Blocks only ever move to lower tiers, each from the numbers that are there now. They are
    /// written beside the present ones and then published, for every sequence that shares them;
    /// steps that run meanwhile go on with the old ones.
    pub fn migrate(&mut self, kernels: &Kernels, threads: &ThreadPool, limit: usize) -> Migration {
        let aim = Aim { hot_tokens: self.hot_tokens, to_lowest: false, keeps_heavy: true };
        self.lower(kernels, threads, limit, aim)
    }

    /// Moves everything that is not hot to the lowest tier, whatever its age.
    pub(super) fn lower_due(&mut self, kernels: &Kernels, threads: &ThreadPool) -> Migration {
        let aim = Aim { hot_tokens: self.hot_tokens, to_lowest: true, keeps_heavy: true };
        self.lower(kernels, threads, usize::MAX, aim)
    }

    /// Moves all whole blocks but the first tokens and the last `hot_tokens` to the lowest tier,
    /// the policy's hot tokens and the blocks that it keeps included. This costs quality;
    /// [`migrate`](Self::migrate) does not.
    pub fn shrink(&mut self, kernels: &Kernels, threads: &ThreadPool, hot_tokens: usize) -> Migration {
        let aim = Aim { hot_tokens, to_lowest: true, keeps_heavy: false };
        self.lower(kernels, threads, usize::MAX, aim)
    }

    /// Adds the share of attention that each block got in some step, from position 0 on; older
    /// shares fade. Blocks with the most of it stay hot, as many as the policy keeps
    /// ([`KvPolicy::kept_blocks`](crate::KvPolicy::kept_blocks)). The same heavy hitters are needed
    /// over and over (H2O, arXiv 2306.14048).
    pub fn add_mass(&mut self, shares: &[f32]) {
        if self.mass.len() < shares.len() {
            self.mass.reserve(self.most_blocks().saturating_sub(self.mass.len()));
            self.mass.resize(shares.len(), 0.0);
        }
        self.mass.iter_mut().for_each(|mass| *mass *= MASS_DECAY);
        self.mass.iter_mut().zip(shares).for_each(|(mass, share)| *mass += share);
    }

    fn lower(&mut self, kernels: &Kernels, threads: &ThreadPool, limit: usize, aim: Aim) -> Migration {
        let mut migration = Migration::default();
        if self.store.n_tiers() == 1 {
            return migration;
        }
        let mut workbench = std::mem::take(&mut self.workbench);
        migration.starved = !self.plan(limit, aim, &mut workbench);
        if !workbench.jobs.is_empty() {
            self.update_corrections(threads);
        }
        workbench.rewrite(kernels, threads, self);
        for Job { block, from, to, .. } in workbench.jobs.drain(..) {
            let saved = from.bytes().saturating_sub(to.bytes());
            if block.publish(&from, to) {
                migration.blocks += 1;
                migration.saved_bytes += saved;
            }
            self.handles.keep(from);
        }
        self.workbench = workbench;
        migration
    }

    /// Finds blocks to rewrite and memory for them; `false` if the memory ran out.
    fn plan(&mut self, limit: usize, aim: Aim, workbench: &mut Workbench) -> bool {
        let Workbench { jobs, heavy, .. } = workbench;
        heavy.clear();
        if aim.keeps_heavy {
            self.find_heavy(aim.hot_tokens, heavy);
        }
        let lowest = self.store.n_tiers() - 1;
        for at in 0..self.blocks().len() {
            if jobs.len() >= limit {
                break;
            }
            let index = self.index(at);
            let by_age = self.tier_by_age(index, aim.hot_tokens);
            if by_age == HOT || heavy.contains(&index) {
                continue;
            }
            let wanted = if aim.to_lowest { lowest } else { by_age };
            let from = self.blocks[at].storage();
            if from.tier() >= wanted {
                continue;
            }
            // What a block takes in its new tier counts for whom it counted before.
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

    /// The hot blocks beyond the hot tokens that attention returned to most.
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
    /// Lets every scratch get the room that blocks of this one's new tier need, by rewriting the
    /// first layer with each of them. Which threads take part in a migration is a matter of timing;
    /// none should come to need room later.
    fn give_room(
        &mut self,
        kernels: &Kernels,
        sequence: &Sequence,
        rotations: Option<&KeyRotations>,
        scratch: &mut [Mutex<KvScratch>],
    ) {
        let tiers = (sequence.store.tier(self.from.tier()), sequence.store.tier(self.to.tier()));
        let to = Arc::get_mut(&mut self.to).expect("nobody else has a storage before it is published");
        let context = sequence.context(0, rotations, self.position);
        for scratch in scratch {
            let Some(target) = to.layers_mut().next() else { return };
            convert(kernels, (tiers.0, self.from.layer(0)), (tiers.1, target), context, scratch.get_mut());
        }
    }
}

impl Workbench {
    /// Converts every layer of every job, spread over the threads.
    fn rewrite(&mut self, kernels: &Kernels, threads: &ThreadPool, sequence: &Sequence) {
        let store = &sequence.store;
        let Self { jobs, scratch, ready, .. } = self;
        if jobs.is_empty() {
            return;
        }
        if scratch.len() < threads.threads() {
            scratch.resize_with(threads.threads(), Mutex::default);
            ready.clear();
            ready.reserve(store.n_tiers());
        }
        let rotations = store.rotations(sequence.len, sequence.capacity);
        for job in jobs.iter_mut() {
            if !ready.contains(&job.to.tier()) {
                ready.push(job.to.tier());
                job.give_room(kernels, sequence, rotations.as_ref(), scratch);
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
            let mut scratch = scratch[worker].lock();
            // The lock is held for the step of the iterator only.
            let next = || layers.lock().next();
            while let Some(((from, to), (layer, position), storage, target)) = next() {
                let context = sequence.context(layer, rotations.as_ref(), position);
                convert(kernels, (from, storage.layer(layer)), (to, target), context, &mut scratch);
            }
        });
    }
}
