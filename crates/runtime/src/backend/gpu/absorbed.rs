//! Kernel launches of latent attention (ADR-0150).
//!
//! The cached key of a token, one for all heads, is the rotated part, then the normed latent, which
//! is the value too. Queries are brought into the space of the latent, and what attention finds
//! back to the values of each head, by products of pairs of a row and a head, as those of a row and
//! an expert.

use std::sync::Arc;

use ruvllm_adapters::Site;
use ruvllm_gpu::{
    Activations, Buffer, Dispatch, ExpertMatrix, Format, LatentKeysKernel, LatentQueriesKernel,
    PartNormKernel, PositionTables, Queries, Result, RopeLayout, RowOutput, Sequences,
};
use ruvllm_models::LatentAttention;

use super::inputs::PAD;
use super::latent::DeviceLatent;
use super::launches::{Builder, Phase, attention};
use super::rows::LatentRows;
use super::weights::DeviceAttention;

impl Builder<'_> {
    /// Queries in the space of the latent, keys, RoPE, write of the keys.
    pub(super) fn latent_keys(
        &mut self,
        index: usize,
        layer: &DeviceAttention,
        latent: &DeviceLatent,
    ) -> Result<()> {
        let Some(shape) = self.parts.config.decoder.latent else { return Ok(()) };
        let rows = Arc::clone(&self.rows);
        self.project(&layer.qkv, |format| rows.normed.of(format), &rows.usual.qkv)?;
        self.adapt((index, Site::AttentionInput), &layer.qkv, (&rows.normed, true), &rows.usual.qkv)?;
        let gpu = self.parts.gpu;
        if index == 0 && self.sorts() {
            self.launches.push(rows.latent().sort(gpu)?);
        }
        self.latent_queries(index, &shape, latent)?;
        let (config, pool, angles) = (self.parts.config, self.parts.pool, self.parts.angles);
        let width = layer.qkv.outputs;
        let key = LatentKeysKernel {
            rotary: shape.rotary_dim as u32,
            rank: shape.rank as u32,
            width,
            first: width - (shape.rank + shape.rotary_dim) as u32,
            layout: self.layout(),
            eps_bits: config.norm_eps.to_bits(),
            format: pool.format,
        };
        let tables = (angles.of(index, self.long()), &latent.norm);
        self.launches.push(gpu.latent_keys(key, &rows.usual.qkv, tables, &rows.kv, pool.layer(index))?);
        Ok(())
    }

    /// Queries of all heads, from the first projection or from their normed latent.
    fn latent_queries(&mut self, index: usize, shape: &LatentAttention, latent: &DeviceLatent) -> Result<()> {
        let (gpu, config, angles) = (self.parts.gpu, self.parts.config, self.parts.angles);
        let rows = Arc::clone(&self.rows);
        let own = rows.latent();
        let all = (rows.usual.qkv.len() / 4 / u64::from(rows.n)) as u32;
        let (heads, still) = (config.n_heads as u32, shape.still_dim as u32);
        let (source, width) = match (&latent.query, &own.query_latents, &own.queries) {
            (Some((weight, projection)), Some(normed), Some(queries)) => {
                let cols = shape.query_rank.unwrap_or_default() as u32;
                let padded = cols.next_multiple_of(PAD as u32);
                let eps_bits = config.norm_eps.to_bits();
                let key = PartNormKernel { cols, width: all, padded, eps_bits };
                self.launches.extend(normed.fill_f32(gpu, projection.formats(), |out| {
                    Ok(vec![gpu.part_norm(key, &rows.usual.qkv, weight, out)?])
                })?);
                self.project(projection, |format| normed.of(format), queries)?;
                (queries, projection.outputs)
            }
            _ => (&rows.usual.qkv, all),
        };
        let key = LatentQueriesKernel {
            heads,
            still,
            rotary: shape.rotary_dim as u32,
            rank: shape.rank as u32,
            width,
            padded: still.next_multiple_of(PAD as u32),
            layout: self.layout(),
            scaled: false,
        };
        let tables = PositionTables { angles: angles.of(index, self.long()), factors: angles.factors(index) };
        let format = latent.keys.matrix().format();
        self.launches.extend(own.still.fill_f32(gpu, std::iter::once(format), |still| {
            let outputs = (still, &rows.usual.queries);
            Ok(vec![gpu.latent_queries(key, source, tables, &rows.kv.positions, outputs)?])
        })?);
        let part = (key.rotary, key.rotary + key.rank);
        let product = self.head_product(&latent.keys, &own.still.of(format), &rows.usual.queries, part)?;
        self.launches.push(product);
        Ok(())
    }

    /// Attention over latents, and the values of each head; fills the rows of the output
    /// projection.
    pub(super) fn attend_latents(
        &mut self,
        index: usize,
        latent: &DeviceLatent,
        sequences: &Sequences,
        formats: impl Iterator<Item = Format>,
    ) -> Result<()> {
        let (gpu, pool) = (self.parts.gpu, self.parts.pool);
        let rows = Arc::clone(&self.rows);
        let own = rows.latent();
        let key = attention(self.parts.config, index, self.phase == Phase::Prefill || rows.n == 1);
        let (queries, scratch) = (Queries::from(&rows.usual.queries), self.scratch());
        let format = latent.values.matrix().format();
        self.launches.extend(own.attended.fill_f32(gpu, std::iter::once(format), |out| {
            let out = RowOutput::F32(out.clone());
            gpu.attention(key, queries, pool.layer(index), sequences, scratch, &out)
        })?);
        let (x, width) = (own.attended.of(format), latent.values.rows());
        self.launches.extend(rows.usual.attended.fill_f32(gpu, formats, |out| {
            Ok(vec![self.head_product(&latent.values, &x, out, (0, width))?])
        })?);
        Ok(())
    }

    /// Products of pairs of a row and a head with the head's matrix, into parts of rows of `width`
    /// values from `first` on.
    fn head_product(
        &self,
        matrix: &ExpertMatrix,
        x: &Activations,
        out: &Buffer,
        (first, width): (u32, u32),
    ) -> Result<Dispatch> {
        let LatentRows { pairs, sorted, .. } = self.rows.latent();
        let gpu = self.parts.gpu;
        if self.sorts() {
            matrix.gemm(gpu, x, (pairs, sorted), out, (first, width))
        } else {
            matrix.product(gpu, x, pairs, out, (first, width))
        }
    }

    /// Pairing of dimensions in RoPE.
    pub(super) fn layout(&self) -> RopeLayout {
        match self.parts.config.decoder.rope_layout {
            ruvllm_kernels::rope::RopeLayout::Halves => RopeLayout::Halves,
            ruvllm_kernels::rope::RopeLayout::Interleaved => RopeLayout::Interleaved,
        }
    }
}
