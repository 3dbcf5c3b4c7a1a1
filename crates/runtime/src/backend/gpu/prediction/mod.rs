//! The prediction head of a model on its device (ADR-0160): a model of one layer whose passes begin
//! with pairs of a token and the final hidden state before it.

mod sequences;

use std::sync::Arc;

use ruvllm_gpu::{Gpu, KV_BLOCK_TOKENS, KvFormat};
use ruvllm_models::{Model, ModelConfig};

pub(super) use self::sequences::HeadSequences;
use super::GpuOptions;
use super::adapters::DeviceAdapters;
use super::executor::{Executor, Reserve};
use super::final_states::Kept;
use super::pool::{Angles, KvPool};
use super::refusal::{self, Refusal};
use super::uploads::Uploads;
use super::weights::DeviceWeights;
use crate::speculation::{CAPACITY, MOST_DRAFT};

/// A prediction head on the device of its model, shared by all requests.
#[derive(Debug)]
pub(super) struct GpuHead {
    pub(super) executor: Executor,
    /// Largest number of pairs of a sequence.
    pub(super) capacity: usize,
}

/// Memory of a head beside its weights, which is taken before those of the model are placed.
pub(super) struct HeadMemory {
    config: ModelConfig,
    pool: KvPool,
    angles: Angles,
    capacity: usize,
}

impl HeadMemory {
    /// Allocates keys and values, in F16, for as many sequences as the options name of a model with
    /// `context` tokens. `None` for a model without a head, if the options leave it out, and if
    /// there is no room or no kernel for it: it is of use, and not needed.
    pub(super) fn new(gpu: &Gpu, model: &Model, options: &GpuOptions, context: usize) -> Option<Self> {
        let head = model.prediction_head().filter(|_| wants(options))?;
        let config = head.config();
        refusal::check(config).ok()?;
        let capacity = context.saturating_add(MOST_DRAFT).min(CAPACITY).min(config.context_length);
        let of_sequence = capacity.next_multiple_of(KV_BLOCK_TOKENS as usize);
        let tokens = of_sequence.saturating_mul(options.sequences);
        let pool = KvPool::new(gpu, config, KvFormat::F16, tokens, 0).ok()?;
        let angles = Angles::new(gpu, config, &model.kv_ropes(), capacity).ok()?;
        Some(Self { config: config.clone(), pool, angles, capacity })
    }

    /// The head with its weights, for a model whose tokenizer has `ids` ids.
    ///
    /// # Errors
    /// Too little memory for its logits.
    pub(super) fn with_weights(
        self,
        (gpu, model): (&Arc<Gpu>, &Model),
        weights: DeviceWeights,
        (ids, decode_gemm): (usize, bool),
    ) -> Result<GpuHead, Refusal> {
        let Self { config, pool, angles, capacity } = self;
        let activation = refusal::activation(config.decoder.activation)?;
        // No sequence of a head has adapters.
        let adapters = DeviceAdapters::new(Arc::clone(model.adapter_base()), true, 1);
        let parts = (decode_gemm, adapters);
        let executor =
            Executor::new(Arc::clone(gpu), config, activation, weights, (pool, angles), ids, parts);
        let failed =
            |source| Refusal::Gpu { action: "allocate logits of the prediction head".into(), source };
        let executor = executor.map_err(failed)?.keeping(Kept::Scored);
        Ok(GpuHead { executor, capacity })
    }
}

impl GpuHead {
    /// Prepares the passes of its first drafts, so that background threads compile their kernels.
    pub(super) fn compile_ahead(&self) {
        // A pass that needs these kernels reports the failure.
        let _ = self.executor.compile_ahead(self.capacity, true);
    }
}

/// Allocates the weights of a model and, if there is memory for one, its head: see
/// [`DeviceWeights::allocate`]. `is_free`: the number of layers on the device is not wanted by the
/// options, and as large as it can be.
///
/// A head that does not find room is dropped. It gives way to layers, which are slower in memory of
/// the host than its drafts are worth, unless some of them have to lie there anyway.
///
/// # Errors
/// As [`DeviceWeights::allocate`].
pub(super) fn place<'m>(
    (gpu, model): (&Gpu, &'m Model),
    (layers, is_free): (Option<usize>, bool),
    head: &mut Option<HeadMemory>,
) -> Result<(DeviceWeights, Uploads<'m>), Refusal> {
    if let Some(memory) = &*head {
        let all = Some(usize::MAX);
        let attempts: &[_] = match layers {
            None => &[(all, true), (all, false), (None, true)],
            wanted => &[(wanted, true)],
        };
        for &(layers, with_head) in attempts {
            let reserve = (with_head && is_free).then(|| Reserve::new(gpu, &memory.config, memory.capacity));
            let placed = match reserve {
                Some(Err(_)) => continue,
                _ => DeviceWeights::allocate(gpu, model, layers, with_head),
            };
            drop(reserve);
            match placed {
                Err(refusal) if refusal.is_lack_of_memory() => {
                    let emptied = gpu.run(&[]).and_then(|()| gpu.wait());
                    emptied.map_err(|source| Refusal::Gpu { action: "release memory".into(), source })?;
                }
                placed => {
                    if !with_head {
                        *head = None;
                    }
                    return placed;
                }
            }
        }
        *head = None;
    }
    DeviceWeights::allocate(gpu, model, layers, false)
}

/// True if the options ask for drafts of the model's head.
pub(super) fn wants(options: &GpuOptions) -> bool {
    options.draft_head && options.draft.is_none()
}
