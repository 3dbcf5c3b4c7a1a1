//! Texts of a plan's reasons and warnings.

use ruvllm::{Reason, Warning};

use crate::output::bytes;

/// Text of the reason for a setting.
pub(crate) fn reason(reason: &Reason) -> String {
    match *reason {
        Reason::Asked => "asked for".to_owned(),
        Reason::AskedBeyondModel { asked } => {
            format!("{asked} were asked for, the model was made for no more")
        }
        Reason::Processors => "one for each processor that this process may use".to_owned(),
        Reason::Cores { cpus } => format!("one for each core; {cpus} processors share them"),
        Reason::Model => "all that the model was made for".to_owned(),
        Reason::Memory { room_bytes, token_bytes } => {
            format!("as many as fit {} at {} each", bytes(room_bytes), bytes(token_bytes))
        }
        Reason::HalfPrecision { tokens } => format!("there is room for {tokens} tokens in half precision"),
        Reason::EightBits { half_tokens, tokens } => {
            format!("room for {tokens} tokens, and for only {half_tokens} in half precision")
        }
        Reason::Sequences { sequences } => format!("{sequences} sequences of the model's full length"),
        Reason::Share { left_bytes } => {
            format!("three quarters of the {} that weights and system leave", bytes(left_bytes))
        }
        Reason::Least => "one sequence, which is the least".to_owned(),
        _ => "by the engine's rules".to_owned(),
    }
}

/// Bytes rounded up to MiB, in the syntax of flags: `41MiB`.
fn bytes_up(n: u64) -> String {
    format!("{}MiB", n.div_ceil(1 << 20))
}

/// Text of a warning: the resource that does not fit, and the remedy.
pub(crate) fn warning(warning: &Warning) -> String {
    match *warning {
        Warning::Weights { weights_bytes, memory_bytes } => format!(
            "the weights take {} and the memory is {}: they will be read from the disk again for every token; use a \
             smaller type (ruvllm quantize) or another model",
            bytes(weights_bytes),
            bytes(memory_bytes)
        ),
        Warning::Context { tokens, kv_bytes, left_bytes } => format!(
            "{tokens} tokens of keys and values take {} and the weights leave {}; use a smaller --context or --kv tiered",
            bytes(kv_bytes),
            bytes(left_bytes)
        ),
        Warning::Budget { budget_bytes, needed_bytes, tokens, fitting_tokens } => format!(
            "--kv-budget {} holds about {fitting_tokens} of {tokens} tokens, longer requests will fail; raise it to {} \
             or use --context {fitting_tokens}",
            bytes(budget_bytes),
            bytes_up(needed_bytes)
        ),
        Warning::Available { needed_bytes, available_bytes } => format!(
            "weights and a full context take {} and {} are free now; end other programs or use a smaller --context",
            bytes(needed_bytes),
            bytes(available_bytes)
        ),
        _ => "the model may not fit this machine".to_owned(),
    }
}
