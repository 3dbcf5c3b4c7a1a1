//! Output projection of the engine's model for the instant loop.

use std::sync::Arc;

use ruvllm_kernels::Kernels;
use ruvllm_kernels::quant::PackedMatrix;
use ruvllm_sona::instant::OutputHead;

use crate::core::Core;

/// Output projection of a loaded model.
pub(super) struct ModelHead(pub(super) Arc<Core>);

impl ModelHead {
    /// `[vocab_size, model_dim]`.
    fn weights(&self) -> &PackedMatrix {
        let weights = self.0.model.weights();
        weights.output.as_ref().map_or(&weights.embedding, |linear| &linear.weights)
    }
}

impl OutputHead for ModelHead {
    fn model_dim(&self) -> usize {
        self.0.model.config().model_dim
    }

    fn vocab_size(&self) -> usize {
        self.0.model.config().vocab_size
    }

    fn row(&self, token: u32, row: &mut [f32]) {
        self.weights().dequantize_row_with(&self.0.compute.kernels, token as usize, row);
    }

    fn bias(&self, token: u32) -> f32 {
        let output = self.0.model.weights().output.as_ref();
        output.and_then(|linear| linear.bias.as_ref()).map_or(0.0, |bias| bias[token as usize])
    }

    fn soft_cap(&self) -> Option<f32> {
        self.0.model.config().decoder.logits_soft_cap
    }

    fn kernels(&self) -> Kernels {
        self.0.compute.kernels
    }
}
