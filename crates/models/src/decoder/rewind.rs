//! Rejected drafts in layers with a state: what a step notes of its tokens, and the states computed
//! from it again, with the bits of a step without the drafts.
//!
//! Journal of a step, layer by layer: `[tokens, channels]` inputs of the convolution, then
//! `[tokens, heads]` of each factor.

use ruvllm_kv_cache::{Replay, Sequence};

use super::layer::Layer;
use super::recurrent::{self, keep_inputs};
use super::{Model, RecurrentBuffers};
use crate::batch::{Segment, Span};
use crate::compute::Compute;
use crate::error::Result;
use crate::family::{Recurrent, RecurrentMixer};
use crate::weights::Mixer;
use crate::workspace::Workspace;

impl Model {
    /// Drops the tokens of a sequence from position `len` on. Where layers keep a state, these are
    /// the last ones of its last segment, which was [`rewindable`](Segment::rewindable), or
    /// [`Sequence::truncate`] can drop them.
    ///
    /// The state is bit by bit the one behind the tokens that stay.
    ///
    /// # Errors
    /// [`Error::KvCache`](crate::Error::KvCache) as [`Sequence::rewind`], and no memory for the
    /// workspace. Nothing has changed then.
    pub fn rewind(
        &self,
        compute: &Compute,
        workspace: &mut Workspace,
        sequence: &mut Sequence,
        len: usize,
    ) -> Result<()> {
        let buffers = &mut workspace.buffers.recurrent;
        if let Some(recurrent) = &self.config.decoder.recurrent {
            recurrent::prepare(buffers, recurrent, sequence.rewindable())?;
        }
        Ok(sequence.rewind(len, |replay| self.replay(compute, buffers, replay))?)
    }

    /// Computes the state of all layers from a journal.
    fn replay(&self, compute: &Compute, buffers: &mut RecurrentBuffers, replay: Replay<'_>) {
        let Replay { before, journal, tokens, after } = replay;
        let Some(recurrent) = &self.config.decoder.recurrent else { return };
        let (values, n_layers) = (recurrent.layer_values(), recurrent.index_of(self.config.n_layers));
        let ropes = self.ropes.tables(0);
        let states = before.chunks_exact(values).zip(after.chunks_exact_mut(values));
        let noted = states.zip(journal.chunks_exact(journal.len() / n_layers));
        let layers = (0..).zip(&self.weights.layers).filter(|(index, _)| recurrent.layers[*index]);
        for ((index, weights), (state, notes)) in layers.zip(noted) {
            let (heads, cache_index) = (self.config.heads(index), self.config.cache_layer(index));
            let layer =
                Layer { config: &self.config, weights, index, heads, cache_index, ropes: &ropes, compute };
            layer.replay(recurrent, buffers, (notes, tokens), state);
        }
    }
}

impl Layer<'_> {
    /// Notes rows of the segments that keep a journal: of each part values, and values per row.
    pub(super) fn note<const N: usize>(
        &self,
        segments: &mut [Segment<'_>],
        all: &[Span],
        parts: [(&[f32], usize); N],
    ) {
        let recurrent = self.config.decoder.recurrent.as_ref().expect("a layer with a state");
        let [index, n_layers] = [self.index, self.config.n_layers].map(|layer| recurrent.index_of(layer));
        for (segment, span) in segments.iter_mut().zip(all) {
            let journal = segment.step.journal();
            let values = journal.len() / n_layers;
            let mut notes = journal[index * values..].iter_mut();
            if values > 0 {
                let rows = parts.iter().flat_map(|(rows, width)| &rows[span.range(*width)]);
                rows.zip(&mut notes).for_each(|(value, note)| *note = *value);
            }
        }
    }

    /// Computes the state behind the first `tokens` of the tokens that were noted.
    fn replay(
        &self,
        recurrent: &Recurrent,
        buffers: &mut RecurrentBuffers,
        (mut notes, tokens): (&[f32], usize),
        (before, after): (&[f32], &mut [f32]),
    ) {
        let n_noted = notes.len() / recurrent.journal_values();
        let mut next = |width: usize| {
            let (rows, rest) = notes.split_at(n_noted * width);
            notes = rest;
            &rows[..tokens * width]
        };
        let whole = Span { segment: 0, row: 0, position: 0, len: tokens };
        match (&recurrent.mixer, &self.weights.mixer) {
            (RecurrentMixer::DeltaNet(net), Mixer::DeltaNet(weights)) => {
                let (channels, heads) = (net.channels(), net.value_heads);
                buffers.projected[..tokens * channels].copy_from_slice(next(channels));
                buffers.decays[..tokens * heads].copy_from_slice(next(heads));
                buffers.rates[..tokens * heads].copy_from_slice(next(heads));
                let inputs = &before[..(net.taps - 1) * channels];
                self.convolve_delta_net(weights, net, buffers, &[whole], |_| inputs);
                self.advance_delta_net(weights, net, buffers, whole, (before, after));
            }
            (RecurrentMixer::Mamba2(mamba), mixer) => {
                let weights = match mixer {
                    Mixer::Mamba2(weights) => weights,
                    Mixer::Parallel(weights) => &weights.mamba2,
                    _ => unreachable!("the weights are those of the mixer"),
                };
                let (channels, heads) = (mamba.channels(), mamba.heads);
                buffers.projected[..tokens * channels].copy_from_slice(next(channels));
                buffers.decays[..tokens * heads].copy_from_slice(next(heads));
                let inputs = &before[..(mamba.taps - 1) * channels];
                self.convolve_mamba2(weights, mamba, buffers, &[whole], |_| inputs);
                self.advance_mamba2(weights, mamba, buffers, whole, (before, after));
            }
            (RecurrentMixer::ShortConvolution(convolution), _) => {
                keep_inputs(before, next(convolution.channels), after);
            }
            (RecurrentMixer::DeltaNet(_), _) => unreachable!("the weights are those of the mixer"),
        }
    }
}
