//! Final hidden states of a pass (ADR-0160): what the output matrix is multiplied with, for the
//! prediction head.
//!
//! They are computed behind a pass from the activations that it leaves, by launches that only run
//! where states are read: the launches of the pass, and the bits of its logits, stay as they are.

mod launches;

use ruvllm_gpu::{Buffer, Dispatch};

/// Rows whose final hidden states can be read behind a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// None: there is no head.
    None,
    /// Rows with logits: the last one of a prompt, all in decode.
    Scored,
    /// All rows, of a prompt too.
    All,
}

/// Launches that leave the final hidden states of a pass that has run.
#[derive(Debug)]
pub(super) struct FinalStates {
    pub(super) launches: Vec<Dispatch>,
    /// `[rows, model_dim]`.
    pub(super) out: Buffer,
}
