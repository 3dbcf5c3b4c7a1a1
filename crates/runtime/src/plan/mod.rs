//! Start-up plan: defaults for threads, context length, KV-cache policy and KV budget.
//!
//! [`Plan::new`] is a pure function of machine, model and options; currently free memory has no
//! influence, so that the same machine gives the same plan. [`Engine::load`](crate::Engine::load)
//! follows the plan; `ruvllm doctor` prints it. The storage type of weights is not part of it: they
//! are used as mapped (ADR-0007), or quantized as requested.

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

/// Weights, context length and KV shape of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelSize {
    /// Bytes of all tensors.
    pub weights_bytes: u64,
    /// Context length of the model.
    pub context_length: usize,
    /// Largest sliding window of all layers in tokens; `None` if a layer has none.
    pub window: Option<usize>,
    /// Shape of one token's keys and values.
    pub kv_shape: KvShape,
    /// Bytes of the states of a sequence, of layers that keep one instead of keys and values.
    pub state_bytes: u64,
}

impl ModelSize {
    /// Size of a model whose tensors take `weights_bytes`.
    pub fn new(config: &ModelConfig, weights_bytes: u64) -> Self {
        Self {
            weights_bytes,
            context_length: config.context_length,
            window: config.longest_window(),
            kv_shape: config.kv_shape(),
            state_bytes: (STATES * size_of::<f32>()).saturating_mul(config.state_values()) as u64,
        }
    }
}

/// A setting and its reason.
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
    /// Requested by the options.
    Asked,
    /// Requested beyond the model's context length, and limited to it.
    AskedBeyondModel {
        /// Requested tokens.
        asked: usize,
    },
    /// One thread per processor.
    Processors,
    /// One thread per core: processors of one core (SMT) share its arithmetic units.
    Cores {
        /// Processors that the process may use.
        cpus: usize,
    },
    /// The model's full context length fits into memory.
    Model,
    /// As many tokens as fit into the memory beside the weights.
    Memory {
        /// Bytes available for keys and values of a sequence.
        room_bytes: u64,
        /// Bytes per token.
        token_bytes: u64,
    },
    /// F16 holds enough tokens.
    HalfPrecision {
        /// Tokens that fit in F16.
        tokens: usize,
    },
    /// F16 holds too few tokens, `q8` more.
    EightBits {
        /// Tokens that fit in F16.
        half_tokens: usize,
        /// Tokens that fit in `q8`.
        tokens: usize,
    },
    /// Several sequences of the model's full context length.
    Sequences {
        /// Number of sequences.
        sequences: usize,
    },
    /// The share for keys and values of the memory beside the weights.
    Share {
        /// Bytes left by the weights and the system's share.
        left_bytes: u64,
    },
    /// The minimum.
    Least,
}

/// Resource that the model exceeds on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The weights exceed the memory: they are read from disk again for every token.
    Weights {
        /// Bytes of the weights.
        weights_bytes: u64,
        /// Bytes of memory.
        memory_bytes: u64,
    },
    /// Keys and values of a full context exceed the memory beside the weights.
    Context {
        /// Tokens of the context.
        tokens: usize,
        /// Bytes of their keys and values.
        kv_bytes: u64,
        /// Bytes left by the weights and the system's share.
        left_bytes: u64,
    },
    /// A full context exceeds the requested KV budget.
    Budget {
        /// Requested bytes.
        budget_bytes: u64,
        /// Bytes of a full context, slack included.
        needed_bytes: u64,
        /// Tokens of the context.
        tokens: usize,
        /// Tokens that fit into the budget, slack included.
        fitting_tokens: usize,
    },
    /// A full context exceeds the memory that is free now.
    Available {
        /// Bytes of weights, keys and values.
        needed_bytes: u64,
        /// Bytes available now.
        available_bytes: u64,
    },
}

