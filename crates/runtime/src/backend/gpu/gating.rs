//! Kernel launches of attention with gates.

use std::sync::Arc;

use ruvllm_gpu::{Result, SplitGatesKernel};

use super::gates::GateRows;
use super::launches::Builder;

impl Builder<'_> {
    /// Copies queries, keys and values from the projection with gates.
    pub(super) fn split_gates(&mut self, gates: &GateRows) -> Result<()> {
        let config = self.parts.config;
        let key = SplitGatesKernel {
            heads: config.n_heads as u32,
            kv_heads: config.n_kv_heads as u32,
            head_dim: config.head_dim as u32,
        };
        let rows = Arc::clone(&self.rows);
        self.launches.push(self.parts.gpu.split_gates(key, &gates.projected, &rows.usual.qkv)?);
        Ok(())
    }
}
