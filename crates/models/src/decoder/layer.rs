//! One transformer layer: attention over the cache, then the gated feed-forward network, each
//! behind a norm and added to the residual stream. The family's switches are read here.

use std::ops::Range;

use ruvllm_adapters::{LowRank, Site};
use ruvllm_kernels::attention::{AttentionShape, Mask};
use ruvllm_kernels::matmul::{Activations, MatmulJob};
use ruvllm_kernels::rope::RopeTable;
use ruvllm_kv_cache::Sequence;

use super::adapt::{adapt, runs};
use super::rope::{FIRST_POSITIONS, RopeTables};
use crate::batch::{Segment, Span};
use crate::compute::Compute;
use crate::config::ModelConfig;
use crate::family::Activation;
use crate::projection::{add_bias, finish, needs_q8, project};
use crate::rows;
use crate::weights::{LayerWeights, Linear};
use crate::workspace::{Adapted, Buffers};

/// One layer with its configuration and compute resources.
pub(super) struct Layer<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) weights: &'a LayerWeights,
    pub(super) index: usize,
    pub(super) ropes: &'a RopeTables,
    pub(super) compute: &'a Compute,
}

/// Residual stream, `[tokens, model_dim]`, and scratch for its updates.
struct Stream<'a> {
    hidden: &'a mut [f32],
    update: &'a mut [f32],
    unnormed: &'a mut [f32],
    adapted: &'a mut Adapted,
}

