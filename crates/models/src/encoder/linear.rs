//! Projections and norms of an encoder, and their loading.

use ruvllm_kernels::quant::PackedMatrix;
use ruvllm_kernels::rows::Norm;

use crate::error::Result;
use crate::weights::TensorSource;

/// A projection `y = W x + bias`.
pub(super) struct Linear {
    pub(super) weights: PackedMatrix, // [outputs, inputs]
    pub(super) bias: Vec<f32>,        // [outputs]
}

/// A layer norm over `model_dim` values.
pub(super) struct LayerNorm {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl LayerNorm {
    pub(super) fn norm(&self) -> Norm<'_> {
        Norm::Layer { weight: &self.weight, bias: Some(&self.bias) }
    }
}

pub(super) fn linear(source: &mut TensorSource<'_>, name: &str, rows: usize, cols: usize) -> Result<Linear> {
    Ok(Linear {
        weights: source.matrix(&format!("{name}.weight"), rows, cols)?,
        bias: source.vector(&format!("{name}.bias"), rows)?,
    })
}

pub(super) fn layer_norm(source: &mut TensorSource<'_>, name: &str, dim: usize) -> Result<LayerNorm> {
    Ok(LayerNorm {
        weight: source.vector(&format!("{name}.weight"), dim)?,
        bias: source.vector(&format!("{name}.bias"), dim)?,
    })
}
