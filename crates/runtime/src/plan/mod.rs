//! Start-up plan: defaults for threads, context, and format and memory of keys and values.
//!
//! [`Plan::new`] is a pure function of the machine, the model and what was asked for, so the same
//! machine gives the same answers: how much memory happens to be free plays no part.
//! [`Engine::load`](crate::Engine::load) does what the plan says; `ruvllm doctor` shows it. How
//! weights are stored is in no plan: they are used as they lie in the mapped file (ADR-0007), or as
//! they were asked for.

mod kv;
#[cfg(test)]
mod tests;

use ruvllm_kernels::attention::KvFormat;
use ruvllm_kernels::{Kernels, ThreadPool};
use ruvllm_kv_cache::{KvFormats, KvPolicy, KvShape};
use ruvllm_models::{Compute, ModelConfig};

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::options::EngineOptions;

pub(crate) use self::kv::{kv_pool, new_kv_store, weights_bytes};

/// Memory and context figures of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelSize {
    /// Bytes of all tensors.
    pub weights_bytes: u64,
    /// Tokens that the model was made for.
    pub context_length: usize,
    /// Most tokens whose keys and values are kept, if no layer sees further back.
    pub window: Option<usize>,
    /// Shape of a token's keys and values.
    pub kv_shape: KvShape,
}

impl ModelSize {
    /// The size of a model with tensors of so many bytes.
    pub fn new(config: &ModelConfig, weights_bytes: u64) -> Self {
        Self {
            weights_bytes,
            context_length: config.context_length,
            window: config.longest_window(),
            kv_shape: config.kv_shape(),
        }
    }
}

/// A setting and why it is that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice<T> {
    /// The setting.
    pub value: T,
    /// The reason.
    pub reason: Reason,
}

/// Reason for a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// It was asked for.
    Asked,
    /// More was asked for than the model was made for.
    AskedBeyondModel {
        /// Tokens asked for.
        asked: usize,
    },
    /// One thread for each processor.
    Processors,
    /// One thread for each core: several processors share one, and with it the arithmetic.
    Cores {
        /// Processors that the process may use.
        cpus: usize,
    },
    /// All that the model was made for fits.
    Model,
    /// As many tokens as fit beside the weights.
    Memory {
        /// Bytes for them.
        room_bytes: u64,
        /// Bytes of a token.
        token_bytes: u64,
    },
    /// Half precision has room for enough tokens.
    HalfPrecision {
        /// Tokens that fit in half precision.
        tokens: usize,
    },
    /// Half precision has not, 8 bits have room for more.
    EightBits {
        /// Tokens in half precision.
        half_tokens: usize,
        /// Tokens in 8 bits.
        tokens: usize,
    },
    /// Several sequences of the model's full length.
    Sequences {
        /// Number of sequences.
        sequences: usize,
    },
    /// The part that keys and values may take of what the weights leave.
    Share {
        /// Bytes that the weights and the system leave.
        left_bytes: u64,
    },
    /// There is no less.
    Least,
}

/// Resource that the model exceeds on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The weights are larger than the memory: the system reads them from the disk again for every
    /// token.
    Weights {
        /// Bytes of the weights.
        weights_bytes: u64,
        /// Bytes of memory.
        memory_bytes: u64,
    },
    /// A full context takes more than the weights leave.
    Context {
        /// Tokens of the context.
        tokens: usize,
        /// Bytes of their keys and values.
        kv_bytes: u64,
        /// Bytes that the weights and the system leave.
        left_bytes: u64,
    },
    /// A full context takes more than the budget of keys and values that was asked for.
    Budget {
        /// Bytes asked for.
        budget_bytes: u64,
        /// Bytes that a full context takes, slack included.
        needed_bytes: u64,
        /// Tokens of the context.
        tokens: usize,
        /// Tokens that the budget holds, slack included.
        fitting_tokens: usize,
    },
    /// Less memory is free now than a full context takes.
    Available {
        /// Bytes of weights, keys and values.
        needed_bytes: u64,
        /// Bytes that can be had now.
        available_bytes: u64,
    },
}

/// Settings that a model runs with on a machine, each with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// Threads that compute.
    pub threads: Choice<usize>,
    /// Tokens of a sequence.
    pub context: Choice<usize>,
    /// Storage policy of keys and values.
    pub kv: Choice<KvPolicy>,
    /// Bytes of the keys and values of all sequences.
    pub kv_budget: Choice<usize>,
    /// Bytes of keys and values of one sequence of the whole context, as far as the policy makes
    /// them small.
    pub sequence_bytes: u64,
    /// Bytes that a sequence of the whole context takes beside `sequence_bytes`: blocks do
    /// not fill pages to the last byte, and each tier has pages that are not full.
    pub slack_bytes: u64,
    /// Resources that the model exceeds on this machine.
    pub warnings: Vec<Warning>,
    model: ModelSize,
}

