//! Kernel launches of a mixture of experts (ADR-0142).

use std::sync::Arc;

use ruvllm_gpu::{Activations, Buffer, Format, Result, SumStart};

use super::experts::{DeviceExperts, ExpertProjection};
use super::launches::{Builder, Phase};
use super::rows::ExpertRows;

impl Builder<'_> {
    /// Adds the outputs of the experts of the normed rows to `delta`: behind the shared experts
    /// onto their output, else onto zero.
    pub(super) fn mixture(&mut self, experts: &DeviceExperts, has_shared: bool) -> Result<()> {
        let rows = Arc::clone(&self.rows);
        self.route(experts, rows.normed.values())?;
        self.mix(experts, has_shared, &rows.delta)
    }

    /// Chooses the experts of rows, `[n, model_dim]`.
    pub(super) fn route(&mut self, experts: &DeviceExperts, input: &Buffer) -> Result<()> {
        let gpu = self.parts.gpu;
        let rows = Arc::clone(&self.rows);
        let own = rows.experts();
        let choices = &own.choices;
        let bias = experts.router_bias.as_ref();
        self.launches.push(gpu.router_logits(&experts.router, bias, input, rows.n, &own.logits)?);
        let bias = experts.selection_bias.as_ref();
        self.launches.push(gpu.route(experts.key, &own.logits, bias, choices)?);
        if self.sorts() {
            self.launches.push(gpu.sort_pairs(choices, &own.sorted)?);
        }
        Ok(())
    }

    /// Adds the outputs of the chosen experts of the normed rows to `delta`, or to zero.
    pub(super) fn mix(&mut self, experts: &DeviceExperts, has_shared: bool, delta: &Buffer) -> Result<()> {
        let gpu = self.parts.gpu;
        let rows = Arc::clone(&self.rows);
        let own = rows.experts();
        let choices = &own.choices;
        // Products are linear: weights of inputs multiply their outputs.
        self.project_pairs(
            &experts.gate_up,
            |format| rows.normed.of(format),
            &own.gate_up,
            experts.weighs_inputs,
        )?;
        let width = experts.gate_up.outputs / experts.activation.inputs();
        self.launches.extend(own.gated.fill(gpu, experts.down.formats(), true, |out| {
            Ok(vec![gpu.gated(experts.activation, &own.gate_up, choices.pairs(), width, out)?])
        })?);
        self.project_pairs(&experts.down, |format| own.gated.of(format), &own.down, false)?;

        let start = match (has_shared, experts.shared_gate) {
            (false, _) => SumStart::Zero,
            (true, false) => SumStart::Output,
            (true, true) => SumStart::GatedOutput { width: experts.key.width, at: experts.key.experts },
        };
        let gates = Some(&own.logits).filter(|_| matches!(start, SumStart::GatedOutput { .. }));
        let weighted = !experts.weighs_inputs;
        self.launches.push(gpu.expert_sum(&own.down, (choices, weighted), (start, gates), delta)?);
        Ok(())
    }

    /// True if products of experts and of heads take their pairs sorted.
    pub(super) fn sorts(&self) -> bool {
        self.phase == Phase::Prefill || self.parts.decode_gemm
    }

    /// Products of inputs with the matrices of the experts of each pair, plus biases.
    fn project_pairs(
        &mut self,
        projection: &ExpertProjection,
        input: impl Fn(Format) -> Activations,
        out: &Buffer,
        weighted: bool,
    ) -> Result<()> {
        let gpu = self.parts.gpu;
        let rows = Arc::clone(&self.rows);
        let ExpertRows { choices, sorted, .. } = rows.experts();
        for part in &projection.parts {
            let mut matrix = &part.matrix;
            let x = input(matrix.matrix().format());
            let place = (part.first, projection.outputs);
            // Few pairs read the matrices of their own experts alone.
            let is_copied = self.sorts() || choices.pairs() >= matrix.experts();
            if let Some(staged) = part.staged.as_ref().filter(|_| is_copied) {
                self.launches.extend(matrix.matrix().copy_to(gpu, staged.matrix())?);
                matrix = staged;
            }
            self.launches.push(if self.sorts() {
                matrix.gemm(gpu, &x, (choices, sorted), out, place)?
            } else {
                matrix.product(gpu, &x, choices, out, place)?
            });
        }
        if weighted || projection.bias.is_some() {
            self.launches.push(gpu.expert_affine(out, choices, weighted, projection.bias.as_ref())?);
        }
        Ok(())
    }
}
