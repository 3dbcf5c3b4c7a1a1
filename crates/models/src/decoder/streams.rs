//! Several residual streams (`AltUp`, arXiv 2301.13310), of which a layer computes one: it predicts
//! all from themselves, computes the active one, and adds a share of the difference between result
//! and prediction to each. Beside the mixer stands a low-rank projection of its input (`LAuReL`,
//! arXiv 2411.07501). Source: Gemma 3n.
//!
//! The streams of a token lie one behind the other, and its result depends on no other token.

use std::f32::consts::FRAC_1_SQRT_2;

use ruvllm_kernels::matmul::MatmulJob;
use ruvllm_kernels::quant::PackedMatrix;

use super::Model;
use super::layer::{Layer, normalize, normalize_biased, read_q8};
use super::stream_buffers::StreamBuffers;
use crate::compute::Compute;
use crate::config::ModelConfig;
use crate::error::Result;
use crate::family::{MAX_STREAMS, ResidualStreams};
use crate::projection::{add_bias, finish, project};
use crate::rows;
use crate::weights::LayerStreamWeights;
use crate::workspace::{Buffers, resize};

/// Least mean square by which projections are scaled.
const LEAST_MEAN_SQUARE: f32 = 1e-5;

/// Sizes the buffers for `n_tokens` rows.
pub(super) fn prepare(buffers: &mut StreamBuffers, config: &ModelConfig, n_tokens: usize) -> Result<()> {
    let n_values = n_tokens.saturating_mul(config.streams_dim());
    resize(&mut buffers.values, n_values, "residual streams")?;
    resize(&mut buffers.before, n_values, "residual streams")
}

impl Model {
    /// Makes the streams from the embeddings in `buffers.hidden`: the first is the embedding, the
    /// others are projections of it with its magnitude.
    pub(super) fn split_streams(&self, compute: &Compute, buffers: &mut Buffers, n_tokens: usize) {
        let (Some(weights), dim) = (&self.weights.streams, self.config.model_dim) else { return };
        let Buffers { hidden, normed, update, streams, .. } = buffers;
        let width = self.config.streams_dim();
        normalize(compute, &self.config, hidden, None, normed, n_tokens, any_q8(&weights.split));
        let first = streams.values.chunks_exact_mut(width).zip(hidden.chunks_exact(dim)).take(n_tokens);
        rows::for_each(&compute.pool, first, |(streams, hidden)| streams[..dim].copy_from_slice(hidden));
        for (index, projection) in (1..).zip(&weights.split) {
            let update = &mut update[..n_tokens * dim];
            project(compute, normed, &mut [MatmulJob { weights: projection, out: &mut *update }]);
            let rows = streams.values.chunks_exact_mut(width).zip(update.chunks_exact(dim));
            rows::for_each(&compute.pool, rows, |(streams, update)| {
                let (first, others) = streams.split_at_mut(dim);
                let stream = &mut others[(index - 1) * dim..][..dim];
                stream.copy_from_slice(update);
                match_magnitude(compute, stream, first);
            });
        }
    }

    /// Merges the streams of the first `n_rows` rows in `buffers.hidden`: the mean of the first and
    /// of projections of the others with its magnitude.
    pub(super) fn merge_streams(&self, compute: &Compute, buffers: &mut Buffers, n_rows: usize) {
        let (Some(weights), dim) = (&self.weights.streams, self.config.model_dim) else { return };
        let Buffers { hidden, normed, update, streams, .. } = buffers;
        let (width, values) = (self.config.streams_dim(), &streams.values);
        let hidden = &mut hidden[..n_rows * dim];
        let rows = hidden.chunks_exact_mut(dim).zip(values.chunks_exact(width));
        rows::for_each(&compute.pool, rows, |(hidden, streams)| hidden.copy_from_slice(&streams[..dim]));
        for (index, projection) in (1..).zip(&weights.merge) {
            normed.resize(n_rows, dim);
            finish(compute, normed, projection.format().uses_q8(), &|rows, normed| {
                for (row, normed) in rows.zip(normed.chunks_exact_mut(dim)) {
                    normed.copy_from_slice(&values[row * width + index * dim..][..dim]);
                }
            });
            let update = &mut update[..n_rows * dim];
            project(compute, normed, &mut [MatmulJob { weights: projection, out: &mut *update }]);
            let rows = hidden
                .chunks_exact_mut(dim)
                .zip(update.chunks_exact_mut(dim))
                .zip(values.chunks_exact(width));
            rows::for_each(&compute.pool, rows, |((hidden, update), streams)| {
                match_magnitude(compute, update, &streams[..dim]);
                compute.kernels.add_assign(hidden, update);
            });
        }
        let share = (1.0 + weights.merge.len() as f32).recip();
        let rows = hidden.chunks_exact_mut(dim);
        rows::for_each(&compute.pool, rows, |row| row.iter_mut().for_each(|value| *value *= share));
    }
}

