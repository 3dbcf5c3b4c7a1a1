//! Layers that keep a state per sequence: slots of the states on the device (ADR-0149), weights,
//! activations and launches.

mod launches;
mod rows;
mod weights;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use ruvllm_gpu::{Buffer, Gpu, Result, Span};
use ruvllm_models::{ModelConfig, Recurrent, RecurrentMixer};

pub(super) use self::rows::StateRows;
pub(super) use self::weights::DeviceState;

/// States of all layers that keep one, for a number of sequences.
///
/// A sequence has two slots in each layer, and the state before position `p` is in slot `p % 2`: a
/// token that was computed in vain leaves the state before it, and may be computed again.
#[derive(Debug)]
pub(super) struct StatePool {
    /// `None` for layers without a state.
    layers: Vec<Option<LayerStates>>,
    free: Arc<Mutex<Vec<u32>>>,
    sequences: usize,
}

/// States of a layer in f32, in the layout of the kernels.
#[derive(Debug)]
pub(super) struct LayerStates {
    /// Last inputs of the convolution, `[slots, taps - 1, channels]`.
    pub(super) inputs: Buffer,
    /// Matrices of heads; empty for a layer of a convolution alone.
    pub(super) matrices: Buffer,
}

/// The slots of a sequence, free again when dropped.
#[derive(Debug)]
pub(super) struct StateLease {
    index: u32,
    free: Arc<Mutex<Vec<u32>>>,
}

impl StatePool {
    /// Allocates the states of `sequences` sequences.
    pub(super) fn new(
        gpu: &Gpu,
        config: &ModelConfig,
        recurrent: &Recurrent,
        sequences: usize,
    ) -> Result<Self> {
        let (inputs, matrices) = state_values(recurrent);
        let bytes = |values: usize| (2 * sequences) as u64 * values as u64 * 4;
        let layer = |layer: usize| {
            let states = || {
                Ok(LayerStates { inputs: gpu.zeroed(bytes(inputs))?, matrices: gpu.zeroed(bytes(matrices))? })
            };
            recurrent.layers[layer].then(states).transpose()
        };
        let layers = (0..config.n_layers).map(layer).collect::<Result<_>>()?;
        let free = Arc::new(Mutex::new((0..sequences as u32).rev().collect()));
        Ok(Self { layers, free, sequences })
    }

    /// States of a layer that keeps one.
    pub(super) fn layer(&self, layer: usize) -> &LayerStates {
        self.layers[layer].as_ref().expect("a layer with a state")
    }

    /// Takes the slots of a sequence. Their contents are not read before its first token.
    ///
    /// # Errors
    /// Number of sequences that the pool has slots for, all in use.
    pub(super) fn lease(&self) -> std::result::Result<StateLease, usize> {
        let index = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let lease = |index| StateLease { index, free: Arc::clone(&self.free) };
        index.map(lease).ok_or(self.sequences)
    }

    /// Sequences that can begin.
    pub(super) fn room(&self) -> usize {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(super) fn bytes(&self) -> u64 {
        let layers = self.layers.iter().flatten();
        layers.map(|layer| layer.inputs.len() + layer.matrices.len()).sum()
    }
}

impl StateLease {
    /// Rows from `first` on that compute these positions.
    pub(super) fn span(&self, positions: Range<usize>, first: u32) -> Span {
        let slot = |position: usize| 2 * self.index + (position % 2) as u32;
        Span {
            from: (positions.start > 0).then(|| slot(positions.start)),
            to: slot(positions.end),
            first,
            rows: positions.len() as u32,
        }
    }
}

impl Drop for StateLease {
    fn drop(&mut self) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
    }
}

/// Values of the state of a sequence in a layer: inputs of the convolution, and matrices.
fn state_values(recurrent: &Recurrent) -> (usize, usize) {
    match &recurrent.mixer {
        RecurrentMixer::DeltaNet(net) => ((net.taps - 1) * net.channels(), net.matrix_values()),
        RecurrentMixer::Mamba2(mamba) => ((mamba.taps - 1) * mamba.channels(), mamba.matrix_values()),
        RecurrentMixer::ShortConvolution(convolution) => ((convolution.taps - 1) * convolution.channels, 0),
        // `check` names the mixers that the kernels have.
        _ => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_computed_again_reads_the_state_that_it_had() {
        let lease = StateLease { index: 3, free: Arc::default() };
        let prompt = lease.span(0..5, 0);
        assert_eq!((prompt.from, prompt.to, prompt.rows), (None, 7, 5));
        let [token, next] = [5, 6].map(|at| lease.span(at..at + 1, 2));
        assert_eq!((token.from, token.to, token.first), (Some(7), 6, 2));
        // The next token writes over the state before it, not over its own.
        assert_eq!((next.from, next.to), (Some(6), 7));
        drop(lease);
    }
}
