//! Experts beside a feed-forward network (ADR-0151): both have norms of their own before and
//! behind, and the router one more.

mod launches;

use ruvllm_gpu::{Buffer, Gpu, Result};
use ruvllm_models::BesideWeights;

use super::inputs::zeroed;
use super::refusal::Refusal;
use super::uploads::{Norm, Uploader};

/// Norms and factors of experts beside a network.
#[derive(Debug)]
pub(super) struct DeviceBeside {
    /// Norm of the router's input.
    router_norm: Buffer,
    /// Norm of the input of the experts.
    input_norm: Norm,
    /// Norm of the output of the network.
    network_norm: Buffer,
    /// Norm of the output of the experts.
    output_norm: Buffer,
    /// Factors of the outputs of single experts, `[experts]`.
    scales: Option<Buffer>,
}

/// Activations of `n` rows, `[n, model_dim]` each.
#[derive(Debug)]
pub(super) struct BesideRows {
    /// Output of the network behind its norm.
    network: Buffer,
    /// Input of the router, then the output of the experts.
    experts: Buffer,
}

impl DeviceBeside {
    pub(super) fn upload(
        uploader: &Uploader<'_, '_>,
        weights: &BesideWeights,
    ) -> std::result::Result<Self, Refusal> {
        Ok(Self {
            router_norm: uploader.vector(&weights.router_norm)?,
            input_norm: Norm { weight: uploader.vector(&weights.input_norm)?, bias: None },
            network_norm: uploader.vector(&weights.network_norm)?,
            output_norm: uploader.vector(&weights.output_norm)?,
            scales: uploader.optional(weights.scales.as_deref())?,
        })
    }
}

impl BesideRows {
    pub(super) fn new(gpu: &Gpu, model_dim: usize, n: u32) -> Result<Self> {
        Ok(Self { network: zeroed(gpu, n, model_dim)?, experts: zeroed(gpu, n, model_dim)? })
    }
}