impl Layer<'_> {
    /// Predicts the streams of the first `n_rows` rows from themselves and copies the active ones
    /// to `buffers.hidden`.
    pub(super) fn predict_streams(
        &self,
        (spec, weights): (ResidualStreams, &LayerStreamWeights),
        buffers: &mut Buffers,
        n_rows: usize,
    ) {
        let (dim, width) = (self.config.model_dim, self.config.streams_dim());
        let Buffers { hidden, streams: StreamBuffers { values, before }, .. } = buffers;
        std::mem::swap(values, before);
        let rows = values.chunks_exact_mut(width).zip(before.chunks_exact(width));
        let rows = rows.zip(hidden.chunks_exact_mut(dim)).take(n_rows);
        rows::for_each(&self.compute.pool, rows, |((predicted, before), hidden)| {
            let gates = self.stream_gates(weights, &before[spec.active * dim..][..dim], hidden);
            predicted.copy_from_slice(before);
            let shares = weights.predict.chunks_exact(spec.count * spec.count);
            for (predicted, shares) in predicted.chunks_exact_mut(dim).zip(shares) {
                for (before, share) in before.chunks_exact(dim).zip(shares.chunks_exact(spec.count)) {
                    add_scaled(predicted, weighted(share, &gates), before);
                }
            }
            hidden.copy_from_slice(&predicted[spec.active * dim..][..dim]);
        });
    }

    /// Adds the mixer's input and a low-rank projection of it to the first `n_rows` rows of
    /// `buffers.hidden`, which the mixer has updated, and divides the sum by the square root of 2.
    pub(super) fn add_side_branch(
        &self,
        (spec, weights): (ResidualStreams, &LayerStreamWeights),
        buffers: &mut Buffers,
        n_rows: usize,
    ) {
        let Layer { config, compute, .. } = self;
        let (dim, width) = (config.model_dim, config.streams_dim());
        let Buffers { hidden, normed, gated, update, unnormed, streams, .. } = buffers;
        let update = &mut update[..n_rows * dim];
        let rows = update.chunks_exact_mut(dim).zip(streams.values.chunks_exact(width));
        rows::for_each(&compute.pool, rows, |(input, streams)| {
            input.copy_from_slice(&streams[spec.active * dim..][..dim]);
        });
        let (down, up) = (&weights.low_rank_down, &weights.low_rank_up);
        let norm = (self.weights.attention_norm.as_deref(), self.weights.attention_norm_bias.as_deref());
        normalize_biased(compute, config, update, norm, normed, n_rows, read_q8([down]));
        let low = gated.resize(n_rows, down.weights.rows());
        project(compute, normed, &mut [MatmulJob { weights: &down.weights, out: &mut *low }]);
        add_bias(compute, low, down.bias.as_deref());
        project(compute, gated, &mut [MatmulJob { weights: &up.weights, out: &mut *update }]);
        add_bias(compute, update, up.bias.as_deref());
        self.norm_in_place(update, dim, Some(&weights.low_rank_norm), unnormed);
        let rows = hidden.chunks_exact_mut(dim).zip(normed.values().chunks_exact(dim));
        rows::for_each(&compute.pool, rows.zip(update.chunks_exact(dim)), |((hidden, input), low)| {
            for ((value, input), low) in hidden.iter_mut().zip(input).zip(low) {
                *value = (*value + (input + low)) * FRAC_1_SQRT_2;
            }
        });
    }

    /// Corrects the predictions of the first `n_rows` rows by the difference between the active
    /// stream that the layer has computed in `buffers.hidden` and its prediction. Behind it,
    /// `buffers.hidden` has the corrected active stream times its factors.
    pub(super) fn correct_streams(
        &self,
        (spec, weights): (ResidualStreams, &LayerStreamWeights),
        buffers: &mut Buffers,
        n_rows: usize,
    ) {
        let (dim, width) = (self.config.model_dim, self.config.streams_dim());
        let Buffers { hidden, update, streams, .. } = buffers;
        let rows = streams.values.chunks_exact_mut(width).zip(hidden.chunks_exact_mut(dim));
        let rows = rows.zip(update.chunks_exact_mut(dim)).take(n_rows);
        rows::for_each(&self.compute.pool, rows, |((streams, hidden), difference)| {
            let gates = self.stream_gates(weights, hidden, difference);
            let active = spec.active * dim..(spec.active + 1) * dim;
            let computed = hidden.iter().zip(&streams[active.clone()]);
            for (difference, (value, predicted)) in difference.iter_mut().zip(computed) {
                *difference = value - predicted;
            }
            let shares = weights.correct.chunks_exact(spec.count);
            for (stream, share) in streams.chunks_exact_mut(dim).zip(shares) {
                add_scaled(stream, weighted(share, &gates) + 1.0, difference);
            }
            let factors = streams[active].iter().zip(&weights.correct_scale);
            for (value, (corrected, factor)) in hidden.iter_mut().zip(factors) {
                *value = corrected * factor;
            }
        });
    }

    /// Adds `update`, `[rows, model_dim]`, to all streams but the first.
    pub(super) fn add_to_streams(&self, streams: &mut StreamBuffers, update: &[f32]) {
        let (dim, width) = (self.config.model_dim, self.config.streams_dim());
        let rows = streams.values.chunks_exact_mut(width).zip(update.chunks_exact(dim));
        rows::for_each(&self.compute.pool, rows, |(streams, update)| {
            for stream in streams.chunks_exact_mut(dim).skip(1) {
                self.compute.kernels.add_assign(stream, update);
            }
        });
    }

    /// Gates of the streams by one of them; `scratch` is overwritten.
    fn stream_gates(
        &self,
        weights: &LayerStreamWeights,
        stream: &[f32],
        scratch: &mut [f32],
    ) -> [f32; MAX_STREAMS] {
        self.compute.rms_norm(stream, &weights.router_norm, self.config.norm_eps, scratch);
        let mut gates = [0.0; MAX_STREAMS];
        for (gate, direction) in gates.iter_mut().zip(weights.router.chunks_exact(stream.len())) {
            *gate = tanh(self.compute.kernels.dot(direction, scratch));
        }
        gates
    }
}

