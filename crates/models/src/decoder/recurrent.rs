//! Layers that keep a state instead of keys and values: gated `DeltaNet` and short convolutions;
//! `mamba.rs` has those with Mamba-2.
//!
//! The state of a layer in a sequence: the inputs of the convolution of the last tokens, `[taps -
//! 1, channels]`, then for `DeltaNet` a matrix per head, `[value_heads, key_dim, value_dim]`.

use std::ops::Range;

use ruvllm_adapters::Site;
use ruvllm_kernels::recurrence::{Convolution, DeltaRule};
use ruvllm_kernels::rows::MatrixView;

use super::adapt::{Product, project_adapted};
use super::layer::{Layer, Stream, keep_rows, normalize, read_q8};
use super::state_buffers::RecurrentBuffers;
use crate::batch::{Segment, Span};
use crate::error::Result;
use crate::family::{DeltaNet, MAX_KEY_DIM, Recurrent, RecurrentMixer, ShortConvolution};
use crate::rows;
use crate::weights::{ConvolutionWeights, DeltaNetWeights};
use crate::workspace::{Buffers, resize};

/// Added to the sum of squares of a query or key before it is divided by the root. Source: the
/// reference implementation of Qwen 3.5.
const UNIT_EPS: f32 = 1e-6;

/// Name of the buffers in errors.
const WHAT: &str = "layers with a state";

/// Sizes the buffers for `n_tokens` rows.
pub(super) fn prepare(buffers: &mut RecurrentBuffers, recurrent: &Recurrent, n_tokens: usize) -> Result<()> {
    let rows = |width: usize| n_tokens.saturating_mul(width);
    match &recurrent.mixer {
        RecurrentMixer::DeltaNet(net) => {
            resize(&mut buffers.rates, rows(net.value_heads), WHAT)?;
            prepare_heads(buffers, n_tokens, (net.channels(), net.values_dim(), net.value_heads))
        }
        RecurrentMixer::Mamba2(mamba) => {
            prepare_heads(buffers, n_tokens, (mamba.channels(), mamba.inner_dim(), mamba.heads))
        }
        RecurrentMixer::ShortConvolution(convolution) => {
            resize(&mut buffers.projected, rows(3 * convolution.channels), WHAT)?;
            resize(&mut buffers.inputs, rows(convolution.channels), WHAT)?;
            resize(&mut buffers.convolved, rows(convolution.channels), WHAT)
        }
    }
}

/// Buffers of heads behind a convolution of so many channels, and the width of their outputs.
fn prepare_heads(
    buffers: &mut RecurrentBuffers,
    n_tokens: usize,
    (channels, outputs, heads): (usize, usize, usize),
) -> Result<()> {
    let RecurrentBuffers { projected, convolved, gate, decays, head_decays, head_rates, .. } = buffers;
    for (buffer, width) in [
        (projected, channels),
        (convolved, channels),
        (gate, outputs),
        (&mut buffers.outputs, outputs),
        (decays, heads),
        (head_decays, heads),
        (head_rates, heads),
    ] {
        resize(buffer, n_tokens.saturating_mul(width), WHAT)?;
    }
    Ok(())
}

