//! One transformer layer: attention over the cache or what stands in its place (`recurrent`), then
//! the gated feed-forward network, each behind a norm and added to the residual stream. The
//! family's switches are read here.

use ruvllm_adapters::Site;
use ruvllm_kernels::attention::{AttentionCall, AttentionShape, KvView, Mask};
use ruvllm_kernels::matmul::Activations;
use ruvllm_kernels::rope::RopeTable;
use ruvllm_kernels::rows::Norm;
use ruvllm_kv_cache::Sequence;

use super::adapt::{Product, project_adapted};
use super::chunks::{Piece, pieces};
use super::cutoff::cut_gates;
use super::rope::RopeTables;
use crate::batch::{Segment, Span, count};
use crate::compute::Compute;
use crate::config::{Heads, ModelConfig};
use crate::error::Result;
use crate::family::{Activation, LayerParts};
use crate::projection::finish;
use crate::rope::FIRST_POSITIONS;
use crate::rows;
use crate::weights::{AttentionWeights, FeedForward, LayerWeights, Linear, Mixer};
use crate::workspace::{Adapted, Buffers};

/// One layer with its configuration and compute resources.
pub(super) struct Layer<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) weights: &'a LayerWeights,
    pub(super) index: usize,
    pub(super) heads: Heads,
    /// Index of the keys and values that it reads in a cache.
    pub(super) cache_index: usize,
    pub(super) ropes: &'a RopeTables,
    pub(super) compute: &'a Compute,
}

/// Residual stream, `[tokens, model_dim]`, and scratch for its updates.
pub(super) struct Stream<'a> {
    pub(super) hidden: &'a mut [f32],
    pub(super) update: &'a mut [f32],
    pub(super) unnormed: &'a mut [f32],
    pub(super) adapted: &'a mut Adapted,
}

