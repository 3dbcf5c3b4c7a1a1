//! Backward pass of a layer.

use super::forward::with_scratch;
use super::{Buffers, Layer, Saved, fill};
use crate::attention::Gradients;
use crate::frozen::{Direction, LayerTransposed};
use crate::parallel::{self, rows_per_piece};
use crate::product::{Backward, backward};

impl Layer<'_> {
    /// Replaces the gradient of the layer's output, `[tokens, model_dim]`, by that of its input,
    /// and adds those of its factors to `gradients`. With `to_input` false only the latter.
    ///
    /// # Panics
    /// Without transposed weights.
    pub(crate) fn backward(
        &self,
        stream: &mut [f32],
        saved: &Saved,
        buffers: &mut Buffers,
        gradients: &mut [f32],
        to_input: bool,
    ) {
        self.feed_forward_backward(stream, saved, buffers, gradients);
        self.attend_backward(stream, saved, buffers, gradients, to_input);
    }

    fn transposed(&self) -> &LayerTransposed {
        self.transposed.expect("gradients need transposed weights")
    }

    fn feed_forward_backward(
        &self,
        stream: &mut [f32],
        saved: &Saved,
        buffers: &mut Buffers,
        gradients: &mut [f32],
    ) {
        let Layer { config, weights, compute, rows, .. } = self;
        let (n, dim, ffn_dim) = (rows.len(), config.model_dim, config.ffn_dim);
        let transposed = self.transposed();
        let factors = self.factors.ffn_output.as_ref();
        if factors.is_some() {
            self.gate(saved, false, buffers);
        }
        let q8 = transposed.ffn_output.format().uses_q8();
        let norm = weights.ffn_post_norm.as_deref();
        self.update_gradient(stream, &saved.ffn_update, norm, q8, buffers);
        buffers.gradient.resize(n * ffn_dim, 0.0);
        let job = Backward {
            transposed: &transposed.ffn_output,
            factors,
            input: buffers.gated.values(),
            components: &saved.components[3],
            input_gradient: Some(&mut buffers.gradient),
            gradients,
        };
        backward(compute, &mut buffers.outputs, job, &mut buffers.products);

        let (activation, upstream) = (self.activation(), &buffers.gradient);
        let q8 = transposed.ffn_input.format().uses_q8();
        fill(compute, &mut buffers.outputs, (n, 2 * ffn_dim), q8, &|row, out| {
            let (gate, up) = out.split_at_mut(ffn_dim);
            let range = row * ffn_dim..(row + 1) * ffn_dim;
            gate.copy_from_slice(&saved.gate[range.clone()]);
            up.copy_from_slice(&saved.up[range.clone()]);
            compute.kernels.gated_backward(activation, gate, up, &upstream[range]);
        });
        let factors = self.factors.ffn_input.as_ref();
        if factors.is_some() {
            self.norm(&saved.middle, self.ffn_norm, &[], &mut buffers.normed);
        }
        buffers.gradient.resize(n * dim, 0.0);
        let job = Backward {
            transposed: &transposed.ffn_input,
            factors,
            input: buffers.normed.values(),
            components: &saved.components[2],
            input_gradient: Some(&mut buffers.gradient),
            gradients,
        };
        backward(compute, &mut buffers.outputs, job, &mut buffers.products);
        self.add_norm_gradient(&saved.middle, self.ffn_norm, &buffers.gradient, stream);
    }

    fn attend_backward(
        &self,
        stream: &mut [f32],
        saved: &Saved,
        buffers: &mut Buffers,
        gradients: &mut [f32],
        to_input: bool,
    ) {
        let Layer { config, weights, compute, rows, .. } = self;
        let (n, dim, query_dim) = (rows.len(), config.model_dim, config.query_dim());
        let factors = self.factors.attention_input.as_ref();
        let transposed = self.transposed();
        let q8 = transposed.attention_output.format().uses_q8();
        let norm = weights.attention_post_norm.as_deref();
        self.update_gradient(stream, &saved.attention_update, norm, q8, buffers);
        buffers.gradient.resize(n * query_dim, 0.0);
        let job = Backward {
            transposed: &transposed.attention_output,
            factors: self.factors.attention_output.as_ref(),
            input: saved.attended.values(),
            components: &saved.components[1],
            input_gradient: (to_input || factors.is_some()).then_some(&mut buffers.gradient[..]),
            gradients,
        };
        backward(compute, &mut buffers.outputs, job, &mut buffers.products);
        if !to_input && factors.is_none() {
            return;
        }
        self.attention_gradients(saved, buffers);

        let q8 = to_input && transposed.attention_input.format().uses_q8();
        let (queries, keys, values) = (&buffers.heads, &buffers.key_heads, &buffers.value_heads);
        let width = query_dim + 2 * config.kv_dim();
        fill(compute, &mut buffers.outputs, (n, width), q8, &|row, out| {
            let (query, kv) = out.split_at_mut(query_dim);
            let (key, value) = kv.split_at_mut(config.kv_dim());
            self.gather(queries, row, query);
            self.gather(keys, row, key);
            self.gather(values, row, value);
            self.place_backward(row, saved, query, key);
        });
        if factors.is_some() {
            self.norm(&saved.input, self.attention_norm, &[], &mut buffers.normed);
        }
        buffers.gradient.resize(n * dim, 0.0);
        let job = Backward {
            transposed: &transposed.attention_input,
            factors,
            input: buffers.normed.values(),
            components: &saved.components[0],
            input_gradient: to_input.then_some(&mut buffers.gradient[..]),
            gradients,
        };
        backward(compute, &mut buffers.outputs, job, &mut buffers.products);
        if to_input {
            self.add_norm_gradient(&saved.input, self.attention_norm, &buffers.gradient, stream);
        }
    }

    /// Gradients of queries, keys and values, by head, from that of the attention output.
    fn attention_gradients(&self, saved: &Saved, buffers: &mut Buffers) {
        let Layer { config, compute, rows, .. } = self;
        let (n, query_dim, kv_dim) = (rows.len(), config.query_dim(), config.kv_dim());
        let shape = self.attention_shape();
        let Buffers { heads, key_heads, value_heads, gradient, .. } = buffers;
        heads.resize(n * query_dim, 0.0);
        for heads in [&mut *key_heads, value_heads] {
            heads.clear();
            heads.resize(n * kv_dim, 0.0);
        }
        let queries = self.heads_of(heads, shape.group() * shape.head_dim).into_iter();
        let keys = self.heads_of(key_heads, shape.head_dim).into_iter();
        let values = self.heads_of(value_heads, shape.head_dim).into_iter();
        let gradient = &*gradient;
        parallel::for_each(&compute.pool, queries.zip(keys).zip(values), |((queries, keys), values)| {
            let (sequence, head, queries) = queries;
            let rows = &rows.sequences()[sequence];
            let inputs = self.attention_inputs(saved, rows);
            let upstream = &gradient[rows.start * query_dim..rows.end * query_dim];
            let mut out = Gradients { queries, keys: keys.2, values: values.2 };
            with_scratch(|scratch| {
                shape.backward(&compute.kernels, inputs, head, upstream, &mut out, scratch);
            });
        });
    }

    /// Derivatives of norms of heads, RoPE and attention temperature of a token's query and key.
    fn place_backward(&self, row: usize, saved: &Saved, query: &mut [f32], key: &mut [f32]) {
        let Layer { config, attention, compute, .. } = self;
        let (sequence, position) = self.rows.place(row);
        self.rope(Direction::Backward, query, config.n_heads, position, sequence.len());
        if let Some(factor) = self.temperature(position) {
            query.iter_mut().for_each(|value| *value *= factor);
        }
        self.rope(Direction::Backward, key, config.n_kv_heads, position, sequence.len());
        let rows =
            [(query, &saved.raw_queries, &attention.query_norm), (key, &saved.raw_keys, &attention.key_norm)];
        for (gradient, raw, norm) in rows {
            if let Some(weight) = norm {
                let raw = &raw[row * gradient.len()..][..gradient.len()];
                let upstream = gradient.to_vec();
                gradient.fill(0.0);
                compute.kernels.add_rms_norm_backward(raw, weight, config.norm_eps, &upstream, gradient);
            }
        }
    }

    /// Gradient of an update of the residual stream, behind its norm if it has one, as outputs of
    /// its projection.
    fn update_gradient(
        &self,
        stream: &[f32],
        unnormed: &[f32],
        norm: Option<&[f32]>,
        q8: bool,
        buffers: &mut Buffers,
    ) {
        let Layer { config, compute, rows, .. } = self;
        let dim = config.model_dim;
        fill(compute, &mut buffers.outputs, (rows.len(), dim), q8, &|row, out| {
            let range = row * dim..(row + 1) * dim;
            match norm {
                None => out.copy_from_slice(&stream[range]),
                Some(weight) => {
                    let (x, dy) = (&unnormed[range.clone()], &stream[range]);
                    out.fill(0.0);
                    compute.kernels.add_rms_norm_backward(x, weight, config.norm_eps, dy, out);
                }
            }
        });
    }

    /// Adds the derivative of a norm of the residual stream to the gradient of that.
    fn add_norm_gradient(&self, x: &[f32], weight: &[f32], gradient: &[f32], stream: &mut [f32]) {
        let Layer { config, compute, .. } = self;
        let len = rows_per_piece(config.model_dim) * config.model_dim;
        let pieces = stream.chunks_mut(len).zip(x.chunks(len).zip(gradient.chunks(len)));
        parallel::for_each(&compute.pool, pieces, |(out, (x, gradient))| {
            compute.kernels.add_rms_norm_backward(x, weight, config.norm_eps, gradient, out);
        });
    }
}
