//! Kernel launches of layers with a state.

use std::sync::Arc;

use ruvllm_gpu::{Buffer, ConvolutionKernel, Result};

use super::DeviceState;
use super::rows::StateRows;
use super::weights::{Recursion, StateHeads};
use crate::backend::gpu::launches::{Builder, Phase};

impl Builder<'_> {
    /// Sends all rows, which are normed, through the states of a layer.
    pub(in crate::backend::gpu) fn advance_states(
        &mut self,
        index: usize,
        state: &DeviceState,
    ) -> Result<()> {
        let (gpu, pool) = (self.parts.gpu, self.parts.pool);
        let rows = Arc::clone(&self.rows);
        let (own, states) = (rows.state(), pool.states().layer(index));
        self.project(&state.input, |format| rows.normed.of(format), &own.projected)?;
        let one_sequence = self.phase == Phase::Prefill;
        let spans = if one_sequence { &own.spans.of_one_sequence() } else { &own.spans };
        let key = ConvolutionKernel { one_sequence, ..state.convolution };
        let weights = (&state.taps, state.bias.as_ref());
        let Some(heads) = &state.heads else {
            let at = (&states.inputs, spans);
            self.launches.push(gpu.convolve(key, &own.projected, weights, at, &own.outputs)?);
            return Ok(());
        };
        let at = (&states.inputs, spans);
        self.launches.push(gpu.convolve(key, &own.projected, weights, at, &own.convolved)?);
        self.project(&heads.factors, |format| rows.normed.of(format), &own.factors)?;
        let inputs = (&own.convolved, &own.factors);
        let at = (&states.matrices, spans);
        self.launches.push(match heads.recursion {
            Recursion::DeltaRule(key) => gpu.delta_rule(key, inputs, &heads.heads, at, &own.outputs)?,
            Recursion::SelectiveScan(key) => {
                gpu.selective_scan(key, inputs, &heads.heads, at, &own.outputs)?
            }
        });
        Ok(())
    }

    /// Gates and projection of the outputs of a layer with a state.
    pub(in crate::backend::gpu) fn mix_states(&mut self, state: &DeviceState, out: &Buffer) -> Result<()> {
        let gpu = self.parts.gpu;
        let rows = Arc::clone(&self.rows);
        let own @ StateRows { projected, outputs, mixed, .. } = rows.state();
        let formats = state.output.formats();
        self.launches.extend(match &state.heads {
            // Convolutions alone are gated already.
            None => mixed.fill(gpu, formats, true, |out| Ok(vec![gpu.copy_rows(outputs, rows.n, out)?]))?,
            Some(StateHeads { gate, norm, .. }) => mixed.fill(gpu, formats, false, |_| {
                let gates = (outputs, projected);
                Ok(vec![gpu.gate(*gate, gates, norm.as_ref(), own.mixed.values())?])
            })?,
        });
        self.project(&state.output, |format| mixed.of(format), out)
    }
}