/// The machine's memory where the system does not tell.
const ASSUMED_MEMORY: u64 = 8 << 30;

/// The part of the memory, one in so many, that stays for the system and for scratch.
const SYSTEM_SHARE: u64 = 16;

/// A context that is worth 8 bits: with less than this in half precision they are taken instead.
const ENOUGH_TOKENS: usize = 4096;

/// Contexts that the memory decides are multiples of this, and no less where the model allows it.
const CONTEXT_STEP: usize = 256;

/// Room for every tier of a small model.
const MIN_KV_BUDGET: u64 = 32 << 20;

impl Plan {
    /// Sequences of the model's full length that the budget of keys and values is made for where
    /// there is memory for it.
    pub const SEQUENCES: usize = 4;

    /// The plan for a model on a machine, as far as `options` leave it open. Options of 0 count
    /// as 1.
    pub fn new(machine: &Machine, model: &ModelSize, options: &EngineOptions) -> Self {
        let memory_bytes = machine.memory_bytes().unwrap_or(ASSUMED_MEMORY);
        let left_bytes =
            memory_bytes.saturating_sub(memory_bytes / SYSTEM_SHARE).saturating_sub(model.weights_bytes);
        // A quarter stays for what else runs. Of the rest a sequence gets two thirds: pages are not
        // full to the last byte, and prefixes are kept beside it.
        let budget_bytes = left_bytes / 4 * 3;
        let room_bytes = budget_bytes / 3 * 2;

        let threads = threads(machine, options.threads);
        let kv = policy(model, options, room_bytes);
        let context = context(model, &kv.value, options.context, room_bytes);
        let sequence_bytes = model.kv_bytes(&kv.value, context.value);
        let kv_budget =
            budget(model, &kv.value, options.kv_budget, sequence_bytes, [budget_bytes, left_bytes]);
        let mut warnings = Vec::new();
        if model.weights_bytes > memory_bytes {
            warnings.push(Warning::Weights { weights_bytes: model.weights_bytes, memory_bytes });
        } else if sequence_bytes > left_bytes {
            let tokens = context.value;
            warnings.push(Warning::Context { tokens, kv_bytes: sequence_bytes, left_bytes });
        }
        let slack_bytes = with_slack(sequence_bytes) - sequence_bytes;
        Self { threads, context, kv, kv_budget, sequence_bytes, slack_bytes, warnings, model: *model }
    }

    /// The warning that follows from how much memory is free now, if there is too little.
    pub fn shortage(&self, machine: &Machine) -> Option<Warning> {
        let needed_bytes = self.model.weights_bytes.saturating_add(self.sequence_bytes);
        let available_bytes = machine.available_bytes.filter(|&available| available < needed_bytes)?;
        Some(Warning::Available { needed_bytes, available_bytes })
    }

    /// The warning that follows from a budget that was asked for, if a full context does not fit
    /// it. Shorter sequences may: a request that has no room fails with the numbers.
    pub fn narrow_budget(&self) -> Option<Warning> {
        let budget_bytes = self.kv_budget.value as u64;
        let needed_bytes = self.sequence_bytes.saturating_add(self.slack_bytes);
        let tokens = self.context.value;
        // With a quarter of slack, keys and values get four fifths.
        let fitting_tokens = self.model.fitting(&self.kv.value, budget_bytes / 5 * 4).min(tokens);
        let is_narrow = self.kv_budget.reason == Reason::Asked && budget_bytes < needed_bytes;
        is_narrow.then_some(Warning::Budget { budget_bytes, needed_bytes, tokens, fitting_tokens })
    }
}

/// Kernels and threads of the options, which are checked first.
pub(crate) fn compute(machine: &Machine, options: &EngineOptions) -> Result<Compute> {
    options.check()?;
    let kernels = options.isa.map_or_else(Kernels::detect, Kernels::for_isa).map_err(Error::Compute)?;
    let pool = ThreadPool::new(threads(machine, options.threads).value).map_err(Error::Compute)?;
    Ok(Compute { kernels, pool })
}

/// Threads that compute, whatever the model.
fn threads(machine: &Machine, asked: Option<usize>) -> Choice<usize> {
    let cpus = machine.cpus.max(1);
    match (asked, machine.cores) {
        (Some(asked), _) => Choice { value: asked.max(1), reason: Reason::Asked },
        (None, Some(cores)) if (1..cpus).contains(&cores) => {
            Choice { value: cores, reason: Reason::Cores { cpus } }
        }
        (None, _) => Choice { value: cpus, reason: Reason::Processors },
    }
}

