//! Flags that several commands share, and the parsers of their values.
//!
//! Each command's own flags live in its module under [`crate::commands`]. A value that fails a
//! check here is a usage error (exit code 2).

mod adapters;
mod engine;
mod generation;
mod kernel_pack;
mod output;
mod prefix_place;
mod sampling;
mod speculation;
mod thinking;
mod tools;
mod values;

pub(crate) use adapters::{AdapterArgs, NamedAdapter, named_adapter, scaled};
pub(crate) use engine::{CalibrationArgs, ComputeArgs, CpuArgs, LoadingArgs, ModelArgs};
pub(crate) use generation::{GenerationArgs, PrefixArgs};
pub(crate) use kernel_pack::KernelPackArgs;
pub(crate) use output::OutputLanguage;
pub(crate) use prefix_place::PrefixPlaceError;
pub(crate) use sampling::with_breakers;
pub(crate) use speculation::{MeasuredSpeculationArgs, SpeculationArgs};
pub(crate) use thinking::{ThinkingArgs, ThinkingView};
pub(crate) use tools::choice as tool_choice;
pub(crate) use values::{
    ALL_SAMPLERS, KV_HELP, OrDefault, above_zero, at_least_one, breaker, bytes, choices, context, count,
    duration, finite, fraction, isa, kv_policy, logit_bias, logprobs, mirostat, non_negative, positive,
    recent_or_all, recipe, samplers, sigmas, some_tokens_or_all, tokens_or_all, type_override, variable,
    whole_number,
};
