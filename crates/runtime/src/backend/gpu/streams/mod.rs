//! Several residual streams (`AltUp`) with a low-rank branch beside the mixer (`LAuReL`), on the
//! device (ADR-0151). A layer predicts all streams from themselves, computes the active one in the
//! residual stream of the pass, and corrects all by the difference.

mod launches;

use std::f32::consts::FRAC_1_SQRT_2;
use std::sync::OnceLock;

use ruvllm_gpu::{Buffer, Gpu, Result, StreamGates, StreamRows};
use ruvllm_kernels::quant::PackedMatrix;
use ruvllm_models::{LayerStreamWeights, ModelConfig, StreamWeights};

use super::inputs::{Input, PAD, zeroed};
use super::refusal::Refusal;
use super::uploads::{Part, Projection, Uploader};

/// Projections between the embedding or the final hidden state and all streams but the first.
#[derive(Debug)]
pub(super) struct DeviceStreams {
    key: StreamRows,
    /// To all streams, `[count, model_dim]` values per row of which it has no first.
    split: Projection,
    /// From each stream, into rows of `[count - 1, model_dim]` values.
    merge: Vec<Projection>,
    /// Square root of one half.
    share: Buffer,
}

/// Streams of a layer.
#[derive(Debug)]
pub(super) struct DeviceLayerStreams {
    norm: Buffer,
    router: Buffer,
    predict: Buffer,
    correct: Buffer,
    /// Factors of the corrected active stream.
    factors: Buffer,
    low_down: Projection,
    low_up: Projection,
    low_norm: Buffer,
}

/// Activations of `n` rows.
#[derive(Debug)]
pub(super) struct StreamBuffers {
    /// `[n, count, model_dim]`.
    pub(super) values: Buffer,
    /// The mixer's input and its low-rank projection, `[n, model_dim]`.
    pub(super) side: Buffer,
    /// The projection before its norm.
    update: Buffer,
    /// `[n, count - 1, model_dim]`.
    projected: Buffer,
    /// Low-rank inputs, of the rank that the weights have.
    low: OnceLock<Input>,
}

impl DeviceStreams {
    pub(super) fn allocate<'m>(
        uploader: &mut Uploader<'_, 'm>,
        config: &ModelConfig,
        weights: &'m StreamWeights,
    ) -> std::result::Result<Option<Self>, Refusal> {
        let Some(spec) = config.decoder.streams else { return Ok(None) };
        let (count, dim) = (spec.count as u32, config.model_dim as u32);
        let key = StreamRows { count, dim, active: spec.active as u32, eps_bits: config.norm_eps.to_bits() };
        let mut part = |name: &str, matrices: &[&'m PackedMatrix], first, outputs| {
            let matrix = uploader.stored(name, matrices)?;
            Ok(Projection { parts: vec![Part { matrix, first }], outputs, bias: None })
        };
        let all: Vec<_> = weights.split.iter().collect();
        let split = part("altup_proj.weight", &all, dim, count * dim)?;
        let merge = (0..).zip(&weights.merge);
        let merge = merge
            .map(|(at, matrix)| part("altup_unembd_proj.weight", &[matrix], at * dim, (count - 1) * dim))
            .collect::<std::result::Result<_, Refusal>>()?;
        Ok(Some(Self { key, split, merge, share: uploader.vector(&[FRAC_1_SQRT_2])? }))
    }
}

impl DeviceLayerStreams {
    pub(super) fn allocate<'m>(
        uploader: &mut Uploader<'_, 'm>,
        name: &dyn Fn(&str) -> String,
        weights: &'m LayerStreamWeights,
    ) -> std::result::Result<Self, Refusal> {
        let padded = weights.low_rank_down.weights.rows().next_multiple_of(PAD);
        Ok(Self {
            norm: uploader.vector(&weights.router_norm)?,
            router: uploader.vector(&weights.router)?,
            predict: uploader.vector(&weights.predict)?,
            correct: uploader.vector(&weights.correct)?,
            factors: uploader.vector(&weights.correct_scale)?,
            low_down: uploader.wide_projection(&[(&name("laurel_l"), &weights.low_rank_down)], padded)?,
            low_up: uploader.padded_projection(&name("laurel_r"), &weights.low_rank_up)?,
            low_norm: uploader.vector(&weights.low_rank_norm)?,
        })
    }

    /// Projections of every token.
    pub(super) fn projections(&self) -> [&Projection; 2] {
        [&self.low_down, &self.low_up]
    }

    fn gates<'s>(&'s self, shares: &'s Buffer) -> StreamGates<'s> {
        StreamGates { norm: &self.norm, router: &self.router, shares }
    }
}

impl StreamBuffers {
    /// Activations of `n` rows, in models with several streams.
    pub(super) fn new(gpu: &Gpu, config: &ModelConfig, n: u32) -> Result<Option<Self>> {
        let Some(spec) = config.decoder.streams else { return Ok(None) };
        let dim = config.model_dim;
        Ok(Some(Self {
            values: zeroed(gpu, n, spec.count * dim)?,
            side: zeroed(gpu, n, dim)?,
            update: zeroed(gpu, n, dim)?,
            projected: zeroed(gpu, n, (spec.count - 1) * dim)?,
            low: OnceLock::new(),
        }))
    }

    /// Low-rank inputs of this width.
    fn low(&self, gpu: &Gpu, n: u32, width: u32) -> Result<&Input> {
        if self.low.get().is_none() {
            let input = Input::new(gpu, n, width as usize)?;
            let _ = self.low.set(input);
        }
        Ok(self.low.get().expect("it was set above"))
    }
}
