//! Launches of experts beside a feed-forward network.

use std::sync::Arc;

use ruvllm_gpu::{Buffer, Result};

use super::DeviceBeside;
use crate::backend::gpu::experts::DeviceExperts;
use crate::backend::gpu::launches::Builder;

impl Builder<'_> {
    /// Norms the output of the network in `delta`, and adds that of the experts of the residual
    /// stream, normed too.
    pub(in crate::backend::gpu) fn mixture_beside(
        &mut self,
        experts: &DeviceExperts,
        beside: &DeviceBeside,
    ) -> Result<()> {
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
