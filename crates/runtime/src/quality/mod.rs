//! Quality target of a sequence: samples the attention mass of blocks and the error of lower tiers
//! while it runs.

mod memory;

use ruvllm_kernels::{Kernels, ThreadPool};
use ruvllm_kv_cache::{Controller, KvPolicy, Probe, SampleScratch, Sequence};

use crate::request::KvQuality;

pub(crate) use memory::{QualityFiles, QualityMemory};

/// Samples a sequence between steps, one layer per sample in turn, and adjusts its hot tokens.
pub(crate) struct QualityWatch {
    /// Present if the policy has a target.
    controller: Option<Controller>,
    /// Minimum number of hot tokens.
    least: usize,
    samples: usize,
    /// Value of `samples` at the last [`remember`](Self::remember).
    remembered: usize,
    layer: usize,
    n_layers: usize,
    scratch: SampleScratch,
}

impl QualityWatch {
    /// Watch of a sequence of at most `capacity` tokens; `None` if its policy needs none.
    pub(crate) fn new(
        policy: &KvPolicy,
        block_tokens: usize,
        n_layers: usize,
        capacity: usize,
    ) -> Option<Self> {
        // Fewer hot tokens than a block have no effect.
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

    /// Resumes from the state of the tenant's earlier sequences.
    pub(crate) fn resume(&mut self, memory: &QualityMemory, cache: &mut Sequence) {
        if let Some(controller) = &mut self.controller
            && let Some(learned) = memory.recall(cache.store().tenant().path())
        {
            controller.resume(&learned);
            cache.set_hot_tokens(controller.hot_tokens());
        }
    }

    /// Stores the state since the last call for the tenant's later sequences.
    pub(crate) fn remember(&mut self, memory: &QualityMemory, cache: &Sequence) {
        let Some(controller) = &self.controller else { return };
        let tenant = cache.store().tenant().path();
        if self.samples > self.remembered {
            memory.remember(tenant, controller);
        } else if cache.len() > self.least + cache.store().block_tokens() {
            // With the minimum of hot tokens there would have been blocks to sample.
            memory.relax(tenant);
        }
        self.remembered = self.samples;
    }

    /// Layer of the next sample's query.
    pub(crate) fn layer(&self) -> usize {
        self.layer
    }

    /// Samples a sequence with the last token's query in [`layer`](Self::layer), before blocks
    /// migrate.
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
            // A long pass makes many blocks due at once: raise the hot tokens until the error is
            // within the target.
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
