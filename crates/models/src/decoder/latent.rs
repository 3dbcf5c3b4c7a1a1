//! Latent attention: queries in the space of the cached latents, attention over one key head, and
//! the way back to the values of each head.
//!
//! A cached key is the rotated key, `[rotary_dim]`, then the latent, `[rank]`, and it is the value
//! too: what attention finds in the place of the former is not read. One path serves prompts and
//! single tokens, so that the bits of a token do not depend on how a text is cut (ADR-0121).

use ruvllm_adapters::Site;
use ruvllm_kernels::matmul::{GroupedJob, MatmulJob};
use ruvllm_kernels::quant::PackedMatrix;

use super::adapt::{Product, project_adapted};
use super::latent_buffers::{HeadBuffers, LatentBuffers};
use super::layer::{Layer, Stream, normalize, read_q8};
use crate::batch::{Segment, Span};
use crate::compute::Compute;
use crate::config::ModelConfig;
use crate::error::Result;
use crate::family::LatentAttention;
use crate::projection::{add_bias, finish, project};
use crate::rows;
use crate::weights::LatentWeights;
use crate::workspace::{Buffers, resize};

/// Sizes the buffers for `n_tokens` rows.
pub(super) fn prepare(buffers: &mut LatentBuffers, config: &ModelConfig, n_tokens: usize) -> Result<()> {
    const WHAT: &str = "latent attention";
    let Some(latent) = &config.decoder.latent else { return Ok(()) };
    let rows = |width: usize| n_tokens.saturating_mul(width);
    let of_heads = latent.rank.max(latent.value_dim).saturating_mul(config.n_heads);
    resize(&mut buffers.query_latents, rows(latent.query_rank.unwrap_or(0)), WHAT)?;
    resize(&mut buffers.queries, rows(config.n_heads * latent.query_dim()), WHAT)?;
    resize(&mut buffers.latents, rows(latent.rank + latent.rotary_dim), WHAT)?;
    resize(&mut buffers.heads.outputs, rows(of_heads), WHAT)
}