/// Half precision, unless it has too little room and 8 bits have more.
fn policy(model: &ModelSize, options: &EngineOptions, room_bytes: u64) -> Choice<KvPolicy> {
    let half = KvPolicy::from(KvFormat::F16);
    if let Some(value) = options.kv {
        return Choice { value, reason: Reason::Asked };
    }
    let wanted = options.context.unwrap_or(ENOUGH_TOKENS).min(model.context_length);
    let eight = KvPolicy::from(KvFormat::Q8);
    let (half_tokens, tokens) = (model.fitting(&half, room_bytes), model.fitting(&eight, room_bytes));
    if half_tokens < wanted && half_tokens < tokens {
        return Choice { value: eight, reason: Reason::EightBits { half_tokens, tokens } };
    }
    Choice { value: half, reason: Reason::HalfPrecision { tokens: half_tokens } }
}

fn context(model: &ModelSize, kv: &KvPolicy, asked: Option<usize>, room_bytes: u64) -> Choice<usize> {
    let most = model.context_length;
    match asked {
        Some(asked) if asked > most => Choice { value: most, reason: Reason::AskedBeyondModel { asked } },
        Some(asked) => Choice { value: asked.max(1), reason: Reason::Asked },
        None => {
            let fitting = model.fitting(kv, room_bytes);
            if fitting >= most {
                return Choice { value: most, reason: Reason::Model };
            }
            let value = (fitting / CONTEXT_STEP * CONTEXT_STEP).max(CONTEXT_STEP).min(most);
            let token_bytes = model.kv_bytes(kv, value) / value.max(1) as u64;
            Choice { value, reason: Reason::Memory { room_bytes, token_bytes } }
        }
    }
}

/// Bytes for several sequences of the model's full length, within `most` of `[the budget, all that
/// is left]`; but always for one of the context.
fn budget(
    model: &ModelSize,
    kv: &KvPolicy,
    asked: Option<usize>,
    sequence_bytes: u64,
    [most, left_bytes]: [u64; 2],
) -> Choice<usize> {
    if let Some(value) = asked {
        return Choice { value, reason: Reason::Asked };
    }
    let hot = KvPolicy::uniform(kv.hot);
    let whole = with_slack(model.kv_bytes(&hot, model.context_length));
    let sequences = whole.saturating_mul(Plan::SEQUENCES as u64).saturating_add(MIN_KV_BUDGET);
    let least = with_slack(sequence_bytes).max(MIN_KV_BUDGET);
    let (value, reason) = if sequences <= most.max(least) {
        (sequences, Reason::Sequences { sequences: Plan::SEQUENCES })
    } else if least < most {
        (most, Reason::Share { left_bytes })
    } else {
        (least, Reason::Least)
    };
    Choice { value: usize::try_from(value).unwrap_or(usize::MAX), reason }
}

/// A budget for one sequence of so many tokens, none of which is given up.
pub(crate) fn sequence_budget(config: &ModelConfig, kv: &KvPolicy, tokens: usize) -> usize {
    let model = ModelSize { window: None, ..ModelSize::new(config, 0) };
    let bytes = with_slack(model.kv_bytes(kv, tokens)).saturating_add(MIN_KV_BUDGET);
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Blocks do not fill pages to the last byte, and each tier has pages that are not full.
fn with_slack(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 4)
}

impl ModelSize {
    /// Bytes of the keys and values of a sequence: hot tokens in the hot format, the others in the
    /// smallest.
    fn kv_bytes(&self, kv: &KvPolicy, tokens: usize) -> u64 {
        let tokens = tokens.min(self.window.unwrap_or(usize::MAX));
        let block_tokens = kv.block_tokens();
        let blocks = tokens.div_ceil(block_tokens) as u64;
        let last = kv.tiers().last().unwrap_or(kv.hot);
        let hot_tokens = if last == kv.hot { 0 } else { kv.hot_tokens.saturating_add(kv.sink_tokens) };
        let hot_blocks = (hot_tokens.div_ceil(block_tokens) as u64).min(blocks);
        // A format that the model's heads do not fit has room nowhere; asked for, it is refused
        // when the model is loaded.
        let bytes = |formats: KvFormats| {
            formats.block_bytes(self.kv_shape, block_tokens).map_or(u64::MAX, |bytes| bytes as u64)
        };
        let cold = bytes(last).saturating_mul(blocks - hot_blocks);
        bytes(kv.hot).saturating_mul(hot_blocks).saturating_add(cold)
    }

    /// Tokens of a sequence that `bytes` have room for, at most those of the model.
    fn fitting(&self, kv: &KvPolicy, bytes: u64) -> usize {
        // Bytes only grow with tokens: the largest number that fits lies between none and all.
        let (mut low, mut high) = (0, self.context_length);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.kv_bytes(kv, middle) <= bytes { low = middle } else { high = middle - 1 }
        }
        low
    }
}
