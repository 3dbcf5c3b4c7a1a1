//! Experts beside a feed-forward network (ADR-0151): both have norms of their own before and
//! behind, and the router one more.

use std::sync::Arc;

use ruvllm_gpu::{Buffer, Gpu, Result};
use ruvllm_models::BesideWeights;

use super::experts::DeviceExperts;
use super::inputs::zeroed;
use super::launches::Builder;
use super::refusal::Refusal;
use super::uploads::Uploader;
use super::weights::Norm;

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

impl Builder<'_> {
    /// Norms the output of the network in `delta`, and adds that of the experts of the residual
    /// stream, normed too.
    pub(super) fn mixture_beside(&mut self, experts: &DeviceExperts, beside: &DeviceBeside) -> Result<()> {
        let (gpu, eps) = (self.parts.gpu, self.parts.config.norm_eps);
        let rows = Arc::clone(&self.rows);
        let Some(own) = &rows.experts().beside else { return Ok(()) };
        let norm = |x: &Buffer, weight: &Buffer, out: &Buffer| {
            gpu.rms_norm(x, weight, eps, rows.n, &out.clone().into())
        };
        self.launches.push(norm(&rows.delta, &beside.network_norm, &own.network)?);
        self.launches.push(norm(&rows.residual, &beside.router_norm, &own.experts)?);
        self.route(experts, &own.experts)?;
        if let Some(scales) = &beside.scales {
            self.launches.push(gpu.scale_choices(&rows.experts().choices, scales)?);
        }
        self.norm(Some(&beside.input_norm), experts.gate_up.formats())?;
        self.mix(experts, false, &own.experts)?;
        self.launches.push(norm(&own.experts, &beside.output_norm, &rows.delta)?);
        self.launches.push(gpu.add(&rows.delta, &own.network)?);
        Ok(())
    }
}