impl Layer<'_> {
    /// Replaces the rows of `buffers.hidden` by the layer's output.
    ///
    /// Keys and values of the tokens in `all` go to the caches, which may want to see the queries;
    /// these are followed further only for those in `wanted`, whose rows are moved to the front.
    pub(super) fn forward(
        &self,
        buffers: &mut Buffers,
        segments: &mut [Segment<'_>],
        all: &[Span],
        wanted: &[Span],
    ) {
        self.project_attention(buffers, segments, all);
        self.keep_queries(buffers, all);
        for (segment, &span) in segments.iter_mut().zip(all) {
            let range = span.range(self.config.kv_dim());
            let (keys, values) = (&buffers.keys[range.clone()], &buffers.values[range]);
            segment.step.write(&self.compute.kernels, self.index, keys, values);
            if segment.step.sequence().wants_queries(self.index) {
                self.record_queries(buffers, segment, span);
            }
        }
        if wanted.is_empty() {
            return;
        }
        keep_rows(&mut buffers.queries, self.config.query_dim(), wanted);
        let n_rows = keep_rows(&mut buffers.hidden, self.config.model_dim, wanted);
        self.attend(buffers, segments, wanted, n_rows);
        self.feed_forward(buffers, segments, wanted, n_rows);
    }

    /// Queries, keys and values of all rows, with RoPE, and Hadamard-rotated where a cache wants
    /// that.
    fn project_attention(&self, buffers: &mut Buffers, segments: &[Segment<'_>], all: &[Span]) {
        let Layer { config, weights, compute, .. } = self;
        let n_rows = all.iter().map(|span| span.len).sum();
        let Buffers { hidden, normed, queries, keys, values, unnormed, adapted, .. } = buffers;
        let mut jobs = [
            MatmulJob { weights: &weights.query.weights, out: &mut queries[..n_rows * config.query_dim()] },
            MatmulJob { weights: &weights.key.weights, out: &mut keys[..n_rows * config.kv_dim()] },
            MatmulJob { weights: &weights.value.weights, out: &mut values[..n_rows * config.kv_dim()] },
        ];
        project_norm(compute, config, hidden, &weights.attention_norm, normed, n_rows, &mut jobs);
        add_bias(compute, queries, weights.query.bias.as_deref());
        add_bias(compute, keys, weights.key.bias.as_deref());
        add_bias(compute, values, weights.value.bias.as_deref());
        let site = runs(segments, all, (self.index, Site::AttentionInput));
        adapt(compute, adapted, site, normed, &mut [queries, keys, values]);
        self.norm_in_place(queries, config.query_dim(), weights.query_norm.as_deref(), unnormed);
        self.norm_in_place(keys, config.kv_dim(), weights.key_norm.as_deref(), unnormed);
        for &span in all {
            let cache = segments[span.segment].step.sequence();
            let rope = self.rope(cache);
            self.apply_rope(queries, config.n_heads, span, rope);
            self.scale_queries(queries, span);
            self.apply_rope(keys, config.n_kv_heads, span, rope);
            if cache.store().rotated() {
                self.hadamard_rotate(&mut queries[span.range(config.query_dim())]);
                self.hadamard_rotate(&mut keys[span.range(config.kv_dim())]);
                self.hadamard_rotate(&mut values[span.range(config.kv_dim())]);
            }
        }
    }

    /// Keeps the query of the last token of each segment that is probed in this layer.
    fn keep_queries(&self, buffers: &mut Buffers, all: &[Span]) {
        let Buffers { queries, kept, .. } = buffers;
        let width = self.config.query_dim();
        let slots = kept.layers.iter().zip(kept.queries.chunks_exact_mut(width));
        for ((layer, slot), span) in slots.zip(all) {
            if *layer == Some(self.index) {
                slot.copy_from_slice(&queries[span.range(width)][(span.len - 1) * width..]);
            }
        }
    }

    /// RoPE table of this layer for a sequence.
    fn rope(&self, cache: &Sequence) -> &RopeTable {
        let windowed = self.config.decoder.window.of_layer(self.index).is_some();
        self.ropes.of(windowed, cache.capacity())
    }

    /// Normalizes each run of `weight.len()` values in rows of `width` values; without weights,
    /// nothing.
    fn norm_in_place(&self, rows: &mut [f32], width: usize, weight: Option<&[f32]>, unnormed: &mut [f32]) {
        let Layer { config, compute, .. } = self;
        let Some(weight) = weight else { return };
        let rows = rows.chunks_exact_mut(width).zip(unnormed.chunks_exact_mut(width));
        rows::for_each(&compute.pool, rows, |(row, unnormed)| {
            unnormed.copy_from_slice(row);
            compute.kernels.rms_norm(unnormed, weight, config.norm_eps, row);
        });
    }

    /// Applies RoPE to the heads of the span's rows at their positions.
    fn apply_rope(&self, heads: &mut [f32], n_heads: usize, span: Span, rope: &RopeTable) {
        let Layer { config, compute, .. } = self;
        let width = n_heads * config.head_dim;
        let rows = heads[span.range(width)].chunks_exact_mut(width).enumerate();
        rows::for_each(&compute.pool, rows, |(index, row)| {
            let position = span.position + index;
            let layout = config.decoder.rope_layout;
            compute.kernels.rope(rope, layout, position..position + 1, row, n_heads, config.head_dim);
        });
    }

    /// Applies the position-dependent attention temperature.
    fn scale_queries(&self, queries: &mut [f32], span: Span) {
        let Some(temperature) = &self.config.decoder.attention_temperature else { return };
        let width = self.config.query_dim();
        for (index, row) in queries[span.range(width)].chunks_exact_mut(width).enumerate() {
            let factor = temperature.factor(span.position + index);
            row.iter_mut().for_each(|x| *x *= factor);
        }
    }

    /// Passes the span's queries, each rotated (RoPE) to a later position, to the cache: SQuat
    /// weights key errors by them (ADR-0015).
    pub(super) fn record_queries(&self, buffers: &mut Buffers, segment: &mut Segment<'_>, span: Span) {
        let Layer { config, compute, .. } = self;
        let Compute { kernels, pool } = compute;
        let (width, layout) = (config.query_dim(), config.decoder.rope_layout);
        let rope = self.rope(segment.step.sequence());
        let Buffers { queries, later_queries, .. } = buffers;
        later_queries.clear();
        later_queries.extend_from_slice(&queries[span.range(width)]);
        rows::for_each(pool, later_queries.chunks_exact_mut(width).enumerate(), |(index, row)| {
            let distance = spaced(span.position + index, FIRST_POSITIONS);
            kernels.rope(rope, layout, distance..distance + 1, row, config.n_heads, config.head_dim);
        });
        segment.step.observe_queries(kernels, pool, self.index, config.n_heads, later_queries);
    }

    /// Applies the Walsh-Hadamard transform to each head, so that quantization error spreads over
    /// all dimensions. It is its own inverse and keeps dot products.
    fn hadamard_rotate(&self, heads: &mut [f32]) {
        let Layer { config, compute, .. } = self;
        rows::for_each(&compute.pool, heads.chunks_exact_mut(config.head_dim), |head| {
            compute.kernels.hadamard(head, config.head_dim);
        });
    }

    /// Attention of the first `n_rows` queries, which are those of `wanted`, added to their rows.
    fn attend(&self, buffers: &mut Buffers, segments: &[Segment<'_>], wanted: &[Span], n_rows: usize) {
        let Layer { config, weights, compute, .. } = self;
        let Buffers { hidden, queries, attended, update, unnormed, adapted, scratch, blocks, .. } = buffers;
        let width = config.query_dim();
        let out = attended.resize(n_rows, width);
        let mut row = 0;
        for span in wanted {
            let step = &segments[span.segment].step;
            let start = span.position - step.sequence().dropped_tokens();
            let shape = AttentionShape {
                n_heads: config.n_heads,
                n_kv_heads: config.n_kv_heads,
                head_dim: config.head_dim,
                query_start: start,
                n_queries: span.len,
                scale: config.decoder.attention_scale,
                mask: Mask::Causal { window: config.decoder.window.of_layer(self.index) },
                soft_cap: config.decoder.attention_soft_cap,
                alibi: None,
            };
            let range = row * width..(row + span.len) * width;
            let mut views = blocks.take();
            let kv = step.view(self.index, &mut views).with_len(start + span.len);
            let (q, out) = (&queries[range.clone()], &mut out[range]);
            compute.kernels.attention(&compute.pool, &shape, q, &kv, out, scratch);
            if step.sequence().store().rotated() {
                self.hadamard_rotate(out);
            }
            blocks.put(views);
            row += span.len;
        }
        let norm = weights.attention_post_norm.as_deref();
        let stream = Stream { hidden, update, unnormed, adapted };
        let site = runs(segments, wanted, (self.index, Site::AttentionOutput));
        self.add_projection(&weights.attention_output, norm, attended, stream, site);
    }

    /// The feed-forward network of the first `n_rows` rows, which are those of `wanted`, added to
    /// them.
    fn feed_forward(&self, buffers: &mut Buffers, segments: &[Segment<'_>], wanted: &[Span], n_rows: usize) {
        let Layer { config, weights, compute, .. } = self;
        let Buffers { hidden, normed, gated, up, update, unnormed, adapted, .. } = buffers;
        let up = &mut up[..n_rows * config.ffn_dim];
        let gate = gated.resize(n_rows, config.ffn_dim);
        let mut jobs = [
            MatmulJob { weights: &weights.gate.weights, out: &mut *gate },
            MatmulJob { weights: &weights.up.weights, out: &mut *up },
        ];
        project_norm(compute, config, hidden, &weights.ffn_norm, normed, n_rows, &mut jobs);
        add_bias(compute, gate, weights.gate.bias.as_deref());
        add_bias(compute, up, weights.up.bias.as_deref());
        let site = runs(segments, wanted, (self.index, Site::FeedForwardInput));
        adapt(compute, adapted, site, normed, &mut [gate, up]);
        let up = &*up;
        finish(compute, gated, weights.down.weights.format().uses_q8(), &|rows, gate| {
            let up = &up[rows.start * config.ffn_dim..rows.end * config.ffn_dim];
            match config.decoder.activation {
                Activation::SwiGlu => compute.kernels.silu_mul(gate, up),
                Activation::GeGlu => {
                    compute.kernels.gated(ruvllm_kernels::rows::Activation::GeluTanh, gate, up);
                }
            }
        });
        let norm = weights.ffn_post_norm.as_deref();
        let stream = Stream { hidden, update, unnormed, adapted };
        let site = runs(segments, wanted, (self.index, Site::FeedForwardOutput));
        self.add_projection(&weights.down, norm, gated, stream, site);
    }

    /// Adds the projection of `input`, changed by `adapters` and normed if there are weights for
    /// that, to the first rows of the stream.
    fn add_projection<'r>(
        &self,
        linear: &Linear,
        norm: Option<&[f32]>,
        input: &mut Activations,
        stream: Stream<'_>,
        adapters: impl Iterator<Item = (&'r LowRank, Range<usize>)>,
    ) {
        let Layer { config, compute, .. } = self;
        let Stream { hidden, update, unnormed, adapted } = stream;
        let update = &mut update[..input.tokens() * config.model_dim];
        project(compute, input, &mut [MatmulJob { weights: &linear.weights, out: &mut *update }]);
        add_bias(compute, update, linear.bias.as_deref());
        adapt(compute, adapted, adapters, input, &mut [&mut *update]);
        self.norm_in_place(update, config.model_dim, norm, unnormed);
        let rows = hidden.chunks_exact_mut(config.model_dim).zip(update.chunks_exact(config.model_dim));
        rows::for_each(&compute.pool, rows, |(row, update)| compute.kernels.add_assign(row, update));
    }
}

/// Products of the norm of the first `n_rows` rows of `hidden` with several matrices. `normed` is
/// where the norm goes.
pub(super) fn project_norm(
    compute: &Compute,
    config: &ModelConfig,
    hidden: &[f32],
    weight: &[f32],
    normed: &mut Activations,
    n_rows: usize,
    jobs: &mut [MatmulJob<'_>],
) {
    let dim = config.model_dim;
    normed.resize(n_rows, dim);
    finish(compute, normed, needs_q8(jobs), &|rows, normed| {
        let hidden = &hidden[rows.start * dim..rows.end * dim];
        compute.kernels.rms_norm(hidden, weight, config.norm_eps, normed);
    });
    project(compute, normed, jobs);
}

/// Moves the rows of `spans`, which ascend, to the front and returns their number.
fn keep_rows(rows: &mut [f32], width: usize, spans: &[Span]) -> usize {
    let mut kept = 0;
    for span in spans {
        if span.row != kept {
            rows.copy_within(span.range(width), kept * width);
        }
        kept += span.len;
    }
    kept
}

/// A number below `n` for each `index`, by which any run of them is spread evenly: steps of the
/// golden ratio.
fn spaced(index: usize, n: usize) -> usize {
    // 2^64 over the golden ratio; the product wraps around.
    let fraction = (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(fraction) * n as u128) >> 64) as usize
}