/// True if a product reads 8-bit activations.
fn any_q8(projections: &[PackedMatrix]) -> bool {
    projections.iter().any(|projection| projection.format().uses_q8())
}

/// Scales `row` to the magnitude of `like`.
fn match_magnitude(compute: &Compute, row: &mut [f32], like: &[f32]) {
    let mean_square = |row: &[f32]| compute.kernels.dot(row, row) / row.len() as f32;
    let factor = (mean_square(like) / mean_square(row).max(LEAST_MEAN_SQUARE)).sqrt();
    row.iter_mut().for_each(|value| *value *= factor);
}

/// Sum of the gates, weighted; there may be more gates than weights.
fn weighted(weights: &[f32], gates: &[f32]) -> f32 {
    weights.iter().zip(gates).fold(0.0, |sum, (weight, gate)| sum + weight * gate)
}

fn add_scaled(row: &mut [f32], scale: f32, other: &[f32]) {
    row.iter_mut().zip(other).for_each(|(value, other)| *value += scale * other);
}

/// `1 - 2 / (e^2x + 1)` in f64, so that what is left after rounding does not depend on the
/// machine's library.
fn tanh(x: f32) -> f32 {
    (1.0 - 2.0 / ((2.0 * f64::from(x)).exp() + 1.0)) as f32
}
