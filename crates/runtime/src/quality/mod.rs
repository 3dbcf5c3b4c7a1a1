//! The precision of one sequence's keys and values, watched while it runs: which blocks attention
//! returns to, and what lower precision costs.

mod memory;

use ruvllm_kernels::{Kernels, ThreadPool};
use ruvllm_kv_cache::{Controller, KvPolicy, Probe, SampleScratch, Sequence};

use crate::request::KvQuality;

pub(crate) use memory::{QualityFiles, QualityMemory};

/// Samples a sequence between steps, one layer after the other, and tells it what follows.
pub(crate) struct QualityWatch {
    /// There if the policy has a target.
    controller: Option<Controller>,
    /// The shortest border.
    least: usize,
    samples: usize,
    /// Of those, what [`remember`](Self::remember) was told.
    remembered: usize,
    layer: usize,
    n_layers: usize,
    scratch: SampleScratch,
}

impl QualityWatch {
    /// A watch of a sequence of at most `capacity` tokens; `None` if its policy needs none.
    pub(crate) fn new(
        policy: &KvPolicy,
        block_tokens: usize,
        n_layers: usize,
        capacity: usize,
    ) -> Option<Self> {
        // A border within a block changes nothing.
        let least = policy.hot_tokens.max(block_tokens);
        let controller = policy.target.map(|target| Controller::new(target.get(), least..=capacity));
        let is_needed = controller.is_some() || policy.kept_blocks > 0;
        let scratch = SampleScratch::new();
        is_needed.then_some(Self {
            controller,
            least,
            samples: 0,
            remembered: 0,
            layer: 0,
            n_layers,
            scratch,
        })
    }

    /// Begins a sequence with what others of its tenant have come to.
    pub(crate) fn resume(&mut self, memory: &QualityMemory, cache: &mut Sequence) {
        if let Some(controller) = &mut self.controller
            && let Some(learned) = memory.recall(cache.store().tenant().path())
        {
            controller.resume(&learned);
            cache.set_hot_tokens(controller.hot_tokens());
        }
    }

    /// Tells others of its tenant what a sequence has come to since the last time.
    pub(crate) fn remember(&mut self, memory: &QualityMemory, cache: &Sequence) {
        let Some(controller) = &self.controller else { return };
        let tenant = cache.store().tenant().path();
        if self.samples > self.remembered {
            memory.remember(tenant, controller);
        } else if cache.len() > self.least + cache.store().block_tokens() {
            // With the shortest border there would have been something to see.
            memory.relax(tenant);
        }
        self.remembered = self.samples;
    }

    /// The layer whose query is wanted next.
    pub(crate) fn layer(&self) -> usize {
        self.layer
    }

    /// Looks at a sequence with the last token's query in [`layer`](Self::layer), before blocks go
    /// down.
    pub(crate) fn look(
        &mut self,
        kernels: &Kernels,
        threads: &ThreadPool,
        cache: &mut Sequence,
        probe: &Probe<'_>,
    ) {
        let sample = cache.sample(kernels, threads, probe, &mut self.scratch);
        cache.add_mass(sample.shares);
        let mut error = sample.error;
        while let (Some(controller), Some(found)) = (&mut self.controller, error) {
            let before = controller.hot_tokens();
            controller.observe(found);
            cache.set_hot_tokens(controller.hot_tokens());
            self.samples += 1;
            // A long pass makes many blocks due at once: the border rises until they are kept or
            // cost little.
            if found <= controller.target() || controller.hot_tokens() <= before {
                break;
            }
            error = cache.sample(kernels, threads, probe, &mut self.scratch).error;
        }
        self.layer = (self.layer + 1) % self.n_layers;
    }

    /// Outcome of the quality target; `None` if the policy has none.
    pub(crate) fn report(&self) -> Option<KvQuality> {
        self.controller.as_ref().map(|controller| KvQuality {
            hot_tokens: controller.hot_tokens(),
            error: controller.estimate(),
            samples: self.samples,
        })
    }
}
