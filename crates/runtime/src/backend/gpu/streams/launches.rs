//! Launches of residual streams.

use std::sync::Arc;

use ruvllm_gpu::{Result, RowPart, StreamRows};

use super::DeviceLayerStreams;
use crate::backend::gpu::launches::Builder;

impl Builder<'_> {
    /// Makes the streams from the embeddings in the residual stream.
    pub(in crate::backend::gpu) fn split_streams(&mut self) -> Result<()> {
        let rows = Arc::clone(&self.rows);
        let (Some(streams), Some(own)) = (&self.parts.weights.streams, &rows.streams) else { return Ok(()) };
        self.norm(None, streams.split.formats())?;
        self.project(&streams.split, |format| rows.normed.of(format), &own.values)?;
        self.launches.push(self.parts.gpu.split_streams(streams.key, &rows.residual, &own.values)?);
        Ok(())
    }

    /// Predicts the streams; the active one is then the residual stream.
    pub(in crate::backend::gpu) fn predict_streams(&mut self, layer: &DeviceLayerStreams) -> Result<()> {
        let rows = Arc::clone(&self.rows);
        let (Some(streams), Some(own)) = (&self.parts.weights.streams, &rows.streams) else { return Ok(()) };
        let gates = layer.gates(&layer.predict);
        let launch = self.parts.gpu.predict_streams(streams.key, &own.values, gates, &rows.residual)?;
        self.launches.push(launch);
        Ok(())
    }

    /// Computes the low-rank branch from the normed rows, in f32 and in the formats of its matrix.
    pub(in crate::backend::gpu) fn branch_off(&mut self, layer: &DeviceLayerStreams) -> Result<()> {
        let (gpu, eps) = (self.parts.gpu, self.parts.config.norm_eps);
        let rows = Arc::clone(&self.rows);
        let Some(own) = &rows.streams else { return Ok(()) };
        let low = own.low(gpu, rows.n, layer.low_down.outputs)?;
        self.project(&layer.low_down, |format| rows.normed.of(format), low.values())?;
        self.launches.extend(low.fill_f32(gpu, layer.low_up.formats(), |_| Ok(Vec::new()))?);
        self.project(&layer.low_up, |format| low.of(format), &own.update)?;
        let side = own.side.clone().into();
        self.launches.push(gpu.rms_norm(&own.update, &layer.low_norm, eps, rows.n, &side)?);
        self.launches.push(gpu.add(&own.side, rows.normed.values())?);
        Ok(())
    }

    /// Adds the mixer's pending output and the low-rank branch to the residual stream, and divides
    /// the sum by the square root of 2.
    pub(in crate::backend::gpu) fn merge_branch(&mut self) -> Result<()> {
        let rows = Arc::clone(&self.rows);
        let (Some(streams), Some(own)) = (&self.parts.weights.streams, &rows.streams) else { return Ok(()) };
        let gpu = self.parts.gpu;
        if let Some(pending) = self.pending.take() {
            self.launches.push(gpu.add(&rows.residual, &pending)?);
        }
        self.launches.push(gpu.add_and_scale(&rows.residual, &own.side, &streams.share)?);
        Ok(())
    }

    /// Corrects the streams by the residual stream with the pending output; it is then the input of
    /// the layer's embedding.
    pub(in crate::backend::gpu) fn correct_streams(&mut self, layer: &DeviceLayerStreams) -> Result<()> {
        let rows = Arc::clone(&self.rows);
        let (Some(streams), Some(own)) = (&self.parts.weights.streams, &rows.streams) else { return Ok(()) };
        let Some(pending) = self.pending.take() else { return Ok(()) };
        let (gates, hidden) = (layer.gates(&layer.correct), (&rows.residual, &pending));
        let gpu = self.parts.gpu;
        self.launches.push(gpu.correct_streams(streams.key, &own.values, gates, hidden, &layer.factors)?);
        Ok(())
    }

    /// Adds the pending output to all streams but the first.
    pub(in crate::backend::gpu) fn add_to_streams(&mut self) -> Result<()> {
        let rows = Arc::clone(&self.rows);
        if let (Some(streams), Some(own)) = (&self.parts.weights.streams, &rows.streams)
            && let Some(pending) = self.pending.take()
        {
            self.launches.push(self.parts.gpu.add_to_streams(streams.key, &own.values, &pending)?);
        }
        Ok(())
    }

    /// Merges the streams in the residual stream.
    pub(in crate::backend::gpu) fn merge_streams(&mut self) -> Result<()> {
        let rows = Arc::clone(&self.rows);
        let (Some(streams), Some(own)) = (&self.parts.weights.streams, &rows.streams) else { return Ok(()) };
        let (gpu, StreamRows { count, dim, .. }) = (self.parts.gpu, streams.key);
        for (stream, projection) in (1..).zip(&streams.merge) {
            let part = RowPart { values: dim, width: count * dim, first: stream * dim };
            self.launches.extend(rows.normed.fill(gpu, projection.formats(), true, |out| {
                Ok(vec![gpu.copy_part(part, &own.values, (rows.n, dim), out)?])
            })?);
            self.project(projection, |format| rows.normed.of(format), &own.projected)?;
        }
        let operands = (&own.values, &own.projected);
        self.launches.push(gpu.merge_streams(streams.key, operands, &rows.residual)?);
        Ok(())
    }
}
