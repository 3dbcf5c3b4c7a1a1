//! Buffers of several residual streams.

/// Buffers of several residual streams; empty in models with one.
#[derive(Default)]
pub(crate) struct StreamBuffers {
    /// The streams, within a layer its predictions of them: `[tokens, streams, model_dim]`.
    pub(super) values: Vec<f32>,
    /// The streams that predictions are made of, in the same shape.
    pub(super) before: Vec<f32>,
}
