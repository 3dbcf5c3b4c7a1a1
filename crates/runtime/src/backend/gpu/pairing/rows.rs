//! Activations of the beginning of a pass of a prediction head.

use ruvllm_gpu::{Buffer, Gpu, Result};
use ruvllm_models::ModelConfig;

use crate::backend::gpu::inputs::{Input, zeroed};

/// Activations of `n` rows that are pairs of a token and a state.
#[derive(Debug)]
pub(in crate::backend::gpu) struct PairRows {
    /// Final hidden states of the tokens before, `[n, model_dim]`: written by the host.
    pub(in crate::backend::gpu) states: Buffer,
    /// Normed embeddings and states, `[n, model_dim]` each.
    pub(super) halves: [Buffer; 2],
    /// Both, `[n, 2 * model_dim]`.
    pub(super) joined: Input,
}

impl PairRows {
    pub(in crate::backend::gpu) fn new(gpu: &Gpu, config: &ModelConfig, n: u32) -> Result<Self> {
        let dim = config.model_dim;
        Ok(Self {
            states: zeroed(gpu, n, dim)?,
            halves: [zeroed(gpu, n, dim)?, zeroed(gpu, n, dim)?],
            joined: Input::new(gpu, n, 2 * dim)?,
        })
    }
}
