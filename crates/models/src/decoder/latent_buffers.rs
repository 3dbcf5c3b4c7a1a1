//! Buffers of latent attention.

use ruvllm_kernels::matmul::{Activations, RowGroups};

/// Buffers of latent attention. Widths are per token of the step.
#[derive(Default)]
pub(crate) struct LatentBuffers {
    /// Latents of queries before their norm, `[tokens, query_rank]`.
    pub(super) query_latents: Vec<f32>,
    /// Latents of queries, `[tokens, query_rank]`.
    pub(super) normed_latents: Activations,
    /// `[tokens, n_heads, still_dim + rotary_dim]`
    pub(super) queries: Vec<f32>,
    /// Latents of keys and values before their norm, and rotated keys, `[tokens, rank +
    /// rotary_dim]`.
    pub(super) latents: Vec<f32>,
    pub(super) heads: HeadBuffers,
    /// Values that attention found, `[tokens, n_heads, value_dim]`.
    pub(super) values: Activations,
}

/// Buffers of products with a matrix per head.
#[derive(Default)]
pub(super) struct HeadBuffers {
    /// The rows of each head.
    pub(super) groups: RowGroups,
    /// `[n_heads, tokens, still_dim]`, later `[n_heads, tokens, rank]`.
    pub(super) inputs: Activations,
    /// `[n_heads, tokens, rank]`, later `[n_heads, tokens, value_dim]`.
    pub(super) outputs: Vec<f32>,
}
