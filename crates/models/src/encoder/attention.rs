//! Attention of all tokens of a text to all of them.
//!
//! The kernels attend a query to its own and earlier positions. Here nothing is later: every query stands at the text's last
//! position. Queries that share a position and a key/value head are what the kernels call query heads of one group, so the
//! tokens of a text are given as such, head by head: `[n_heads, tokens, head_dim]`. What a query gets then depends on its
//! row and the text's keys and values alone.

use ruvllm_kernels::attention::{
    AttentionScratch, AttentionShape, KvBlock, KvBuffer, KvFormat, KvLayout, KvPlane, KvView,
};

use super::config::EncoderConfig;
use crate::compute::Compute;
use crate::error::{Error, Result};
use crate::workspace::resize;

/// Tokens of one call, for whose queries and results the kernels have room in the caches.
const QUERIES: usize = 128;

/// Positions that keys and values are stored in multiples of.
const KV_STEP: usize = 32;

/// The memory of attention over one text at a time.
#[derive(Default)]
pub(super) struct TextAttention {
    keys: KvBuffer,
    values: KvBuffer,
    /// Queries of a call, `[n_heads, queries, head_dim]`.
    queries: Vec<f32>,
    /// Results of a call, the same.
    out: Vec<f32>,
    scratch: AttentionScratch,
}

impl TextAttention {
    /// Makes room for texts of `longest` tokens.
    pub(super) fn prepare(&mut self, config: &EncoderConfig, longest: usize) -> Result<()> {
        let n_values = QUERIES.min(longest).saturating_mul(config.model_dim);
        resize(&mut self.queries, n_values, "queries")?;
        resize(&mut self.out, n_values, "queries")?;
        let bytes = layout(config, longest)?.plane_bytes();
        for (buffer, what) in [(&mut self.keys, "keys"), (&mut self.values, "values")] {
            if buffer.as_bytes().len() < bytes {
                *buffer = KvBuffer::zeroed(bytes).ok_or(Error::OutOfMemory { what, bytes })?;
            }
        }
        Ok(())
    }

    /// The results of a text's queries over its keys and values, `[tokens, n_heads, head_dim]` each.
    pub(super) fn attend(
        &mut self,
        compute: &Compute,
        config: &EncoderConfig,
        [queries, keys, values]: [&[f32]; 3],
        out: &mut [f32],
    ) {
        let Self { keys: key_plane, values: value_plane, queries: by_head, out: out_by_head, scratch } = self;
        let (dim, head_dim) = (config.model_dim, config.head_dim());
        let n_tokens = queries.len() / dim;
        let layout = layout(config, n_tokens).expect("single precision takes heads of any size");
        let key_plane = &mut key_plane.as_bytes_mut()[..layout.plane_bytes()];
        let value_plane = &mut value_plane.as_bytes_mut()[..layout.plane_bytes()];
        compute.kernels.store_keys(&layout, keys, 0, key_plane);
        compute.kernels.store_values(&layout, values, 0, value_plane);
        let plane = |bytes| KvPlane { format: KvFormat::F32, bytes };
        let block = KvBlock { keys: plane(key_plane), values: plane(value_plane) };
        let block_tokens = layout.block_tokens();
        let kv = KvView { blocks: &[block], block_tokens, len: n_tokens, nuq: None };
        for (queries, out) in queries.chunks(QUERIES * dim).zip(out.chunks_mut(QUERIES * dim)) {
            let n_queries = queries.len() / dim;
            let by_head = &mut by_head[..queries.len()];
            let out_by_head = &mut out_by_head[..queries.len()];
            let shape = AttentionShape {
                n_heads: config.n_heads * n_queries,
                n_kv_heads: config.n_heads,
                head_dim,
                query_start: n_tokens - 1,
                n_queries: 1,
                scale: (1.0 / (head_dim as f64).sqrt()) as f32,
                window: None,
                soft_cap: None,
                alibi: None,
            };
            transpose(queries, config.n_heads, head_dim, by_head);
            compute.kernels.attention(&compute.pool, &shape, by_head, &kv, out_by_head, scratch);
            transpose(out_by_head, n_queries, head_dim, out);
        }
    }
}

