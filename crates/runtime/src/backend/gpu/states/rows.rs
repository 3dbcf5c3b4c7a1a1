//! Activations of layers with a state.

use ruvllm_gpu::{Buffer, Gpu, Result, Spans};
use ruvllm_models::{ModelConfig, Recurrent, RecurrentMixer};

use crate::backend::gpu::inputs::{Input, zeroed};

/// Activations of `n` rows in layers with a state, `[n, ...]` each.
#[derive(Debug)]
pub(in crate::backend::gpu) struct StateRows {
    /// Sequences of the rows, and slots of the states behind them.
    pub(super) spans: Spans,
    /// Inputs of the convolution, and gates behind them.
    pub(super) projected: Buffer,
    /// Decays and rates of heads, or time steps.
    pub(super) factors: Buffer,
    pub(super) convolved: Buffer,
    /// Outputs before their gates.
    pub(super) outputs: Buffer,
    /// Input of the projection to the residual stream.
    pub(super) mixed: Input,
    /// `[n, model_dim]` where attention stands beside it, whose output is in `delta`.
    pub(in crate::backend::gpu) beside: Buffer,
}

impl StateRows {
    pub(in crate::backend::gpu) fn new(
        gpu: &Gpu,
        config: &ModelConfig,
        recurrent: &Recurrent,
        n: u32,
    ) -> Result<Self> {
        let [projected, factors, convolved, outputs] = match &recurrent.mixer {
            RecurrentMixer::DeltaNet(net) => {
                let (channels, values) = (net.channels(), net.values_dim());
                [channels + values, 2 * net.value_heads, channels, values]
            }
            RecurrentMixer::Mamba2(mamba) => {
                let (channels, inner) = (mamba.channels(), mamba.inner_dim());
                [channels + inner, mamba.heads, channels, inner]
            }
            RecurrentMixer::ShortConvolution(convolution) => {
                [3 * convolution.channels, 0, 0, convolution.channels]
            }
            _ => [0; 4],
        };
        let beside = if recurrent.beside_attention { config.model_dim } else { 0 };
        Ok(Self {
            spans: Spans::new(gpu, n)?,
            projected: zeroed(gpu, n, projected)?,
            factors: zeroed(gpu, n, factors)?,
            convolved: zeroed(gpu, n, convolved)?,
            outputs: zeroed(gpu, n, outputs)?,
            mixed: Input::new(gpu, n, outputs)?,
            beside: zeroed(gpu, n, beside)?,
        })
    }

    /// Activations that the outputs of a layer are computed from, with those of another number of
    /// rows.
    pub(in crate::backend::gpu) fn behind<'s>(&'s self, other: &'s Self) -> [(&'s Buffer, &'s Buffer); 2] {
        [(&self.outputs, &other.outputs), (&self.projected, &other.projected)]
    }
}