impl Layer<'_> {
    /// Place of this layer's state among the values of a sequence, and the sizes of the mixer.
    pub(super) fn recurrent(&self) -> (Range<usize>, &RecurrentMixer) {
        let recurrent = self.config.decoder.recurrent.as_ref().expect("weights of a layer with a state");
        let values = recurrent.layer_values();
        let first = recurrent.index_of(self.index) * values;
        (first..first + values, &recurrent.mixer)
    }

    /// Gated `DeltaNet` of the rows in `wanted`, added to them at the front; returns their number.
    /// The rows of `all` change the states.
    pub(super) fn delta_net(
        &self,
        weights: &DeltaNetWeights,
        buffers: &mut Buffers,
        segments: &mut [Segment<'_>],
        (all, wanted): (&[Span], &[Span]),
    ) -> usize {
        let (state, RecurrentMixer::DeltaNet(net)) = self.recurrent() else {
            unreachable!("the weights are those of the mixer")
        };
        self.project_delta_net(weights, net, buffers, segments, all);
        let RecurrentBuffers { projected, decays, rates, .. } = &buffers.recurrent;
        self.note(
            segments,
            all,
            [(projected, net.channels()), (decays, net.value_heads), (rates, net.value_heads)],
        );
        let inputs = state.start..state.start + (net.taps - 1) * net.channels();
        let seen = &*segments;
        let before = |segment: usize| seen[segment].step.state_before(inputs.clone());
        self.convolve_delta_net(weights, net, &mut buffers.recurrent, all, before);
        for (segment, &span) in segments.iter_mut().zip(all) {
            self.advance_delta_net(
                weights,
                net,
                &mut buffers.recurrent,
                span,
                segment.step.state(state.clone()),
            );
        }
        if wanted.is_empty() {
            return 0;
        }
        let n_rows = keep_rows(&mut buffers.hidden, self.config.model_dim, wanted);
        self.gate_heads(weights, net, buffers, (all, wanted), n_rows);
        let Buffers { hidden, attended, update, unnormed, adapted, .. } = buffers;
        self.add_mixed(
            &weights.output,
            attended,
            Stream { hidden, update, unnormed, adapted },
            (segments, wanted),
        );
        n_rows
    }

    /// The four projections of all rows.
    fn project_delta_net(
        &self,
        weights: &DeltaNetWeights,
        net: &DeltaNet,
        buffers: &mut Buffers,
        segments: &[Segment<'_>],
        all: &[Span],
    ) {
        let Layer { config, compute, .. } = self;
        let n_rows = all.iter().map(|span| span.len).sum();
        let Buffers { hidden, normed, recurrent, adapted, .. } = buffers;
        let q8 = read_q8([&weights.input, &weights.gate, &weights.decay, &weights.rate]);
        normalize(compute, config, hidden, self.weights.attention_norm.as_deref(), normed, n_rows, q8);
        let RecurrentBuffers { projected, gate, decays, rates, .. } = recurrent;
        let products = [
            Product::of(&weights.input, &mut projected[..n_rows * net.channels()]),
            Product::of(&weights.gate, &mut gate[..n_rows * net.values_dim()]),
            Product::of(&weights.decay, &mut decays[..n_rows * net.value_heads]),
            Product::of(&weights.rate, &mut rates[..n_rows * net.value_heads]),
        ];
        let site = (self.index, Site::AttentionInput);
        project_adapted(compute, adapted, (segments, all), site, normed, products);
    }

    /// Convolution and activation of all rows; queries and keys of unit length, and queries divided
    /// by the root of that width, as scores of attention are. `before` has the inputs before a
    /// segment.
    pub(super) fn convolve_delta_net<'b>(
        &self,
        weights: &DeltaNetWeights,
        net: &DeltaNet,
        buffers: &mut RecurrentBuffers,
        all: &[Span],
        before: impl Fn(usize) -> &'b [f32] + Sync,
    ) {
        let compute = self.compute;
        let eps = UNIT_EPS / net.key_dim as f32;
        let taps = (weights.convolution.as_slice(), net.channels());
        self.convolve_rows(taps, buffers, all, before, |row| {
            compute.kernels.silu(row);
            let (queries, keys) = row[..2 * net.keys_dim()].split_at_mut(net.keys_dim());
            let mut raw = [0.0; MAX_KEY_DIM];
            for (heads, weight) in [(queries, &weights.scaled), (keys, &weights.unit)] {
                for head in heads.chunks_exact_mut(net.key_dim) {
                    let raw = &mut raw[..net.key_dim];
                    raw.copy_from_slice(head);
                    compute.rms_norm(raw, weight, eps, head);
                }
            }
        });
    }

    /// Convolution of all rows of so many channels, with these weights; `finish` completes a row.
    /// `before` has the inputs before a segment.
    pub(super) fn convolve_rows<'b>(
        &self,
        (weights, channels): (&[f32], usize),
        buffers: &mut RecurrentBuffers,
        all: &[Span],
        before: impl Fn(usize) -> &'b [f32] + Sync,
        finish: impl Fn(&mut [f32]) + Sync,
    ) {
        let RecurrentBuffers { projected, convolved, .. } = buffers;
        let rows = convolved.chunks_exact_mut(channels).zip(tokens(all));
        rows::for_each(&self.compute.pool, rows, |(row, (span, token))| {
            let (before, inputs) = (before(span.segment), &projected[span.range(channels)]);
            self.compute.kernels.convolve(&Convolution { weights, before, inputs }, token, row);
            finish(row);
        });
    }

    /// Sends the tokens of a segment, which are convolved, through its state.
    pub(super) fn advance_delta_net(
        &self,
        weights: &DeltaNetWeights,
        net: &DeltaNet,
        buffers: &mut RecurrentBuffers,
        span: Span,
        (before, after): (&[f32], &mut [f32]),
    ) {
        let n_inputs = (net.taps - 1) * net.channels();
        let ((inputs, before), (kept, after)) = (before.split_at(n_inputs), after.split_at_mut(n_inputs));
        keep_inputs(inputs, &buffers.projected[span.range(net.channels())], kept);
        self.apply_delta_rule(weights, net, buffers, span, (before, after));
    }

    /// Sends the tokens of a segment through its states, head by head.
    fn apply_delta_rule(
        &self,
        weights: &DeltaNetWeights,
        net: &DeltaNet,
        buffers: &mut RecurrentBuffers,
        span: Span,
        states: (&[f32], &mut [f32]),
    ) {
        let n_heads = net.value_heads;
        let RecurrentBuffers { convolved, decays, rates, head_decays, head_rates, outputs, .. } = buffers;
        let rows = &convolved[span.range(net.channels())];
        let (raw_decays, raw_rates) = (&decays[span.range(n_heads)], &rates[span.range(n_heads)]);
        let factors = (&mut head_decays[span.range(n_heads)], &mut head_rates[span.range(n_heads)]);
        let tasks = heads(n_heads, states, &mut outputs[span.range(net.values_dim())], factors);
        rows::for_each(&self.compute.pool, tasks, |task| {
            let Head { index: head, before, after, out, decays, rates } = task;
            for token in 0..span.len {
                let at = token * n_heads + head;
                decays[token] =
                    decay_of(raw_decays[at], weights.decay_bias[head], weights.decay_factor[head]);
                rates[token] = sigmoid(raw_rates[at]);
            }
            let view = |first: usize, width| MatrixView::new(&rows[first..], span.len, width, net.channels());
            let key = net.key_head(head) * net.key_dim;
            let rule = DeltaRule {
                queries: view(key, net.key_dim),
                keys: view(net.keys_dim() + key, net.key_dim),
                values: view(2 * net.keys_dim() + head * net.value_dim, net.value_dim),
                decays,
                rates,
            };
            self.compute.kernels.delta_rule(&rule, before, after, out);
        });
    }

    /// Norms of the wanted heads' outputs, times the activated gates, in `buffers.attended`.
    fn gate_heads(
        &self,
        weights: &DeltaNetWeights,
        net: &DeltaNet,
        buffers: &mut Buffers,
        (all, wanted): (&[Span], &[Span]),
        n_rows: usize,
    ) {
        let Layer { config, compute, .. } = self;
        let Buffers { recurrent, attended, .. } = buffers;
        let RecurrentBuffers { gate, outputs, .. } = recurrent;
        let width = net.values_dim();
        keep_rows(gate, width, wanted);
        let out = attended.resize(n_rows, width);
        let rows = out.chunks_exact_mut(width).zip(gate.chunks_exact_mut(width)).zip(tokens(wanted));
        rows::for_each(&compute.pool, rows, |((row, gate), (span, token))| {
            let whole = all[span.segment];
            let token = span.row - whole.row + token;
            let outputs = &outputs[whole.range(width)];
            for (head, row) in row.chunks_exact_mut(net.value_dim).enumerate() {
                let output = &outputs[(head * whole.len + token) * net.value_dim..][..net.value_dim];
                compute.rms_norm(output, &weights.norm, config.norm_eps, row);
            }
            compute.silu_mul(gate, row);
            row.copy_from_slice(gate);
        });
    }

    /// Short convolution of the rows in `wanted`, added to them at the front; returns their number.
    /// The rows of `all` change the states.
    pub(super) fn short_convolution(
        &self,
        weights: &ConvolutionWeights,
        buffers: &mut Buffers,
        segments: &mut [Segment<'_>],
        (all, wanted): (&[Span], &[Span]),
    ) -> usize {
        let Layer { config, compute, .. } = self;
        let (state, RecurrentMixer::ShortConvolution(ShortConvolution { channels, .. })) = self.recurrent()
        else {
            unreachable!("the weights are those of the mixer")
        };
        let channels = *channels;
        let n_rows: usize = all.iter().map(|span| span.len).sum();
        let Buffers { hidden, normed, recurrent, attended, update, unnormed, adapted, .. } = buffers;
        let norm = self.weights.attention_norm.as_deref();
        normalize(compute, config, hidden, norm, normed, n_rows, read_q8([&weights.input]));
        let RecurrentBuffers { projected, inputs, convolved, .. } = recurrent;
        let projected = &mut projected[..n_rows * 3 * channels];
        let products = [Product::of(&weights.input, &mut *projected)];
        let site = (self.index, Site::AttentionInput);
        project_adapted(compute, adapted, (&*segments, all), site, normed, products);
        let rows = inputs.chunks_exact_mut(channels).zip(projected.chunks_exact(3 * channels));
        rows::for_each(&compute.pool, rows, |(input, row)| {
            let (gate, value) = (&row[..channels], &row[2 * channels..]);
            input.iter_mut().zip(gate.iter().zip(value)).for_each(|(input, (gate, x))| *input = gate * x);
        });
        let seen = &*segments;
        let rows = convolved.chunks_exact_mut(channels).zip(tokens(wanted));
        rows::for_each(&compute.pool, rows, |(row, (span, token))| {
            let whole = all[span.segment];
            let convolution = Convolution {
                weights: &weights.convolution,
                before: seen[span.segment].step.state_before(state.clone()),
                inputs: &inputs[whole.range(channels)],
            };
            compute.kernels.convolve(&convolution, span.row - whole.row + token, row);
            let gate = &projected[(span.row + token) * 3 * channels..][channels..2 * channels];
            row.iter_mut().zip(gate).for_each(|(x, gate)| *x *= gate);
        });
        self.note(segments, all, [(&*inputs, channels)]);
        for (segment, span) in segments.iter_mut().zip(all) {
            let (before, after) = segment.step.state(state.clone());
            keep_inputs(before, &inputs[span.range(channels)], after);
        }
        if wanted.is_empty() {
            return 0;
        }
        let n_rows = keep_rows(hidden, config.model_dim, wanted);
        attended.resize(n_rows, channels).copy_from_slice(&convolved[..n_rows * channels]);
        self.add_mixed(
            &weights.output,
            attended,
            Stream { hidden, update, unnormed, adapted },
            (segments, wanted),
        );
        n_rows
    }
}