/// How keys and values of a text lie: one block.
fn layout(config: &EncoderConfig, n_tokens: usize) -> Result<KvLayout> {
    let block_tokens = n_tokens.max(1).next_multiple_of(KV_STEP);
    Ok(KvLayout::new(KvFormat::F32, config.n_heads, block_tokens, config.head_dim())?)
}

/// `[rows, columns]` of runs of `run` values becomes `[columns, rows]`.
fn transpose(from: &[f32], columns: usize, run: usize, to: &mut [f32]) {
    let n_rows = from.len() / (columns * run);
    for (row, from) in from.chunks_exact(columns * run).enumerate() {
        for (column, from) in from.chunks_exact(run).enumerate() {
            to[(column * n_rows + row) * run..][..run].copy_from_slice(from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_change_places() {
        let from: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let (mut to, mut back) = ([0.0; 12], [0.0; 12]);
        transpose(&from, 3, 2, &mut to);
        assert_eq!(to, [0.0, 1.0, 6.0, 7.0, 2.0, 3.0, 8.0, 9.0, 4.0, 5.0, 10.0, 11.0]);
        transpose(&to, 2, 2, &mut back);
        assert_eq!(back[..], from);
    }

    /// Softmax attention without a mask, in f64.
    fn reference(config: &EncoderConfig, queries: &[f32], keys: &[f32], values: &[f32]) -> Vec<f64> {
        let (dim, head_dim) = (config.model_dim, config.head_dim());
        let n_tokens = queries.len() / dim;
        let mut out = vec![0.0; queries.len()];
        let at = |rows: &[f32], token: usize, head: usize, i: usize| {
            f64::from(rows[token * dim + head * head_dim + i])
        };
        for token in 0..n_tokens {
            for head in 0..config.n_heads {
                let score = |key: usize| -> f64 {
                    let dot: f64 =
                        (0..head_dim).map(|i| at(queries, token, head, i) * at(keys, key, head, i)).sum();
                    (dot / (head_dim as f64).sqrt()).exp()
                };
                let weights: Vec<f64> = (0..n_tokens).map(score).collect();
                let sum: f64 = weights.iter().sum();
                for i in 0..head_dim {
                    let weighted = |(key, weight): (usize, &f64)| weight * at(values, key, head, i);
                    out[token * dim + head * head_dim + i] =
                        weights.iter().enumerate().map(weighted).sum::<f64>() / sum;
                }
            }
        }
        out
    }

    fn rows(n_values: usize, seed: f32) -> Vec<f32> {
        (0..n_values).map(|i| (i as f32 * 0.37 + seed).sin() * 1.5).collect()
    }

    #[test]
    fn every_token_sees_the_whole_text() {
        let config = |n_heads, model_dim| EncoderConfig {
            architecture: "bert".to_owned(),
            name: None,
            model_dim,
            ffn_dim: 1,
            n_layers: 1,
            n_heads,
            vocab_size: 1,
            n_token_types: 0,
            context_length: 1000,
            norm_eps: 1e-12,
        };
        for threads in [1, 3] {
            let compute = Compute::new(threads).expect("kernels");
            let mut attention = TextAttention::default();
            // Around tiles, calls and splits of the kernels; heads of odd widths.
            for (n_tokens, n_heads, head_dim) in
                [(1, 1, 8), (31, 2, 5), (33, 3, 16), (128, 1, 32), (129, 2, 8), (530, 2, 4)]
            {
                let config = config(n_heads, n_heads * head_dim);
                let n_values = n_tokens * config.model_dim;
                let [queries, keys, values] = [0.0, 1.0, 2.0].map(|seed| rows(n_values, seed));
                let mut out = vec![f32::NAN; n_values];
                attention.prepare(&config, n_tokens).expect("memory");
                attention.attend(&compute, &config, [&queries, &keys, &values], &mut out);
                for (out, expected) in out.iter().zip(reference(&config, &queries, &keys, &values)) {
                    assert!((f64::from(*out) - expected).abs() < 2e-6, "{n_tokens}: {out} {expected}");
                }
            }
        }
    }
}
