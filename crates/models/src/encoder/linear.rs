//! Projections and norms of an encoder, and their loading.

use ruvllm_kernels::Kernels;
use ruvllm_kernels::rows::Norm;

use super::config::EncoderConfig;
use crate::error::{Error, Result};
use crate::weights::{Joint, Linear, TensorSource};

/// Adds the bias of a projection to a row of its product.
pub(super) fn add_bias(kernels: &Kernels, linear: &Linear, row: &mut [f32]) {
    if let Some(bias) = &linear.bias {
        kernels.add_assign(row, bias);
    }
}

/// A norm over the states or over one head.
pub(super) struct NormWeights {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    is_rms: bool,
    eps: f32,
}

impl NormWeights {
    /// Norms each row of `x`.
    pub(super) fn apply(&self, kernels: &Kernels, x: &[f32], out: &mut [f32]) {
        let weight = &self.weight;
        let norm = match self.is_rms {
            true => Norm::Rms { weight },
            false => Norm::Layer { weight, bias: self.bias.as_deref() },
        };
        kernels.norm(norm, self.eps, x, out);
    }
}

/// Projections whose rows one matrix of this shape has, one behind the other.
pub(super) fn joint(
    source: &mut TensorSource<'_>,
    config: &EncoderConfig,
    name: &str,
    (rows, cols): (usize, usize),
) -> Result<Joint> {
    let joint = Joint::load(source, name, rows, cols)?;
    let bias = format!("{name}.bias");
    match config.spec.biases && !source.has(&bias) {
        true => Err(Error::MissingTensor { name: bias }),
        false => Ok(joint),
    }
}

/// A projection with a matrix of its own.
pub(super) fn linear(
    source: &mut TensorSource<'_>,
    config: &EncoderConfig,
    name: &str,
    (rows, cols): (usize, usize),
) -> Result<Linear> {
    joint(source, config, name, (rows, cols))?.next(rows)
}

/// A norm over `dim` values.
pub(super) fn norm(
    source: &mut TensorSource<'_>,
    config: &EncoderConfig,
    name: &str,
    dim: usize,
) -> Result<NormWeights> {
    let is_rms = config.spec.rms_norms;
    Ok(NormWeights {
        weight: source.vector(&format!("{name}.weight"), dim)?,
        bias: match (is_rms, config.spec.norm_biases) {
            (true, _) => None,
            (false, true) => Some(source.vector(&format!("{name}.bias"), dim)?),
            (false, false) => source.optional_vector(&format!("{name}.bias"), dim)?,
        },
        is_rms,
        eps: config.norm_eps,
    })
}
