//! End of a pass: the final norm, and the product that makes the logits.

use ruvllm_adapters::Site;
use ruvllm_kernels::quant::PackedMatrix;

use super::adapt::{Product, adapt_in_place, project_adapted};
use super::layer::normalize_biased;
use crate::batch::{BatchRows, Segment, Span};
use crate::compute::Compute;
use crate::config::ModelConfig;
use crate::rows;
use crate::workspace::{Buffers, Workspace};

/// Norm and output matrix behind the last layer.
pub(super) struct Ending<'a> {
    pub(super) config: &'a ModelConfig,
    /// Weights and bias of the norm, `[model_dim]`.
    pub(super) norm: (&'a [f32], Option<&'a [f32]>),
    /// `[vocab_size, model_dim]`, and its bias.
    pub(super) output: (&'a PackedMatrix, Option<&'a [f32]>),
}

impl Ending<'_> {
    /// Final norm of the wanted rows, which are the first, with the updates of adapters; quantized
    /// with `q8`.
    pub(super) fn hidden(
        &self,
        compute: &Compute,
        (segments, batch): (&[Segment<'_>], &BatchRows),
        buffers: &mut Buffers,
        q8: bool,
    ) {
        let Buffers { hidden, normed, update, adapted, .. } = buffers;
        let (weight, bias) = self.norm;
        normalize_biased(compute, self.config, hidden, (Some(weight), bias), normed, batch.n_wanted(), q8);
        let rows = (segments, self.last_rows(&batch.wanted, &batch.front));
        adapt_in_place(compute, adapted, rows, (0, Site::FinalHidden), normed, update);
    }

    /// Final hidden states and logits of a pass, in the buffers that
    /// [`prepare_results`](Workspace::prepare_results) has sized.
    pub(super) fn finish(&self, compute: &Compute, segments: &[Segment<'_>], workspace: &mut Workspace) {
        let Workspace { batch, buffers, logits, hidden } = workspace;
        if batch.wanted.is_empty() {
            return;
        }
        let (weights, bias) = self.output;
        let q8 = batch.scores_all() && weights.format().uses_q8();
        self.hidden(compute, (segments, batch), buffers, q8);
        let Buffers { normed, adapted, .. } = buffers;
        if batch.keeps_hidden {
            hidden.copy_from_slice(normed.values());
        }
        if !batch.scores_all() {
            let width = self.config.model_dim;
            let mut rows = normed.resize(batch.n_scored(), width);
            for span in &batch.scored_front {
                let scored = &hidden[span.range(width)];
                let (taken, rest) = rows.split_at_mut(scored.len());
                taken.copy_from_slice(scored);
                rows = rest;
            }
        }
        if batch.scored.is_empty() {
            return;
        }
        let products = [Product { weights, bias, out: &mut *logits }];
        let rows = (segments, self.last_rows(&batch.scored, &batch.scored_front));
        project_adapted(compute, adapted, rows, (0, Site::Logits), normed, products);
        if let Some(cap) = self.config.decoder.logits_soft_cap {
            soft_cap(compute, logits, cap);
        }
    }

    /// Rows as the last layer knows them: where they are in the batch, or at the front.
    fn last_rows<'b>(&self, rows: &'b [Span], front: &'b [Span]) -> &'b [Span] {
        if self.config.last_writer() + 1 == self.config.n_layers { rows } else { front }
    }
}

/// `cap * tanh(x / cap)` of each value. In f64, so that what is left after rounding does not depend
/// on the machine's library.
fn soft_cap(compute: &Compute, values: &mut [f32], cap: f32) {
    /// Values that a thread takes at once.
    const RUN: usize = 4096;
    let cap = f64::from(cap);
    rows::for_each(&compute.pool, values.chunks_mut(RUN), |run| {
        for value in run {
            // tanh(y) = 1 - 2 / (e^2y + 1), with an absolute error of 1e-16.
            *value = (cap - 2.0 * cap / ((2.0 * f64::from(*value) / cap).exp() + 1.0)) as f32;
        }
    });
}
