//! Heads of sizes that attention does not take (ADR-0152): queries, keys and values are filled up
//! with zeros where RoPE writes them, and what attention finds is cut to the heads of the model.

use ruvllm_gpu::{Buffer, CutHeadsKernel, Dispatch, Gpu, Result, stored_head_dim};
use ruvllm_models::ModelConfig;

use super::inputs::zeroed;

/// Output of attention over heads that are filled up.
#[derive(Debug)]
pub(super) struct FilledRows {
    /// `[n, heads, stored_dim]`.
    pub(super) attended: Buffer,
    key: CutHeadsKernel,
}

impl FilledRows {
    /// `None` where attention takes the heads as they are.
    pub(super) fn new(gpu: &Gpu, config: &ModelConfig, n: u32) -> Result<Option<Self>> {
        let head_dim = config.head_dim as u32;
        let stored = stored_head_dim(head_dim);
        if stored == head_dim {
            return Ok(None);
        }
        let attended = zeroed(gpu, n, config.n_heads * stored as usize)?;
        Ok(Some(Self { attended, key: CutHeadsKernel { heads: config.n_heads as u32, head_dim } }))
    }

    /// Copies the output of attention to rows of the model's heads.
    pub(super) fn cut(&self, gpu: &Gpu, out: &Buffer) -> Result<Dispatch> {
        gpu.cut_heads(self.key, &self.attended, out)
    }
}
