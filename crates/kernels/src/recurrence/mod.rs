//! Layers with a state: what they compute in the place of attention, token after token.
//!
//! | operation | state of a sequence | used by |
//! |---|---|---|
//! | [`Kernels::convolve`](crate::Kernels::convolve) | the inputs of the last tokens | short convolutions (LFM2), and before the next |
//! | [`Kernels::delta_rule`](crate::Kernels::delta_rule) | a matrix per head | gated `DeltaNet` (Qwen3-Next, Qwen 3.5) |
//! | [`Kernels::selective_scan`](crate::Kernels::selective_scan) | a matrix per head | Mamba-2 (Granite 4) |
//!
//! Tokens are always computed in their order, so a state has the same bits however a text is cut
//! into calls.

mod columns;
mod convolution;
mod delta_rule;
mod selective_scan;

pub use convolution::{Convolution, MAX_TAPS};
pub use delta_rule::DeltaRule;
pub use selective_scan::SelectiveScan;

pub(crate) use convolution::convolve;
pub(crate) use delta_rule::delta_rule;
pub(crate) use selective_scan::selective_scan;