/// Settings of a model on a machine, each with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// Compute threads.
    pub threads: Choice<usize>,
    /// Context length in tokens.
    pub context: Choice<usize>,
    /// KV-cache policy.
    pub kv: Choice<KvPolicy>,
    /// KV budget in bytes, for all sequences.
    pub kv_budget: Choice<usize>,
    /// Bytes of keys and values of one sequence of full context, in the policy's lowest tiers.
    pub sequence_bytes: u64,
    /// Additional bytes of such a sequence. Blocks do not fill pages to the last byte, and each
    /// tier has partly filled pages.
    pub slack_bytes: u64,
    /// Bytes of the states of a sequence of any length, beside the KV budget; 0 for models all of
    /// whose layers have keys and values.
    pub state_bytes: u64,
    /// Resources that the model exceeds on this machine.
    pub warnings: Vec<Warning>,
    model: ModelSize,
}

/// States of a sequence: a step reads one and writes the other, and that of the last block border
/// is kept.
const STATES: usize = 3;

/// Snapshots of states that the default KV budget has room for, for each sequence of the plan: at
/// the end of a prompt, at that of its answer, and where prompts part.
const SNAPSHOTS: u64 = 3;

/// Assumed memory where the system reports none.
const ASSUMED_MEMORY: u64 = 8 << 30;

/// Divisor of the memory: this share is left to the system and to scratch buffers.
const SYSTEM_SHARE: u64 = 16;

/// `q8` is chosen if F16 holds fewer tokens than this.
const ENOUGH_TOKENS: usize = 4096;

/// Context lengths limited by memory are multiples of this, and at least this if the model allows
/// it.
const CONTEXT_STEP: usize = 256;

/// Minimum KV budget: room for every tier of a small model.
const MIN_KV_BUDGET: u64 = 32 << 20;

impl Plan {
    /// Sequences of full context length in the default KV budget, if memory allows.
    pub const SEQUENCES: usize = 4;

    /// Plan for a model on a machine; settings in `options` take precedence. Options of 0 count
    /// as 1.
    pub fn new(machine: &Machine, model: &ModelSize, options: &EngineOptions) -> Self {
        let memory_bytes = machine.memory_bytes().unwrap_or(ASSUMED_MEMORY);
        let state_bytes = model.state_bytes.saturating_mul(Self::SEQUENCES as u64);
        let left_bytes = memory_bytes
            .saturating_sub(memory_bytes / SYSTEM_SHARE)
            .saturating_sub(model.weights_bytes)
            .saturating_sub(state_bytes);
        // A quarter is left to other processes. A sequence gets two thirds of the rest: pages are
        // not full to the last byte, and the prefix cache needs room too.
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
        let state_bytes = model.state_bytes;
        Self {
            threads,
            context,
            kv,
            kv_budget,
            sequence_bytes,
            slack_bytes,
            state_bytes,
            warnings,
            model: *model,
        }
    }

    /// Warning if the currently free memory is too small for weights and a full context.
    pub fn shortage(&self, machine: &Machine) -> Option<Warning> {
        let needed_bytes = self.model.weights_bytes.saturating_add(self.sequence_bytes);
        let available_bytes = machine.available_bytes.filter(|&available| available < needed_bytes)?;
        Some(Warning::Available { needed_bytes, available_bytes })
    }

    /// Warning if a full context does not fit into the requested KV budget. Shorter sequences may
    /// fit; a request without room fails with the numbers.
    pub fn narrow_budget(&self) -> Option<Warning> {
        let budget_bytes = self.kv_budget.value as u64;
        let needed_bytes = self.sequence_bytes.saturating_add(self.slack_bytes);
        let tokens = self.context.value;
        // Slack is a quarter of the keys and values, so these are four fifths of the budget.
        let fitting_tokens = self.model.fitting(&self.kv.value, budget_bytes / 5 * 4).min(tokens);
        let is_narrow = self.kv_budget.reason == Reason::Asked && budget_bytes < needed_bytes;
        is_narrow.then_some(Warning::Budget { budget_bytes, needed_bytes, tokens, fitting_tokens })
    }
}

