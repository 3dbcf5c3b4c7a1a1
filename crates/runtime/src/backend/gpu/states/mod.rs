//! Layers that keep a state per sequence: slots of the states on the device (ADR-0161), weights,
//! activations and launches.

mod launches;
mod lease;
mod prefix;
mod rows;
mod spans;
#[cfg(test)]
mod tests;
mod weights;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ruvllm_gpu::{Buffer, Gpu, Result};
use ruvllm_models::{ModelConfig, Recurrent, RecurrentMixer};

use self::lease::Counts;
pub(super) use self::lease::StateLease;
pub(super) use self::prefix::StatePrefix;
pub(super) use self::rows::StateRows;
pub(super) use self::weights::DeviceState;
use super::blocks::BlockPool;
use super::free_blocks::{Block, FreeBlocks};

/// Largest default of [`GpuOptions::spare_states`](super::GpuOptions::spare_states).
const MOST_SPARE: usize = 32;

/// States of all layers that keep one, in slots: of sequences, of tokens of drafts, of stored
/// prefixes.
///
/// A slot has the state behind some tokens in every layer. It is held by sequences, by the prefix
/// tree, or by both, and is not written until all have dropped it. A sequence holds the state
/// before its next token, and writes those behind it to free slots: so a token can be computed
/// again, or dropped, and a stored state is shared without a copy. Sequences may always take their
/// own slots and those that they have reserved; stored states have what these leave, and yield.
#[derive(Debug)]
pub(super) struct StatePool {
    /// `None` for layers without a state.
    layers: Vec<Option<LayerStates>>,
    slots: Arc<FreeBlocks>,
    numbers: StateNumbers,
    counts: Arc<Mutex<Counts>>,
}

/// Numbers of the states of a pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct StateNumbers {
    /// Largest number of sequences.
    pub(super) sequences: usize,
    /// States before the last one that each keeps, so that it can be cut back to them.
    pub(super) earlier: usize,
    /// States for drafts and stored prefixes.
    pub(super) spare: usize,
}

/// States of a layer in f32, in the layout of the kernels.
#[derive(Debug)]
pub(super) struct LayerStates {
    /// Last inputs of the convolution, `[slots, taps - 1, channels]`.
    pub(super) inputs: Buffer,
    /// Matrices of heads; empty for a layer of a convolution alone.
    pub(super) matrices: Buffer,
}

impl StateNumbers {
    /// Slots of a sequence: before and behind a step, and those of earlier ones.
    fn own(self) -> usize {
        2 + self.earlier
    }

    fn slots(self) -> usize {
        self.sequences * self.own() + self.spare
    }

    /// With as many spare states as take the memory of the keys and values and of the states of
    /// sequences once more: at least one, and 32 at most.
    pub(super) fn with_usual_spare(self, recurrent: &Recurrent, kv_bytes: u64) -> Self {
        let state = state_bytes(recurrent).max(1);
        let own = (self.sequences * self.own()) as u64;
        let spare = usize::try_from(kv_bytes / state + own).unwrap_or(usize::MAX);
        Self { spare: spare.clamp(1, MOST_SPARE), ..self }
    }
}

impl StatePool {
    /// Allocates the states.
    pub(super) fn new(
        gpu: &Gpu,
        config: &ModelConfig,
        recurrent: &Recurrent,
        numbers: StateNumbers,
    ) -> Result<Self> {
        let slots = numbers.slots();
        let (inputs, matrices) = state_values(recurrent);
        let bytes = |values: usize| slots as u64 * values as u64 * 4;
        let layer = |layer: usize| {
            let states = || {
                Ok(LayerStates { inputs: gpu.zeroed(bytes(inputs))?, matrices: gpu.zeroed(bytes(matrices))? })
            };
            recurrent.layers[layer].then(states).transpose()
        };
        let layers = (0..config.n_layers).map(layer).collect::<Result<_>>()?;
        Ok(Self::of_layers(layers, numbers))
    }

    fn of_layers(layers: Vec<Option<LayerStates>>, numbers: StateNumbers) -> Self {
        let StateNumbers { spare, .. } = numbers;
        let counts = Arc::new(Mutex::new(Counts { sequences: 0, spare, all_spare: spare }));
        let slots = u32::try_from(numbers.slots()).unwrap_or(u32::MAX);
        Self { layers, slots: FreeBlocks::new(slots), numbers, counts }
    }

    /// States of a layer that keeps one.
    pub(super) fn layer(&self, layer: usize) -> &LayerStates {
        self.layers[layer].as_ref().expect("a layer with a state")
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a sequence.
    ///
    /// # Errors
    /// Number of sequences that the pool has slots for, all in use.
    pub(super) fn lease(&self) -> std::result::Result<StateLease, usize> {
        let mut counts = self.counts();
        if counts.sequences == self.numbers.sequences {
            return Err(self.numbers.sequences);
        }
        counts.sequences += 1;
        Ok(StateLease::new(Arc::clone(&self.counts), self.numbers.own()))
    }

    /// Takes a slot, that of the least recently used stored state if need be; `None` if sequences
    /// hold all. Its contents are not read before they are written.
    pub(super) fn take_or_evict(&self, blocks: &BlockPool) -> Option<Arc<Block>> {
        loop {
            let taken = self.slots.take(1).ok().and_then(|mut taken| taken.pop());
            if taken.is_some() || !blocks.evict_state() {
                return taken;
            }
        }
    }

    /// Sequences that can begin.
    pub(super) fn room(&self) -> usize {
        self.numbers.sequences - self.counts().sequences
    }

    /// True if tokens of drafts can be taken back.
    pub(super) fn has_drafts(&self) -> bool {
        self.numbers.spare + self.numbers.earlier > 0
    }

    pub(super) fn numbers(&self) -> StateNumbers {
        self.numbers
    }

    pub(super) fn bytes(&self) -> u64 {
        let layers = self.layers.iter().flatten();
        layers.map(|layer| layer.inputs.len() + layer.matrices.len()).sum()
    }
}

/// Bytes of a state in all layers.
fn state_bytes(recurrent: &Recurrent) -> u64 {
    let (inputs, matrices) = state_values(recurrent);
    let layers = recurrent.layers.iter().filter(|&&has_state| has_state).count();
    (layers * (inputs + matrices)) as u64 * 4
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