impl Layer<'_> {
    /// Latent attention of the rows in `wanted`, added to them at the front; returns their number.
    pub(super) fn latent_attention(
        &self,
        weights: &LatentWeights,
        buffers: &mut Buffers,
        segments: &mut [Segment<'_>],
        (all, wanted): (&[Span], &[Span]),
    ) -> usize {
        let latent = self.config.decoder.latent.as_ref().expect("weights of latent attention");
        self.project_latents(weights, latent, buffers, segments, all);
        let n_all = all.iter().map(|span| span.len).sum();
        self.absorb_queries(weights, latent, buffers, n_all);
        let Buffers { queries, keys, values, .. } = buffers;
        self.place(queries, keys, values, segments, all);
        self.cache_rows(buffers, segments, all);
        if wanted.is_empty() {
            return 0;
        }
        let n_rows = self.keep_wanted(buffers, wanted);
        self.attend(None, buffers, segments, wanted, n_rows);
        self.project_values(weights, latent, buffers, n_rows);
        let Buffers { hidden, latent, update, unnormed, adapted, .. } = buffers;
        let stream = Stream { hidden, update, unnormed, adapted };
        self.add_mixed(&weights.output, &mut latent.values, stream, (segments, wanted));
        n_rows
    }

    /// Queries of all heads, and keys of all rows; nothing is rotated yet.
    fn project_latents(
        &self,
        weights: &LatentWeights,
        latent: &LatentAttention,
        buffers: &mut Buffers,
        segments: &[Segment<'_>],
        all: &[Span],
    ) {
        let Layer { config, compute, .. } = self;
        let n_rows = all.iter().map(|span| span.len).sum::<usize>();
        let Buffers { hidden, normed, keys, latent: own, adapted, .. } = buffers;
        let LatentBuffers { query_latents, normed_latents, queries, latents, .. } = own;
        let first = weights.query_latent.as_ref().map_or(&weights.query, |(down, _)| down);
        let q8 = read_q8([first, &weights.latent]);
        normalize(compute, config, hidden, self.weights.attention_norm.as_deref(), normed, n_rows, q8);
        adapted.gates.compute(compute, (segments, all), self.index, normed.values());
        let queries = &mut queries[..n_rows * config.n_heads * latent.query_dim()];
        let query_rank = latent.query_rank.unwrap_or(0);
        let of_first =
            if query_rank == 0 { &mut *queries } else { &mut query_latents[..n_rows * query_rank] };
        let cached_dim = latent.rank + latent.rotary_dim;
        let latents = &mut latents[..n_rows * cached_dim];
        let products = [Product::of(first, of_first), Product::of(&weights.latent, &mut *latents)];
        let site = (self.index, Site::AttentionInput);
        project_adapted(compute, adapted, (segments, all), site, normed, products);
        if let Some((_, norm)) = &weights.query_latent {
            normed_latents.resize(n_rows, query_rank);
            finish(compute, normed_latents, read_q8([&weights.query]), &|rows, normed| {
                let raw = &query_latents[rows.start * query_rank..rows.end * query_rank];
                compute.rms_norm(raw, norm, config.norm_eps, normed);
            });
            let job = MatmulJob { weights: &weights.query.weights, out: &mut *queries };
            project(compute, normed_latents, &mut [job]);
            add_bias(compute, queries, weights.query.bias.as_deref());
        }
        let rows = latents.chunks_exact(cached_dim).zip(keys.chunks_exact_mut(cached_dim));
        rows::for_each(&compute.pool, rows, |(row, key)| {
            let (latent, rotated) = row.split_at(latent.rank);
            let (key_rotated, key_latent) = key.split_at_mut(rotated.len());
            key_rotated.copy_from_slice(rotated);
            compute.rms_norm(latent, &weights.latent_norm, config.norm_eps, key_latent);
        });
    }

    /// Brings the queries of all heads into the space of the latent, `[rotary_dim + rank]` each.
    fn absorb_queries(
        &self,
        weights: &LatentWeights,
        latent: &LatentAttention,
        buffers: &mut Buffers,
        n_rows: usize,
    ) {
        let Layer { config, compute, .. } = self;
        let LatentAttention { rank, still_dim, rotary_dim, .. } = *latent;
        let Buffers { queries: absorbed, latent: LatentBuffers { queries, heads, .. }, .. } = buffers;
        let queries = &queries[..n_rows * config.n_heads * latent.query_dim()];
        let query = |head: usize, token: usize| {
            &queries[(token * config.n_heads + head) * latent.query_dim()..][..latent.query_dim()]
        };
        let still = |head: usize, token: usize| &query(head, token)[..still_dim];
        let outputs = heads.multiply(compute, &weights.keys, (n_rows, still_dim, rank), &still);
        let rows = absorbed.chunks_exact_mut(rotary_dim + rank).take(n_rows * config.n_heads).enumerate();
        rows::for_each(&compute.pool, rows, |(row, absorbed)| {
            let (token, head) = (row / config.n_heads, row % config.n_heads);
            absorbed[..rotary_dim].copy_from_slice(&query(head, token)[still_dim..]);
            absorbed[rotary_dim..].copy_from_slice(&outputs[(head * n_rows + token) * rank..][..rank]);
        });
    }

    /// Brings what attention found from the space of the latent to the values of each head.
    fn project_values(
        &self,
        weights: &LatentWeights,
        latent: &LatentAttention,
        buffers: &mut Buffers,
        n_rows: usize,
    ) {
        let Layer { config, compute, .. } = self;
        let LatentAttention { rank, rotary_dim, value_dim, .. } = *latent;
        let Buffers { attended, latent: LatentBuffers { heads, values, .. }, .. } = buffers;
        let attended = attended.values();
        let found = |head: usize, token: usize| {
            let row = &attended[(token * config.n_heads + head) * config.head_dim..][..config.head_dim];
            &row[rotary_dim..]
        };
        let outputs = heads.multiply(compute, &weights.values, (n_rows, rank, value_dim), &found);
        let width = config.n_heads * value_dim;
        values.resize(n_rows, width);
        finish(compute, values, read_q8([&weights.output]), &|rows, out| {
            for (token, row) in rows.zip(out.chunks_exact_mut(width)) {
                for (head, value) in row.chunks_exact_mut(value_dim).enumerate() {
                    value.copy_from_slice(&outputs[(head * n_rows + token) * value_dim..][..value_dim]);
                }
            }
        });
    }
}

impl HeadBuffers {
    /// Products of each head's rows, of which `input` gives that of a head and a token, with the
    /// matrix of the head: `[n_heads, n_rows, outputs]`. `sizes` are rows, inputs and outputs.
    fn multiply<'a>(
        &mut self,
        compute: &Compute,
        matrices: &[PackedMatrix],
        (n_rows, n_inputs, n_outputs): (usize, usize, usize),
        input: &(dyn Fn(usize, usize) -> &'a [f32] + Sync),
    ) -> &[f32] {
        let Compute { kernels, pool, .. } = compute;
        let Self { groups, inputs, outputs } = self;
        groups.fill(kernels, std::iter::repeat_n(n_rows, matrices.len()));
        inputs.resize(n_rows * matrices.len(), n_inputs);
        inputs.update(pool, &|rows, out| {
            for (row, out) in rows.zip(out.chunks_exact_mut(n_inputs)) {
                out.copy_from_slice(input(row / n_rows, row % n_rows));
            }
        });
        if matrices.iter().any(|matrix| matrix.format().uses_q8()) {
            inputs.quantize_groups(kernels, pool, groups);
        }
        let outputs = &mut outputs[..n_rows * matrices.len() * n_outputs];
        let mut jobs = [GroupedJob { weights: matrices, out: &mut *outputs }];
        kernels.matmul_grouped(pool, inputs, groups, &mut jobs);
        outputs
    }
}