/// Kernels and thread pool of the options, which are checked first.
pub(crate) fn compute(machine: &Machine, options: &EngineOptions) -> Result<Compute> {
    options.check()?;
    let kernels = options.isa.map_or_else(Kernels::detect, Kernels::for_isa).map_err(Error::Compute)?;
    let pool = ThreadPool::new(threads(machine, options.threads).value).map_err(Error::Compute)?;
    Ok(Compute { row_kernels: options.row_kernels.clone(), ..Compute::with(kernels, pool) })
}

/// Compute threads; independent of the model.
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

/// F16, unless it holds too few tokens and `q8` holds more.
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

/// KV budget: several sequences of full context length, at most `most`; but always one sequence of
/// the context. `[most, left_bytes]`: share for keys and values, and all memory beside the weights.
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
    let snapshot_bytes = model.state_bytes / STATES as u64;
    let of_sequence = whole.saturating_add(snapshot_bytes.saturating_mul(SNAPSHOTS));
    let sequences = of_sequence.saturating_mul(Plan::SEQUENCES as u64).saturating_add(MIN_KV_BUDGET);
    let least = with_slack(sequence_bytes).saturating_add(snapshot_bytes).max(MIN_KV_BUDGET);
    let (value, reason) = if sequences <= most.max(least) {
        (sequences, Reason::Sequences { sequences: Plan::SEQUENCES })
    } else if least < most {
        (most, Reason::Share { left_bytes })
    } else {
        (least, Reason::Least)
    };
    Choice { value: usize::try_from(value).unwrap_or(usize::MAX), reason }
}

/// KV budget for one sequence of `tokens` tokens without a sliding window.
pub(crate) fn sequence_budget(config: &ModelConfig, kv: &KvPolicy, tokens: usize) -> usize {
    let model = ModelSize { window: None, ..ModelSize::new(config, 0) };
    let snapshot_bytes = model.state_bytes / STATES as u64;
    let bytes = with_slack(model.kv_bytes(kv, tokens)).saturating_add(snapshot_bytes);
    let bytes = bytes.saturating_add(MIN_KV_BUDGET);
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Adds a quarter: blocks do not fill pages to the last byte, and each tier has partly filled
/// pages.
fn with_slack(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 4)
}

impl ModelSize {
    /// Bytes of keys and values of a sequence: hot tokens in the hot format, all others in the last
    /// tier's.
    fn kv_bytes(&self, kv: &KvPolicy, tokens: usize) -> u64 {
        let tokens = tokens.min(self.window.unwrap_or(usize::MAX));
        let block_tokens = kv.block_tokens();
        let blocks = tokens.div_ceil(block_tokens) as u64;
        let last = kv.tiers().last().unwrap_or(kv.hot);
        let hot_tokens = if last == kv.hot { 0 } else { kv.hot_tokens.saturating_add(kv.sink_tokens) };
        let hot_blocks = (hot_tokens.div_ceil(block_tokens) as u64).min(blocks);
        // A format that does not fit the head size gets infinite bytes; if requested, loading
        // refuses it.
        let bytes = |formats: KvFormats| {
            formats.block_bytes(self.kv_shape, block_tokens).map_or(u64::MAX, |bytes| bytes as u64)
        };
        let cold = bytes(last).saturating_mul(blocks - hot_blocks);
        bytes(kv.hot).saturating_mul(hot_blocks).saturating_add(cold)
    }

    /// Tokens of a sequence that fit into `bytes`, at most the model's context length.
    fn fitting(&self, kv: &KvPolicy, bytes: u64) -> usize {
        // Binary search: bytes grow monotonically with tokens.
        let (mut low, mut high) = (0, self.context_length);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.kv_bytes(kv, middle) <= bytes { low = middle } else { high = middle - 1 }
        }
        low
    }
}