/// Each token of `spans` in order, with its index within its span.
pub(super) fn tokens(spans: &[Span]) -> impl Iterator<Item = (Span, usize)> + Send {
    spans.iter().flat_map(|&span| (0..span.len).map(move |token| (span, token)))
}

/// One head of a segment: its state, its outputs, and two factors of each token.
pub(super) struct Head<'a> {
    pub(super) index: usize,
    pub(super) before: &'a [f32],
    pub(super) after: &'a mut [f32],
    /// `[tokens, width of a head]`
    pub(super) out: &'a mut [f32],
    /// `[tokens]`
    pub(super) decays: &'a mut [f32],
    /// `[tokens]`
    pub(super) rates: &'a mut [f32],
}

/// The heads of a segment; every slice has equal parts for `n_heads`.
pub(super) fn heads<'a>(
    n_heads: usize,
    (before, after): (&'a [f32], &'a mut [f32]),
    outputs: &'a mut [f32],
    (decays, rates): (&'a mut [f32], &'a mut [f32]),
) -> impl Iterator<Item = Head<'a>> + Send {
    let [matrix, width, tokens] = [before.len(), outputs.len(), decays.len()].map(|len| len / n_heads);
    let states = before.chunks_exact(matrix).zip(after.chunks_exact_mut(matrix));
    let factors = decays.chunks_exact_mut(tokens).zip(rates.chunks_exact_mut(tokens));
    let parts = states.zip(outputs.chunks_exact_mut(width).zip(factors)).enumerate();
    parts.map(|(index, ((before, after), (out, (decays, rates))))| Head {
        index,
        before,
        after,
        out,
        decays,
        rates,
    })
}

/// Writes the last inputs of a convolution to `after`, of those before a step and its own.
pub(super) fn keep_inputs(before: &[f32], inputs: &[f32], after: &mut [f32]) {
    let kept = before.len().saturating_sub(inputs.len());
    let (old, new) = after.split_at_mut(kept);
    old.copy_from_slice(&before[before.len() - kept..]);
    new.copy_from_slice(&inputs[inputs.len() - new.len()..]);
}

/// `exp(factor * softplus(x + bias))`.
fn decay_of(x: f32, bias: f32, factor: f32) -> f32 {
    (f64::from(factor) * softplus(x, bias)).exp() as f32
}

/// `ln(1 + exp(x + bias))`. In f64, so that what is left after rounding does not depend on the
/// machine's library.
pub(super) fn softplus(x: f32, bias: f32) -> f64 {
    let x = f64::from(x) + f64::from(bias);
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// `1 / (1 + exp(-x))`, in f64 as [`softplus`].
fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(x)).exp())) as f32
}
