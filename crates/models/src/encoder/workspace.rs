//! Buffers of an encoder's forward passes.

use ruvllm_kernels::matmul::Activations;

use super::attention::TextAttention;
use super::config::EncoderConfig;
use crate::error::Result;
use crate::workspace::resize;

/// Reusable memory of an encoder's forward passes; one per concurrent caller. It grows to the
/// largest pass seen.
#[derive(Default)]
pub struct EncoderWorkspace {
    /// Residual stream, `[tokens, model_dim]`.
    pub(super) residual: Vec<f32>,
    /// Input of the next branch, behind the last layer the states, `[tokens, model_dim]`.
    pub(super) input: Activations,
    /// Output of a branch, `[tokens, model_dim]`.
    pub(super) update: Vec<f32>,
    /// `[tokens, n_heads, head_dim]`
    pub(super) queries: Vec<f32>,
    /// `[tokens, n_kv_heads, head_dim]` each.
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
    /// Attention output, `[tokens, n_heads, head_dim]`.
    pub(super) attended: Activations,
    /// Gate of the feed-forward network, then its inner values, `[tokens, ffn_dim]`.
    pub(super) inner: Activations,
    /// Values to be gated, `[tokens, ffn_dim]`; empty in networks without a gate.
    pub(super) up: Vec<f32>,
    pub(super) attention: TextAttention,
}

impl EncoderWorkspace {
    /// A workspace without any memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sizes the buffers for `n_tokens` rows, of which the longest text has `longest`.
    pub(super) fn prepare(
        &mut self,
        config: &EncoderConfig,
        has_gate: bool,
        n_tokens: usize,
        longest: usize,
    ) -> Result<()> {
        let (dim, query_dim, kv_dim) = (config.model_dim, config.query_dim(), config.kv_dim());
        let up_dim = if has_gate { config.ffn_dim } else { 0 };
        for (buffer, width) in [
            (&mut self.residual, dim),
            (&mut self.update, dim),
            (&mut self.queries, query_dim),
            (&mut self.keys, kv_dim),
            (&mut self.values, kv_dim),
            (&mut self.up, up_dim),
        ] {
            resize(buffer, n_tokens.saturating_mul(width), "hidden states")?;
        }
        self.input.resize(n_tokens, dim);
        self.attended.resize(n_tokens, query_dim);
        self.inner.resize(n_tokens, config.ffn_dim);
        self.attention.prepare(config, longest)
    }
}

impl std::fmt::Debug for EncoderWorkspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EncoderWorkspace").field("tokens", &self.input.tokens()).finish_non_exhaustive()
    }
}
