//! Buffers of embeddings per layer.

/// Buffers of embeddings per layer.
#[derive(Default)]
pub(crate) struct PerLayerBuffers {
    /// Factors of each layer's gate, `[tokens, n_layers, input_dim]`.
    pub(super) inputs: Vec<f32>,
    /// Projections, then rows of the table, in the same shape.
    pub(super) raw: Vec<f32>,
}
