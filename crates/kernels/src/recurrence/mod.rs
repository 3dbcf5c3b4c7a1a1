//! Layers with a state: what they compute in the place of attention, token after token.
//!
//! | operation | state of a sequence | used by |
//! |---|---|---|
//! | [`Kernels::convolve`](crate::Kernels::convolve) | the inputs of the last tokens | short convolutions (LFM2), and before the next |
//! | [`Kernels::delta_rule`](crate::Kernels::delta_rule) | a matrix per head | gated `DeltaNet` (Qwen3-Next, Qwen 3.5) |
//!
//! Tokens are always computed in their order, so a state has the same bits however a text is cut
//! into calls.

mod convolution;
mod delta_rule;

pub use convolution::{Convolution, MAX_TAPS};
pub use delta_rule::DeltaRule;

pub(crate) use convolution::convolve;
pub(crate) use delta_rule::delta_rule;