impl Layer<'_> {
    /// Replaces the rows of `buffers.hidden` by the layer's output.
    ///
    /// Keys and values of the tokens in `all` go to the caches, which may want to see the queries;
    /// these are followed further only for those in `wanted`, whose rows are moved to the front.
    ///
    /// # Errors
    /// [`Error::RouterLogits`](crate::Error::RouterLogits) in mixtures of experts.
    pub(super) fn forward(
        &self,
        buffers: &mut Buffers,
        segments: &mut [Segment<'_>],
        all: &[Span],
        wanted: &[Span],
    ) -> Result<()> {
        let streams = self.config.decoder.streams.zip(self.weights.streams.as_ref());
        if let Some(streams) = streams {
            self.predict_streams(streams, buffers, count(all));
        }
        let n_rows = match &self.weights.mixer {
            Mixer::Attention(weights) => self.attention(weights, buffers, segments, (all, wanted)),
            Mixer::SharedAttention(weights) => self.shared_attention(weights, buffers, segments, wanted),
            Mixer::Latent(weights) => self.latent_attention(weights, buffers, segments, (all, wanted)),
            Mixer::DeltaNet(weights) => self.delta_net(weights, buffers, segments, (all, wanted)),
            Mixer::ShortConvolution(weights) => {
                self.short_convolution(weights, buffers, segments, (all, wanted))
            }
            Mixer::Mamba2(weights) => self.mamba2(weights, buffers, segments, (all, wanted)),
            Mixer::Parallel(weights) => self.parallel(weights, buffers, segments, (all, wanted)),
            // Such a layer follows the last mixer or has the same rows before and behind it.
            Mixer::None => count(wanted),
        };
        if wanted.is_empty() {
            return Ok(());
        }
        if let Some(streams) = streams {
            self.add_side_branch(streams, buffers, n_rows);
        }
        if self.config.decoder.layers.parts_of(self.index) != LayerParts::Mixer {
            self.feed_forward(buffers, segments, wanted, n_rows)?;
        }
        if let Some(streams) = streams {
            self.correct_streams(streams, buffers, n_rows);
        }
        if let Some(input) = &self.weights.input {
            self.add_input(input, buffers, n_rows);
        }
        self.scale_output(&mut buffers.hidden, n_rows);
        Ok(())
    }

    /// Attention of the rows in `wanted`, added to them at the front; returns their number.
    fn attention(
        &self,
        weights: &AttentionWeights,
        buffers: &mut Buffers,
        segments: &mut [Segment<'_>],
        (all, wanted): (&[Span], &[Span]),
    ) -> usize {
        self.write_attention(weights, buffers, segments, all);
        if wanted.is_empty() {
            return 0;
        }
        if self.config.decoder.gated_attention {
            keep_rows(&mut buffers.query_gates, self.heads.query_dim(), wanted);
        }
        let n_rows = self.keep_wanted(buffers, wanted);
        self.add_attention(weights, buffers, segments, wanted, n_rows);
        n_rows
    }

    /// Projects all rows, and stores their keys and values.
    pub(super) fn write_attention(
        &self,
        weights: &AttentionWeights,
        buffers: &mut Buffers,
        segments: &mut [Segment<'_>],
        all: &[Span],
    ) {
        self.project_attention(weights, buffers, segments, all);
        self.cache_rows(buffers, segments, all);
    }

    /// Attention of the first `n_rows` rows, which are those of `wanted`, added to them.
    pub(super) fn add_attention(
        &self,
        weights: &AttentionWeights,
        buffers: &mut Buffers,
        segments: &[Segment<'_>],
        wanted: &[Span],
        n_rows: usize,
    ) {
        self.attend(weights.sinks.as_deref(), buffers, segments, wanted, n_rows);
        let Buffers { hidden, query_gates, attended, update, unnormed, adapted, .. } = buffers;
        if self.config.decoder.gated_attention {
            let width = self.heads.query_dim();
            let rows = attended.values_mut().chunks_exact_mut(width).zip(query_gates.chunks_exact(width));
            let kernels = &self.compute.kernels;
            rows::for_each(&self.compute.pool, rows, |(row, gate)| kernels.sigmoid_mul(row, gate));
        }
        let stream = Stream { hidden, update, unnormed, adapted };
        self.add_mixed(&weights.output, attended, stream, (segments, wanted));
    }

    /// Stores the keys and values of all rows, and shows the queries to whoever wants to see them.
    pub(super) fn cache_rows(&self, buffers: &mut Buffers, segments: &mut [Segment<'_>], all: &[Span]) {
        self.keep_queries(buffers, all);
        let (keys, values) = (&buffers.keys, &buffers.values);
        rows::for_each(&self.compute.pool, segments.iter_mut().zip(all), |(segment, span)| {
            let range = span.range(self.heads.kv_dim());
            segment.step.write(&self.compute.kernels, self.cache_index, &keys[range.clone()], &values[range]);
        });
        for (segment, &span) in segments.iter_mut().zip(all) {
            if segment.step.sequence().wants_queries(self.cache_index) {
                self.record_queries(buffers, segment, span);
            }
        }
    }

    /// Moves the queries of `wanted`, their rows of the residual streams and the inputs of further
    /// layers to the front; returns their number.
    pub(super) fn keep_wanted(&self, buffers: &mut Buffers, wanted: &[Span]) -> usize {
        keep_rows(&mut buffers.queries, self.heads.query_dim(), wanted);
        keep_rows(&mut buffers.per_layer.inputs, self.config.layer_inputs_dim(), wanted);
        keep_rows(&mut buffers.streams.values, self.config.streams_dim(), wanted);
        keep_rows(&mut buffers.hidden, self.config.model_dim, wanted)
    }

    /// Queries, keys and values of all rows, with RoPE, and Hadamard-rotated where a cache wants
    /// that.
    fn project_attention(
        &self,
        attention: &AttentionWeights,
        buffers: &mut Buffers,
        segments: &[Segment<'_>],
        all: &[Span],
    ) {
        let Layer { config, weights, compute, heads, .. } = self;
        let n_rows = count(all);
        let Buffers {
            hidden,
            normed,
            queries,
            gated_queries,
            query_gates,
            keys,
            values,
            unnormed,
            adapted,
            ..
        } = buffers;
        let q8 = read_q8([&attention.query, &attention.key])
            || attention.value.as_ref().is_some_and(|value| read_q8([value]));
        let norm = (weights.attention_norm.as_deref(), weights.attention_norm_bias.as_deref());
        normalize_biased(compute, config, hidden, norm, normed, n_rows, q8);
        let is_gated = config.decoder.gated_attention;
        let projected = if is_gated { &mut *gated_queries } else { &mut *queries };
        let query_rows = n_rows * heads.query_dim() * config.decoder.query_parts();
        let (keys, values) = (&mut keys[..n_rows * heads.kv_dim()], &mut values[..n_rows * heads.kv_dim()]);
        adapted.gates.compute(compute, (segments, all), self.index, normed.values());
        let (rows, site) = ((segments, all), (self.index, Site::AttentionInput));
        let query = Product::of(&attention.query, &mut projected[..query_rows]);
        let key = Product::of(&attention.key, &mut *keys);
        match &attention.value {
            Some(value) => {
                let products = [query, key, Product::of(value, &mut *values)];
                project_adapted(compute, adapted, rows, site, normed, products);
            }
            None => {
                project_adapted(compute, adapted, rows, site, normed, [query, key]);
                values.copy_from_slice(keys);
            }
        }
        if is_gated {
            let head_dim = heads.head_dim;
            let gated = gated_queries[..query_rows].chunks_exact(2 * head_dim);
            let parts = queries.chunks_exact_mut(head_dim).zip(query_gates.chunks_exact_mut(head_dim));
            for (head, (query, gate)) in gated.zip(parts) {
                query.copy_from_slice(&head[..head_dim]);
                gate.copy_from_slice(&head[head_dim..]);
            }
        }
        let queries = &mut queries[..n_rows * heads.query_dim()];
        self.norm_in_place(queries, heads.query_dim(), attention.query_norm.as_deref(), unnormed);
        self.norm_in_place(keys, heads.kv_dim(), attention.key_norm.as_deref(), unnormed);
        self.norm_in_place(values, heads.kv_dim(), attention.value_norm.as_deref(), unnormed);
        self.place(queries, keys, values, segments, all);
    }

    /// RoPE, attention temperature and Hadamard rotation of all rows, each at its position in its
    /// sequence, in one dispatch.
    pub(super) fn place(
        &self,
        queries: &mut [f32],
        keys: &mut [f32],
        values: &mut [f32],
        segments: &[Segment<'_>],
        all: &[Span],
    ) {
        let Layer { compute, heads, .. } = self;
        let kv_dim = heads.kv_dim();
        let queries = queries.chunks_exact_mut(heads.query_dim());
        let kv = keys.chunks_exact_mut(kv_dim).zip(values.chunks_exact_mut(kv_dim));
        let rows = queries.zip(kv).zip(positions(segments, all));
        rows::for_each(&compute.pool, rows, |((query, (key, value)), (position, cache))| {
            self.place_query(query, position, cache);
            self.apply_rope(key, position, self.rope(cache));
            if cache.store().rotated() {
                [key, value].into_iter().for_each(|row| self.hadamard_rotate(row));
            }
        });
    }

    /// RoPE, attention temperature and Hadamard rotation of one row of queries.
    pub(super) fn place_query(&self, query: &mut [f32], position: usize, cache: &Sequence) {
        self.apply_rope(query, position, self.rope(cache));
        let temperature = self.config.decoder.attention_temperature.as_ref();
        if let Some(temperature) = temperature.filter(|it| !it.unrotated_layers || !self.rotates()) {
            let factor = temperature.factor(position);
            query.iter_mut().for_each(|x| *x *= factor);
        }
        if cache.store().rotated() {
            self.hadamard_rotate(query);
        }
    }

    /// Keeps the query of the last token of each segment that is probed in this layer.
    fn keep_queries(&self, buffers: &mut Buffers, all: &[Span]) {
        let Buffers { queries, kept, .. } = buffers;
        let width = self.heads.query_dim();
        let slots = kept.layers.iter().zip(kept.queries.chunks_exact_mut(self.config.widest_heads().0));
        for ((layer, slot), span) in slots.zip(all) {
            if *layer == Some(self.cache_index) {
                slot[..width].copy_from_slice(&queries[span.range(width)][(span.len - 1) * width..]);
            }
        }
    }

    /// True if the layer rotates queries and keys.
    fn rotates(&self) -> bool {
        self.config.rotates(self.index)
    }

    /// RoPE table of this layer for a sequence.
    fn rope(&self, cache: &Sequence) -> &RopeTable {
        self.ropes.of(self.index, cache.capacity())
    }

    /// Normalizes each run of `weight.len()` values in rows of `width` values; without weights,
    /// nothing.
    pub(super) fn norm_in_place(
        &self,
        rows: &mut [f32],
        width: usize,
        weight: Option<&[f32]>,
        unnormed: &mut [f32],
    ) {
        let Layer { config, compute, .. } = self;
        let Some(weight) = weight else { return };
        let rows = rows.chunks_exact_mut(width).zip(unnormed.chunks_exact_mut(width));
        rows::for_each(&compute.pool, rows, |(row, unnormed)| {
            unnormed.copy_from_slice(row);
            compute.rms_norm(unnormed, weight, config.norm_eps, row);
        });
    }

    /// Applies RoPE to the heads of one row at `position`.
    fn apply_rope(&self, row: &mut [f32], position: usize, rope: &RopeTable) {
        let Layer { config, compute, .. } = self;
        let layout = config.decoder.rope_layout;
        compute.rope(rope, layout, position, row, self.heads.head_dim);
    }

    /// Passes the span's queries, each rotated (RoPE) to a later position, to the cache: SQuat
    /// weights key errors by them (ADR-0015).
    pub(super) fn record_queries(&self, buffers: &mut Buffers, segment: &mut Segment<'_>, span: Span) {
        let Layer { config, compute, heads, .. } = self;
        let Compute { kernels, pool, .. } = compute;
        let width = heads.query_dim();
        let rope = self.rope(segment.step.sequence());
        let Buffers { queries, later_queries, .. } = buffers;
        later_queries.clear();
        later_queries.extend_from_slice(&queries[span.range(width)]);
        rows::for_each(pool, later_queries.chunks_exact_mut(width).enumerate(), |(index, row)| {
            let distance = spaced(span.position + index, FIRST_POSITIONS);
            self.apply_rope(row, distance, rope);
        });
        segment.step.observe_queries(kernels, pool, self.cache_index, config.n_heads, later_queries);
    }

    /// Applies the Walsh-Hadamard transform to each head of a row, so that quantization error
    /// spreads over all dimensions. It is its own inverse and keeps dot products.
    fn hadamard_rotate(&self, row: &mut [f32]) {
        let head_dim = self.heads.head_dim;
        row.chunks_exact_mut(head_dim).for_each(|head| self.compute.kernels.hadamard(head, head_dim));
    }

    /// Attention of the first `n_rows` queries, which are those of `wanted`, in
    /// `buffers.attended`. `sinks` are scores without a value, `[n_heads]`, if there are any.
    pub(super) fn attend(
        &self,
        sinks: Option<&[f32]>,
        buffers: &mut Buffers,
        segments: &[Segment<'_>],
        wanted: &[Span],
        n_rows: usize,
    ) {
        let Layer { compute, heads, .. } = self;
        let Buffers { queries, attended, scratch, calls: list, .. } = buffers;
        let width = heads.query_dim();
        let out = attended.resize(n_rows, width);
        let (mut calls, mut blocks) = list.take(wanted.len());
        let chunk = self.config.decoder.window.chunk_of_layer(self.index);
        for (span, blocks) in wanted.iter().zip(&mut blocks) {
            let step = &segments[span.segment].step;
            let view = step.view(self.cache_index, blocks);
            let memory = (step.sequence().dropped_tokens(), step.sequence().store().block_tokens());
            let pieces = pieces(span.position..span.position + span.len, chunk, memory);
            calls.extend(pieces.map(|piece| {
                let shape = self.attention_shape(&piece);
                let kv = KvView::new(&view.blocks()[piece.skipped_blocks..], piece.start + piece.len);
                AttentionCall { shape, kv, sinks }
            }));
        }
        compute.kernels.attention_batch(&compute.pool, &calls, &queries[..n_rows * width], out, scratch);
        list.put_calls(calls);
        list.put_blocks(blocks);
        let rotated = |cache: &Sequence| cache.store().rotated();
        if wanted.iter().any(|span| rotated(segments[span.segment].step.sequence())) {
            let rows = out.chunks_exact_mut(width).zip(positions(segments, wanted));
            rows::for_each(&compute.pool, rows, |(row, (_, cache))| {
                if rotated(cache) {
                    self.hadamard_rotate(row);
                }
            });
        }
    }

    /// Shape of the attention of the queries of a call.
    fn attention_shape(&self, piece: &Piece) -> AttentionShape {
        let Layer { config, heads, .. } = self;
        let span = &config.decoder.window;
        let window = match span.chunk_of_layer(self.index) {
            Some(_) => piece.window,
            None => span.of_layer(self.index),
        };
        AttentionShape {
            n_heads: heads.n_heads,
            n_kv_heads: heads.n_kv_heads,
            head_dim: heads.head_dim,
            query_start: piece.start,
            n_queries: piece.len,
            scale: config.decoder.attention_scale,
            mask: Mask::Causal { window },
            soft_cap: config.decoder.attention_soft_cap,
            alibi: None,
        }
    }

    /// The feed-forward network or the mixture of experts of the first `n_rows` rows, which are
    /// those of `wanted`, added to them.
    fn feed_forward(
        &self,
        buffers: &mut Buffers,
        segments: &[Segment<'_>],
        wanted: &[Span],
        n_rows: usize,
    ) -> Result<()> {
        let Layer { config, weights, compute, .. } = self;
        let network = weights.feed_forward.as_ref();
        let q8 = network.is_some_and(|network| {
            read_q8([&network.up]) || network.gate.as_ref().is_some_and(|gate| read_q8([gate]))
        });
        let Buffers { hidden, normed, update, .. } = &mut *buffers;
        let norm = (weights.ffn_norm.as_deref(), weights.ffn_norm_bias.as_deref());
        normalize_biased(compute, config, hidden, norm, normed, n_rows, q8);
        match network {
            Some(network) => self.project_feed_forward(network, buffers, (segments, wanted)),
            None => update[..n_rows * config.model_dim].fill(0.0),
        }
        if let (Some(spec), Some(experts)) = (&config.decoder.experts, &weights.experts) {
            match &experts.beside {
                None => self.add_experts((spec, experts), buffers, wanted)?,
                Some(beside) => self.add_experts_beside((spec, experts), beside, buffers, wanted)?,
            }
        }
        let Buffers { hidden, update, unnormed, .. } = buffers;
        let update = &mut update[..n_rows * config.model_dim];
        self.add_update(hidden, update, weights.ffn_post_norm.as_deref(), unnormed);
        Ok(())
    }

    /// The network of the rows in `buffers.normed`, written to `buffers.update`.
    fn project_feed_forward(
        &self,
        network: &FeedForward,
        buffers: &mut Buffers,
        rows: (&[Segment<'_>], &[Span]),
    ) {
        let Layer { config, compute, .. } = self;
        let Buffers { normed, gated, up, update, adapted, .. } = buffers;
        let (n_rows, width) = (normed.tokens(), network.up.weights.rows());
        let up = &mut up[..n_rows * width];
        let (gate, site) = (gated.resize(n_rows, width), (self.index, Site::FeedForwardInput));
        match &network.gate {
            Some(weights) => {
                let products = [Product::of(weights, gate), Product::of(&network.up, &mut *up)];
                project_adapted(compute, adapted, rows, site, normed, products);
            }
            None => {
                let products = [Product::of(&network.up, gate)];
                project_adapted(compute, adapted, rows, site, normed, products);
            }
        }
        let up = &*up;
        let cutoff = config.decoder.gate_cutoff(self.index);
        finish(compute, gated, network.down.weights.format().uses_q8(), &|rows, gate| {
            let up = &up[rows.start * width..rows.end * width];
            if let Some(deviations) = cutoff {
                gate.chunks_exact_mut(width).for_each(|gates| cut_gates(gates, deviations));
            }
            activate(compute, config.decoder.activation, gate, up);
        });
        let products = [Product::of(&network.down, &mut update[..n_rows * config.model_dim])];
        project_adapted(compute, adapted, rows, (self.index, Site::FeedForwardOutput), gated, products);
    }

    /// Adds the mixer's projection of `input`, changed by the adapters of `rows` and normed if
    /// there are weights for that, to the first rows of the stream.
    pub(super) fn add_mixed(
        &self,
        linear: &Linear,
        input: &mut Activations,
        stream: Stream<'_>,
        rows: (&[Segment<'_>], &[Span]),
    ) {
        let Stream { hidden, update, unnormed, adapted } = stream;
        let update = &mut update[..input.tokens() * self.config.model_dim];
        let products = [Product::of(linear, &mut *update)];
        project_adapted(self.compute, adapted, rows, (self.index, Site::AttentionOutput), input, products);
        self.add_update(hidden, update, self.weights.attention_post_norm.as_deref(), unnormed);
    }

    /// Adds `update`, `[rows, model_dim]`, normed if there are weights for that and times the
    /// model's factor, to the first rows of the residual stream.
    pub(super) fn add_update(
        &self,
        hidden: &mut [f32],
        update: &mut [f32],
        norm: Option<&[f32]>,
        unnormed: &mut [f32],
    ) {
        let Layer { config, compute, .. } = self;
        self.norm_in_place(update, config.model_dim, norm, unnormed);
        let scale = config.decoder.residual_scale;
        let dim = config.model_dim;
        let rows = hidden.chunks_exact_mut(dim).zip(update.chunks_exact_mut(dim));
        rows::for_each(&compute.pool, rows, |(row, update)| {
            if scale != 1.0 {
                update.iter_mut().for_each(|value| *value *= scale);
            }
            compute.kernels.add_assign(row, update);
        });
    }
}

/// Writes the norm of the first `n_rows` rows of `hidden`, or without weights these rows, to
/// `normed`, quantized if a product of it reads 8 bits.
pub(super) fn normalize(
    compute: &Compute,
    config: &ModelConfig,
    hidden: &[f32],
    weight: Option<&[f32]>,
    normed: &mut Activations,
    n_rows: usize,
    q8: bool,
) {
    normalize_biased(compute, config, hidden, (weight, None), normed, n_rows, q8);
}

/// As [`normalize`], by a layer norm if there is a bias.
pub(super) fn normalize_biased(
    compute: &Compute,
    config: &ModelConfig,
    hidden: &[f32],
    norm: (Option<&[f32]>, Option<&[f32]>),
    normed: &mut Activations,
    n_rows: usize,
    q8: bool,
) {
    let dim = config.model_dim;
    normed.resize(n_rows, dim);
    finish(compute, normed, q8, &|rows, normed| {
        let hidden = &hidden[rows.start * dim..rows.end * dim];
        match norm {
            (Some(weight), None) => compute.rms_norm(hidden, weight, config.norm_eps, normed),
            (Some(weight), bias) => {
                compute.kernels.norm(Norm::Layer { weight, bias }, config.norm_eps, hidden, normed);
            }
            (None, _) => normed.copy_from_slice(hidden),
        }
    });
}

/// Combines the gate and up projections, in `gate`. Without a gate, that is the up projection.
pub(super) fn activate(compute: &Compute, activation: Activation, gate: &mut [f32], up: &[f32]) {
    match activation {
        Activation::SwiGlu => compute.silu_mul(gate, up),
        Activation::GeGlu => {
            compute.kernels.gated(ruvllm_kernels::rows::Activation::GeluTanh, gate, up);
        }
        Activation::ClampedSwiGlu { alpha, limit } => compute.kernels.clamped_swiglu(alpha, limit, gate, up),
        // NaN stays what it is.
        Activation::SquaredRelu => gate.iter_mut().for_each(|x| *x = if *x < 0.0 { 0.0 } else { *x * *x }),
    }
}

/// True if one of the products reads 8-bit activations.
pub(super) fn read_q8<const N: usize>(linears: [&Linear; N]) -> bool {
    linears.iter().any(|linear| linear.weights.format().uses_q8())
}

/// Position and sequence of each row of `spans`, in order.
pub(super) fn positions<'a>(
    segments: &'a [Segment<'_>],
    spans: &'a [Span],
) -> impl Iterator<Item = (usize, &'a Sequence)> + Send {
    spans.iter().flat_map(move |span| {
        let sequence = segments[span.segment].step.sequence();
        (span.position..span.position + span.len).map(move |position| (position, sequence))
    })
}

/// Moves the rows of `spans`, which ascend, to the front and returns their number.
pub(super) fn keep_rows(rows: &mut [f32], width: usize, spans: &[Span]) -> usize {
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
