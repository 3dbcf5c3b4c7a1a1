//! Attention whose output is multiplied by the sigmoid of a gate per query head.

use ruvllm_gpu::{Buffer, Dispatch, GateKernel, GateNorm, Gpu, Result};
use ruvllm_models::ModelConfig;

use super::inputs::zeroed;

/// Activations of gated attention.
#[derive(Debug)]
pub(super) struct GateRows {
    /// Queries with a gate behind each, keys and values: `[n, 2 heads + 2 kv_heads, head_dim]`.
    pub(super) projected: Buffer,
    /// Output of attention before the gates, `[n, heads, head_dim]`.
    pub(super) attended: Buffer,
}

impl GateRows {
    pub(super) fn new(gpu: &Gpu, config: &ModelConfig, n: u32) -> Result<Self> {
        let (query, kv) = (config.query_dim(), config.kv_dim());
        Ok(Self { projected: zeroed(gpu, n, 2 * query + 2 * kv)?, attended: zeroed(gpu, n, query)? })
    }

    /// Multiplies the output of attention by its gates.
    pub(super) fn apply(&self, gpu: &Gpu, config: &ModelConfig, out: &Buffer) -> Result<Dispatch> {
        let (heads, dim) = (config.n_heads as u32, config.head_dim as u32);
        let key = GateKernel {
            groups: heads,
            dim,
            width: 2 * (heads + config.n_kv_heads as u32) * dim,
            first: dim,
            step: 2 * dim,
            silu: false,
            norm: GateNorm::None,
        };
        gpu.gate(key, (&self.attended, &self.projected), None, out)
    }
}
