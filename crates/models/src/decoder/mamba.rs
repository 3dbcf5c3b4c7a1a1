//! Mamba-2: a selective scan behind a short convolution.
//!
//! The state of a layer in a sequence: the inputs of the convolution of the last tokens, `[taps -
//! 1, channels]`, then a matrix per head, `[heads, state_dim, head_dim]`.

use std::ops::Range;

use ruvllm_adapters::Site;
use ruvllm_kernels::recurrence::SelectiveScan;
use ruvllm_kernels::rows::MatrixView;

use super::adapt::{Product, project_adapted};
use super::layer::{Layer, Stream, keep_rows, normalize, read_q8};
use super::recurrent::{Head, heads, keep_inputs, softplus, tokens};
use super::state_buffers::RecurrentBuffers;
use crate::batch::{Segment, Span};
use crate::family::{Mamba2, RecurrentMixer};
use crate::rows;
use crate::weights::Mamba2Weights;
use crate::workspace::Buffers;

impl Layer<'_> {
    /// Mamba-2 of the rows in `wanted`, added to them at the front; returns their number. The rows
    /// of `all` change the states.
    pub(super) fn mamba2(
        &self,
        weights: &Mamba2Weights,
        buffers: &mut Buffers,
        segments: &mut [Segment<'_>],
        (all, wanted): (&[Span], &[Span]),
    ) -> usize {
        self.scan_mamba2(weights, buffers, segments, all);
        if wanted.is_empty() {
            return 0;
        }
        let n_rows = keep_rows(&mut buffers.hidden, self.config.model_dim, wanted);
        self.gate_groups(weights, buffers, (all, wanted), n_rows);
        let Buffers { hidden, attended, update, unnormed, adapted, .. } = buffers;
        let stream = Stream { hidden, update, unnormed, adapted };
        self.add_mixed(&weights.output, attended, stream, (segments, wanted));
        n_rows
    }

    /// The sizes of the mixer, and the place of the layer's state.
    fn sizes(&self) -> (Range<usize>, &Mamba2) {
        match self.recurrent() {
            (state, RecurrentMixer::Mamba2(mamba)) => (state, mamba),
            _ => unreachable!("the weights are those of the mixer"),
        }
    }

    /// Sends all rows through the states; their outputs are in `buffers.recurrent`.
    pub(super) fn scan_mamba2(
        &self,
        weights: &Mamba2Weights,
        buffers: &mut Buffers,
        segments: &mut [Segment<'_>],
        all: &[Span],
    ) {
        let (state, mamba) = self.sizes();
        self.project_mamba2(weights, mamba, buffers, segments, all);
        let RecurrentBuffers { projected, decays: steps, .. } = &buffers.recurrent;
        self.note(segments, all, [(projected, mamba.channels()), (steps, mamba.heads)]);
        let inputs = state.start..state.start + (mamba.taps - 1) * mamba.channels();
        let seen = &*segments;
        let before = |segment: usize| seen[segment].step.state_before(inputs.clone());
        self.convolve_mamba2(weights, mamba, &mut buffers.recurrent, all, before);
        for (segment, &span) in segments.iter_mut().zip(all) {
            self.advance_mamba2(
                weights,
                mamba,
                &mut buffers.recurrent,
                span,
                segment.step.state(state.clone()),
            );
        }
    }

    /// Convolution and activation of all rows; `before` has the inputs before a segment.
    pub(super) fn convolve_mamba2<'b>(
        &self,
        weights: &Mamba2Weights,
        mamba: &Mamba2,
        buffers: &mut RecurrentBuffers,
        all: &[Span],
        before: impl Fn(usize) -> &'b [f32] + Sync,
    ) {
        let kernels = &self.compute.kernels;
        let taps = (weights.convolution.as_slice(), mamba.channels());
        self.convolve_rows(taps, buffers, all, before, |row| {
            if let Some(bias) = &weights.convolution_bias {
                kernels.add_assign(row, bias);
            }
            kernels.silu(row);
        });
    }

    /// Sends the tokens of a segment, which are convolved, through its state.
    pub(super) fn advance_mamba2(
        &self,
        weights: &Mamba2Weights,
        mamba: &Mamba2,
        buffers: &mut RecurrentBuffers,
        span: Span,
        (before, after): (&[f32], &mut [f32]),
    ) {
        let n_inputs = (mamba.taps - 1) * mamba.channels();
        let ((inputs, before), (kept, after)) = (before.split_at(n_inputs), after.split_at_mut(n_inputs));
        keep_inputs(inputs, &buffers.projected[span.range(mamba.channels())], kept);
        self.scan_heads(weights, mamba, buffers, span, (before, after));
    }

    /// The three projections of all rows.
    fn project_mamba2(
        &self,
        weights: &Mamba2Weights,
        mamba: &Mamba2,
        buffers: &mut Buffers,
        segments: &[Segment<'_>],
        all: &[Span],
    ) {
        let Layer { config, compute, .. } = self;
        let n_rows = all.iter().map(|span| span.len).sum();
        let Buffers { hidden, normed, recurrent, adapted, .. } = buffers;
        let q8 = read_q8([&weights.gate, &weights.input, &weights.step]);
        normalize(compute, config, hidden, self.weights.attention_norm.as_deref(), normed, n_rows, q8);
        let RecurrentBuffers { projected, gate, decays: steps, .. } = recurrent;
        let products = [
            Product::of(&weights.gate, &mut gate[..n_rows * mamba.inner_dim()]),
            Product::of(&weights.input, &mut projected[..n_rows * mamba.channels()]),
            Product::of(&weights.step, &mut steps[..n_rows * mamba.heads]),
        ];
        let site = (self.index, Site::AttentionInput);
        project_adapted(compute, adapted, (segments, all), site, normed, products);
    }

    /// Sends the tokens of a segment through its states, head by head.
    fn scan_heads(
        &self,
        weights: &Mamba2Weights,
        mamba: &Mamba2,
        buffers: &mut RecurrentBuffers,
        span: Span,
        states: (&[f32], &mut [f32]),
    ) {
        let &Mamba2 { heads: n_heads, head_dim, groups, state_dim, .. } = mamba;
        let RecurrentBuffers { convolved, decays: raw, head_decays, head_rates, outputs, .. } = buffers;
        let rows = &convolved[span.range(mamba.channels())];
        let raw = &raw[span.range(n_heads)];
        let factors = (&mut head_decays[span.range(n_heads)], &mut head_rates[span.range(n_heads)]);
        let tasks = heads(n_heads, states, &mut outputs[span.range(mamba.inner_dim())], factors);
        rows::for_each(&self.compute.pool, tasks, |task| {
            let Head { index: head, before, after, out, decays, rates: steps } = task;
            for (token, (decay, step)) in decays.iter_mut().zip(&mut *steps).enumerate() {
                let exact = softplus(raw[token * n_heads + head], weights.step_bias[head]);
                *step = exact as f32;
                *decay = (f64::from(weights.decay_factor[head]) * exact).exp() as f32;
            }
            let view =
                |first: usize, width| MatrixView::new(&rows[first..], span.len, width, mamba.channels());
            let input_weights = mamba.inner_dim() + head / (n_heads / groups) * state_dim;
            let scan = SelectiveScan {
                inputs: view(head * head_dim, head_dim),
                input_weights: view(input_weights, state_dim),
                output_weights: view(input_weights + mamba.weights_dim(), state_dim),
                steps,
                decays,
                skip: weights.skip[head],
            };
            self.compute.kernels.selective_scan(&scan, before, after, out);
        });
    }

    /// Outputs of the wanted tokens, times the activated gates, normed by groups of heads if there
    /// are weights for that, in `buffers.attended`.
    pub(super) fn gate_groups(
        &self,
        weights: &Mamba2Weights,
        buffers: &mut Buffers,
        (all, wanted): (&[Span], &[Span]),
        n_rows: usize,
    ) {
        let Layer { config, compute, .. } = self;
        let (_, mamba) = self.sizes();
        let Buffers { recurrent, attended, .. } = buffers;
        let RecurrentBuffers { gate, outputs, .. } = recurrent;
        let (width, head_dim) = (mamba.inner_dim(), mamba.head_dim);
        keep_rows(gate, width, wanted);
        let out = attended.resize(n_rows, width);
        let rows = out.chunks_exact_mut(width).zip(gate.chunks_exact_mut(width)).zip(tokens(wanted));
        rows::for_each(&compute.pool, rows, |((row, gate), (span, token))| {
            let whole = all[span.segment];
            let token = span.row - whole.row + token;
            let outputs = &outputs[whole.range(width)];
            for (head, row) in row.chunks_exact_mut(head_dim).enumerate() {
                row.copy_from_slice(&outputs[(head * whole.len + token) * head_dim..][..head_dim]);
            }
            compute.silu_mul(gate, row);
            let Some(norm) = &weights.norm else { return row.copy_from_slice(gate) };
            let group = width / mamba.groups;
            let groups = gate.chunks_exact(group).zip(norm.chunks_exact(group));
            for ((gated, norm), row) in groups.zip(row.chunks_exact_mut(group)) {
                compute.rms_norm(gated, norm, config.norm_eps, row);
            }
        });
    }
}
