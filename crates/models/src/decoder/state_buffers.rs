//! Buffers of layers with a state.

/// Activations of layers with a state. Widths are per token of the step.
#[derive(Default)]
pub(crate) struct RecurrentBuffers {
    /// Outputs of the first projection, `[tokens, channels]` or `[tokens, 3, channels]`.
    pub(super) projected: Vec<f32>,
    /// Inputs of a short convolution, `[tokens, channels]`.
    pub(super) inputs: Vec<f32>,
    /// Outputs of the convolution, `[tokens, channels]`.
    pub(super) convolved: Vec<f32>,
    /// Gate of the output, `[tokens, value_heads, value_dim]`.
    pub(super) gate: Vec<f32>,
    /// `[tokens, value_heads]` each, as projected; of Mamba-2 `decays` are time steps.
    pub(super) decays: Vec<f32>,
    pub(super) rates: Vec<f32>,
    /// For each segment `[value_heads, tokens]`; of Mamba-2 `head_rates` are time steps.
    pub(super) head_decays: Vec<f32>,
    pub(super) head_rates: Vec<f32>,
    /// For each segment `[value_heads, tokens, value_dim]`.
    pub(super) outputs: Vec<f32>,
}
