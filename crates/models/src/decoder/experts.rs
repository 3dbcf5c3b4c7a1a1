//! Mixture of experts of a layer: rows are sorted by expert, multiplied by the matrices of all
//! experts in a dispatch per projection, and added to their tokens.
//!
//! A token's result depends on the token alone: products have the bits of each row by itself, and
//! the outputs of its experts are added in ascending order of expert.

use std::sync::atomic::{AtomicUsize, Ordering};

use ruvllm_kernels::matmul::{Activations, GroupedJob, MatmulJob};

use super::layer::{Layer, activate, normalize};
use super::router::{Choice, Routing, sigmoid};
use super::sorted::{ExpertBuffers, SortedRow};
use crate::batch::{Span, count};
use crate::error::{Error, Result};
use crate::family::Experts;
use crate::importance::{ExpertProduct, InputSquares};
use crate::projection::{add_bias, project};
use crate::rows;
use crate::weights::{BesideWeights, ExpertLinears, ExpertWeights};
use crate::workspace::{Buffers, resize};

/// Sizes the buffers for `n_tokens` rows.
pub(super) fn prepare(
    buffers: &mut ExpertBuffers,
    experts: &Experts,
    n_tokens: usize,
    model_dim: usize,
) -> Result<()> {
    let n_rows = n_tokens.saturating_mul(experts.used);
    resize(&mut buffers.logits, n_tokens.saturating_mul(experts.count), "the router")?;
    resize(&mut buffers.selection, n_tokens.saturating_mul(experts.count), "the router")?;
    resize(&mut buffers.up, n_rows.saturating_mul(experts.ffn_dim), "the experts")?;
    resize(&mut buffers.down, n_rows.saturating_mul(model_dim), "the experts")?;
    if experts.is_beside {
        resize(&mut buffers.beside, n_tokens.saturating_mul(model_dim), "the experts")?;
    }
    buffers.choices.resize(n_rows, Choice::default());
    buffers.sorted.resize(n_rows, SortedRow::default());
    Ok(())
}

