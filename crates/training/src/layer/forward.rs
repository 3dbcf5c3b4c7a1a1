//! Forward pass of a layer, which keeps what the backward pass reads.

use std::cell::RefCell;

use ruvllm_models::Linear;

use super::{Buffers, Layer, Saved, fill};
use crate::attention;
use crate::frozen::Direction;
use crate::parallel::{self, rows_per_piece};
use crate::product::project;

thread_local! {
    /// Memory of attention tasks, one per thread.
    static SCRATCH: RefCell<attention::Scratch> = RefCell::default();
}

/// Calls `task` with this thread's memory.
pub(super) fn with_scratch(task: impl FnOnce(&mut attention::Scratch)) {
    SCRATCH.with_borrow_mut(task);
}

impl Layer<'_> {
    /// Replaces the residual stream, `[tokens, model_dim]`, by the layer's output.
    pub(crate) fn forward(&self, hidden: &mut [f32], saved: &mut Saved, buffers: &mut Buffers) {
        copy(&mut saved.input, hidden);
        self.attend(hidden, saved, buffers);
        copy(&mut saved.middle, hidden);
        self.feed_forward(hidden, saved, buffers);
    }

    fn attend(&self, hidden: &mut [f32], saved: &mut Saved, buffers: &mut Buffers) {
        let Layer { config, weights, attention, compute, rows, .. } = self;
        let (n, query_dim, kv_dim) = (rows.len(), config.query_dim(), config.kv_dim());
        let linears = [&attention.query, &attention.key, self.value];
        self.norm(hidden, self.attention_norm, &linears, &mut buffers.normed);
        saved.queries.resize(n * query_dim, 0.0);
        saved.keys.resize(n * kv_dim, 0.0);
        saved.values.resize(n * kv_dim, 0.0);
        let outs = [&mut saved.queries[..], &mut saved.keys, &mut saved.values];
        let factors = self.factors.attention_input.as_ref();
        project(compute, &mut buffers.normed, linears, outs, factors, &mut saved.components[0]);
        if config.decoder.head_norms {
            copy(&mut saved.raw_queries, &saved.queries);
            copy(&mut saved.raw_keys, &saved.keys);
        }
        let per_piece = rows_per_piece(query_dim);
        let pieces = saved.queries.chunks_mut(per_piece * query_dim);
        let pieces = pieces.zip(saved.keys.chunks_mut(per_piece * kv_dim)).enumerate();
        parallel::for_each(&compute.pool, pieces, |(piece, (queries, keys))| {
            let rows = queries.chunks_exact_mut(query_dim).zip(keys.chunks_exact_mut(kv_dim));
            for (at, (query, key)) in rows.enumerate() {
                self.place(piece * per_piece + at, query, key);
            }
        });

        let shape = self.attention_shape();
        buffers.heads.resize(n * query_dim, 0.0);
        let tasks = self.heads_of(&mut buffers.heads, shape.group() * shape.head_dim);
        let inputs = &*saved;
        parallel::for_each(&compute.pool, tasks.into_iter(), |(sequence, head, out)| {
            let inputs = self.attention_inputs(inputs, &rows.sequences()[sequence]);
            with_scratch(|scratch| shape.forward(&compute.kernels, inputs, head, out, scratch));
        });
        let q8 = attention.output.weights.format().uses_q8();
        let heads = &buffers.heads;
        fill(compute, &mut saved.attended, (n, query_dim), q8, &|row, out| self.gather(heads, row, out));

        buffers.update.resize(n * config.model_dim, 0.0);
        let factors = self.factors.attention_output.as_ref();
        let components = &mut saved.components[1];
        let linears = [&attention.output];
        project(compute, &mut saved.attended, linears, [&mut buffers.update], factors, components);
        let norm = weights.attention_post_norm.as_deref();
        self.add_update(hidden, &buffers.update, norm, &mut saved.attention_update);
    }

    fn feed_forward(&self, hidden: &mut [f32], saved: &mut Saved, buffers: &mut Buffers) {
        let Layer { config, weights, network, gate, compute, rows, .. } = self;
        let (n, ffn_dim) = (rows.len(), config.ffn_dim);
        let linears = [*gate, &network.up];
        self.norm(hidden, self.ffn_norm, &linears, &mut buffers.normed);
        saved.gate.resize(n * ffn_dim, 0.0);
        saved.up.resize(n * ffn_dim, 0.0);
        let factors = self.factors.ffn_input.as_ref();
        let outs = [&mut saved.gate[..], &mut saved.up];
        project(compute, &mut buffers.normed, linears, outs, factors, &mut saved.components[2]);
        self.gate(saved, network.down.weights.format().uses_q8(), buffers);
        buffers.update.resize(n * config.model_dim, 0.0);
        let factors = self.factors.ffn_output.as_ref();
        let components = &mut saved.components[3];
        project(compute, &mut buffers.gated, [&network.down], [&mut buffers.update], factors, components);
        let norm = weights.ffn_post_norm.as_deref();
        self.add_update(hidden, &buffers.update, norm, &mut saved.ffn_update);
    }

    /// Computes the input of the down projection, `activation(gate) * up`, quantized with `q8`.
    pub(super) fn gate(&self, saved: &Saved, q8: bool, buffers: &mut Buffers) {
        let Layer { config, compute, rows, .. } = self;
        let (width, activation) = (config.ffn_dim, self.activation());
        fill(compute, &mut buffers.gated, (rows.len(), width), q8, &|row, out| {
            out.copy_from_slice(&saved.gate[row * width..][..width]);
            compute.kernels.gated(activation, out, &saved.up[row * width..][..width]);
        });
    }

    /// Norms of heads, RoPE and attention temperature of a token's query and key.
    fn place(&self, row: usize, query: &mut [f32], key: &mut [f32]) {
        let Layer { config, attention, compute, .. } = self;
        let (sequence, position) = self.rows.place(row);
        for (row, norm) in [(&mut *query, &attention.query_norm), (&mut *key, &attention.key_norm)] {
            if let Some(weight) = norm {
                let unnormed = row.to_vec();
                compute.kernels.rms_norm(&unnormed, weight, config.norm_eps, row);
            }
        }
        self.rope(Direction::Forward, query, config.n_heads, position, sequence.len());
        if let Some(factor) = self.temperature(position) {
            query.iter_mut().for_each(|value| *value *= factor);
        }
        self.rope(Direction::Forward, key, config.n_kv_heads, position, sequence.len());
    }

    /// Norm of all rows, as input of `linears`.
    pub(super) fn norm(
        &self,
        hidden: &[f32],
        weight: &[f32],
        linears: &[&Linear],
        out: &mut ruvllm_kernels::matmul::Activations,
    ) {
        let Layer { config, compute, rows, .. } = self;
        let dim = config.model_dim;
        let q8 = linears.iter().any(|linear| linear.weights.format().uses_q8());
        fill(compute, out, (rows.len(), dim), q8, &|row, out| {
            compute.kernels.rms_norm(&hidden[row * dim..][..dim], weight, config.norm_eps, out);
        });
    }

    /// Adds an update, normed if there are weights for that, to the residual stream; `unnormed`
    /// keeps it then.
    fn add_update(&self, hidden: &mut [f32], update: &[f32], norm: Option<&[f32]>, unnormed: &mut Vec<f32>) {
        let Layer { config, compute, .. } = self;
        let dim = config.model_dim;
        let len = rows_per_piece(dim) * dim;
        parallel::for_each(
            &compute.pool,
            hidden.chunks_mut(len).zip(update.chunks(len)),
            |(hidden, update)| match norm {
                None => compute.kernels.add_assign(hidden, update),
                Some(weight) => {
                    let mut normed = vec![0.0; update.len()];
                    compute.kernels.rms_norm(update, weight, config.norm_eps, &mut normed);
                    compute.kernels.add_assign(hidden, &normed);
                }
            },
        );
        if norm.is_some() {
            copy(unnormed, update);
        }
    }
}

/// Makes `to` a copy of `from`.
fn copy(to: &mut Vec<f32>, from: &[f32]) {
    to.clear();
    to.extend_from_slice(from);
}