impl Layer<'_> {
    /// Adds the outputs of the experts of the rows in `buffers.normed`, which are those of
    /// `wanted`, to `buffers.update`. What is there, the output of the shared experts, is
    /// multiplied by their gate before.
    ///
    /// # Errors
    /// [`Error::RouterLogits`] for a token whose logits are not finite.
    pub(super) fn add_experts(
        &self,
        (spec, weights): (&Experts, &ExpertWeights),
        buffers: &mut Buffers,
        wanted: &[Span],
    ) -> Result<()> {
        let dim = self.config.model_dim;
        let Buffers { normed, update, experts: scratch, adapted, .. } = buffers;
        let n_tokens = normed.tokens();
        let update = &mut update[..n_tokens * dim];
        if let Some(direction) = &weights.shared_gate {
            self.gate_shared(direction, normed.values(), update);
        }
        self.route((spec, weights), normed, scratch, wanted)?;
        self.mix((spec, weights), normed, scratch, adapted.squares.as_mut(), update);
        Ok(())
    }

    /// Norms the output of the network in `buffers.update`, and adds that of the experts of the
    /// residual stream's first rows, which are those of `wanted`, normed too.
    ///
    /// # Errors
    /// As [`add_experts`](Self::add_experts).
    pub(super) fn add_experts_beside(
        &self,
        (spec, weights): (&Experts, &ExpertWeights),
        beside: &BesideWeights,
        buffers: &mut Buffers,
        wanted: &[Span],
    ) -> Result<()> {
        let Self { config, compute, .. } = self;
        let (dim, n_tokens) = (config.model_dim, count(wanted));
        let Buffers { hidden, normed, update, unnormed, experts: scratch, adapted, .. } = buffers;
        let update = &mut update[..n_tokens * dim];
        self.norm_in_place(update, dim, Some(&beside.network_norm), unnormed);
        normalize(compute, config, hidden, Some(&beside.router_norm), normed, n_tokens, false);
        self.route((spec, weights), normed, scratch, wanted)?;
        if let Some(scales) = &beside.scales {
            for choice in &mut scratch.choices[..n_tokens * spec.used] {
                choice.weight *= scales[choice.expert as usize];
            }
        }
        normalize(compute, config, hidden, Some(&beside.input_norm), normed, n_tokens, false);
        let mut outputs = std::mem::take(&mut scratch.beside);
        let rows = &mut outputs[..n_tokens * dim];
        rows.fill(0.0);
        self.mix((spec, weights), normed, scratch, adapted.squares.as_mut(), rows);
        self.norm_in_place(rows, dim, Some(&beside.output_norm), unnormed);
        compute.kernels.add_assign(update, rows);
        scratch.beside = outputs;
        Ok(())
    }

    /// Adds the outputs of the chosen experts of the rows of `normed` to `update`.
    fn mix(
        &self,
        (spec, weights): (&Experts, &ExpertWeights),
        normed: &Activations,
        scratch: &mut ExpertBuffers,
        squares: Option<&mut InputSquares>,
        update: &mut [f32],
    ) {
        let (dim, n_tokens) = (self.config.model_dim, normed.tokens());
        scratch.sort(&self.compute.kernels, spec, n_tokens);
        let chosen = &scratch.sorted[..n_tokens * spec.used];
        weights.read_ahead(chosen.iter().map(|row| row.expert as usize));
        self.compute_experts((spec, weights), normed.values(), scratch, squares);

        let ExpertBuffers { choices, down, .. } = &*scratch;
        let choices = choices[..n_tokens * spec.used].chunks_exact(spec.used);
        rows::for_each(&self.compute.pool, update.chunks_exact_mut(dim).zip(choices), |(out, choices)| {
            for choice in choices {
                let row = &down[choice.row as usize * dim..][..dim];
                out.iter_mut().zip(row).for_each(|(out, &value)| *out += choice.weight * value);
            }
        });
    }

    /// Multiplies the output of the shared experts by the sigmoid of `direction` times the input.
    fn gate_shared(&self, direction: &[f32], inputs: &[f32], update: &mut [f32]) {
        let dim = direction.len();
        let rows = update.chunks_exact_mut(dim).zip(inputs.chunks_exact(dim));
        rows::for_each(&self.compute.pool, rows, |(out, input)| {
            let gate = sigmoid(self.compute.kernels.dot(direction, input));
            out.iter_mut().for_each(|value| *value *= gate);
        });
    }

    /// Chooses the experts of each token.
    fn route(
        &self,
        (spec, weights): (&Experts, &ExpertWeights),
        normed: &mut Activations,
        scratch: &mut ExpertBuffers,
        wanted: &[Span],
    ) -> Result<()> {
        let n_tokens = normed.tokens();
        let logits = &mut scratch.logits[..n_tokens * spec.count];
        let router = &weights.router;
        project(self.compute, normed, &mut [MatmulJob { weights: &router.weights, out: &mut *logits }]);
        add_bias(self.compute, logits, router.bias.as_deref());
        let routing = Routing { router: &spec.router, bias: weights.selection_bias.as_deref() };
        let logits = logits.chunks_exact_mut(spec.count);
        let selection = scratch.selection.chunks_exact_mut(spec.count);
        let choices = scratch.choices.chunks_exact_mut(spec.used);
        let first_bad = AtomicUsize::new(usize::MAX);
        let rows = logits.zip(selection).zip(choices).enumerate();
        rows::for_each(&self.compute.pool, rows, |(row, ((logits, selection), choices))| {
            if !routing.choose(&self.compute.kernels, logits, selection, choices) {
                first_bad.fetch_min(row, Ordering::Relaxed);
            }
        });
        let mut row = first_bad.into_inner();
        if row == usize::MAX {
            return Ok(());
        }
        // Rows are those of the spans, one behind the other.
        for span in wanted {
            if row < span.len {
                let (segment, position) = (span.segment, span.position + row);
                return Err(Error::RouterLogits { layer: self.index, segment, position });
            }
            row -= span.len;
        }
        Ok(())
    }

    /// The networks of all experts, for the sorted rows of `inputs`, `[tokens, model_dim]`; adds to
    /// `squares` the inputs of the products.
    fn compute_experts(
        &self,
        (spec, weights): (&Experts, &ExpertWeights),
        inputs: &[f32],
        scratch: &mut ExpertBuffers,
        mut squares: Option<&mut InputSquares>,
    ) {
        let mut observe = |product: ExpertProduct, input: &Activations, sorted: &[SortedRow]| {
            if let Some(squares) = &mut squares {
                let experts = sorted.iter().map(|row| row.expert as usize);
                squares.add_experts((self.index, product), spec.count, input, experts);
            }
        };
        let (kernels, pool) = (&self.compute.kernels, &self.compute.pool);
        let (dim, width) = (self.config.model_dim, spec.ffn_dim);
        let ExpertBuffers { sorted, groups, input, gated, up, down, .. } = scratch;
        let n_rows = groups.rows();
        let sorted = &sorted[..n_rows];
        let (up, down) = (&mut up[..n_rows * width], &mut down[..n_rows * dim]);

        input.resize(n_rows, dim);
        input.update(pool, &|rows, out| {
            for (origin, out) in sorted[rows].iter().zip(out.chunks_exact_mut(dim)) {
                out.copy_from_slice(&inputs[origin.token as usize * dim..][..dim]);
                if spec.weighs_inputs {
                    out.iter_mut().for_each(|value| *value *= origin.input_scale);
                }
            }
        });
        observe(ExpertProduct::Input, input, sorted);
        if weights.up.uses_q8() || weights.gate.as_ref().is_some_and(ExpertLinears::uses_q8) {
            input.quantize_groups(kernels, pool, groups);
        }
        let gate = gated.resize(n_rows, width);
        if let Some(linears) = &weights.gate {
            let mut jobs = [
                GroupedJob { weights: &linears.weights, out: &mut *gate },
                GroupedJob { weights: &weights.up.weights, out: &mut *up },
            ];
            kernels.matmul_grouped(pool, input, groups, &mut jobs);
            self.add_expert_bias(linears, sorted, gate);
            self.add_expert_bias(&weights.up, sorted, up);
        } else {
            let mut jobs = [GroupedJob { weights: &weights.up.weights, out: &mut *gate }];
            kernels.matmul_grouped(pool, input, groups, &mut jobs);
            self.add_expert_bias(&weights.up, sorted, gate);
        }
        let up = &*up;
        gated.update(pool, &|rows, gate| {
            let up = &up[rows.start * width..rows.end * width];
            activate(self.compute, spec.activation, gate, up);
        });
        observe(ExpertProduct::Output, gated, sorted);
        if weights.down.uses_q8() {
            gated.quantize_groups(kernels, pool, groups);
        }
        let mut jobs = [GroupedJob { weights: &weights.down.weights, out: &mut *down }];
        kernels.matmul_grouped(pool, gated, groups, &mut jobs);
        self.add_expert_bias(&weights.down, sorted, down);
    }

    /// Adds to each row the bias of its expert, if there are biases.
    fn add_expert_bias(&self, linears: &ExpertLinears, sorted: &[SortedRow], rows: &mut [f32]) {
        if linears.bias.is_none() || sorted.is_empty() {
            return;
        }
        let width = rows.len() / sorted.len();
        let rows = rows.chunks_exact_mut(width).zip(sorted);
        rows::for_each(&self.compute.pool, rows, |(row, origin)| {
            if let Some(bias) = linears.bias_of(origin.expert as usize) {
                self.compute.kernels.add_assign(row, bias);
            }
        });
    }
}
