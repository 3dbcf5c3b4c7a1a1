//! Weights of layers with a state on the device.

use ruvllm_gpu::{
    Buffer, ConvolutionForm, ConvolutionKernel, DeltaRuleKernel, Format, GateKernel, GateNorm,
    SelectiveScanKernel,
};
use ruvllm_models::{
    ConvolutionWeights, DeltaNet, DeltaNetWeights, Mamba2, Mamba2Weights, Mixer, ModelConfig, RecurrentMixer,
    ShortConvolution,
};

use crate::backend::gpu::refusal::Refusal;
use crate::backend::gpu::uploads::{Projection, Uploader};

/// Recursion behind the convolution.
#[derive(Debug)]
pub(super) enum Recursion {
    /// Gated delta rule.
    DeltaRule(DeltaRuleKernel),
    /// Selective scan (Mamba-2).
    SelectiveScan(SelectiveScanKernel),
}

/// Heads behind a convolution, and the gates of their outputs.
#[derive(Debug)]
pub(super) struct StateHeads {
    pub(super) recursion: Recursion,
    /// Decays and rates, or time steps.
    pub(super) factors: Projection,
    /// Biases and factors of the decays, of a scan also the skips: `[2 or 3, heads]`.
    pub(super) heads: Buffer,
    pub(super) gate: GateKernel,
    pub(super) norm: Option<Buffer>,
}

/// Weights of what a layer computes with a state.
#[derive(Debug)]
pub(in crate::backend::gpu) struct DeviceState {
    /// Inputs of the convolution, and the gates of the output behind them.
    pub(super) input: Projection,
    pub(super) convolution: ConvolutionKernel,
    /// `[taps, channels]`.
    pub(super) taps: Buffer,
    pub(super) bias: Option<Buffer>,
    /// `None` for a convolution alone.
    pub(super) heads: Option<StateHeads>,
    pub(super) output: Projection,
}

impl DeviceState {
    /// Allocates what a layer computes with a state; `None` for one without. `name` names tensors.
    pub(in crate::backend::gpu) fn allocate<'m>(
        uploader: &mut Uploader<'_, 'm>,
        config: &ModelConfig,
        name: &dyn Fn(&str) -> String,
        mixer: &'m Mixer,
    ) -> Result<Option<Self>, Refusal> {
        let eps = config.norm_eps.to_bits();
        let Some(recurrent) = &config.decoder.recurrent else { return Ok(None) };
        Ok(match (mixer, &recurrent.mixer) {
            (Mixer::DeltaNet(weights), RecurrentMixer::DeltaNet(net)) => {
                Some(delta_net(uploader, net, eps, name, weights)?)
            }
            (Mixer::Mamba2(weights), RecurrentMixer::Mamba2(mamba)) => {
                Some(mamba2(uploader, mamba, eps, name, weights)?)
            }
            (Mixer::Parallel(weights), RecurrentMixer::Mamba2(mamba)) => {
                Some(mamba2(uploader, mamba, eps, name, &weights.mamba2)?)
            }
            (Mixer::ShortConvolution(weights), RecurrentMixer::ShortConvolution(convolution)) => {
                Some(short_convolution(uploader, convolution, name, weights)?)
            }
            _ => None,
        })
    }

    /// Formats of the matrices that read the norm of the layer's input.
    pub(in crate::backend::gpu) fn formats(&self) -> impl Iterator<Item = Format> {
        self.input.formats().chain(self.heads.iter().flat_map(|heads| heads.factors.formats()))
    }

    /// Projections of every token.
    pub(in crate::backend::gpu) fn projections(&self) -> impl Iterator<Item = &Projection> {
        let factors = self.heads.iter().map(|heads| &heads.factors);
        [&self.input, &self.output].into_iter().chain(factors)
    }
}

fn delta_net<'m>(
    uploader: &mut Uploader<'_, 'm>,
    net: &DeltaNet,
    eps: u32,
    name: &dyn Fn(&str) -> String,
    weights: &'m DeltaNetWeights,
) -> Result<DeviceState, Refusal> {
    let (channels, heads, value_dim) = (net.channels() as u32, net.value_heads as u32, net.value_dim as u32);
    let width = channels + net.values_dim() as u32;
    let [input, gate, decay, rate, output] =
        ["attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta", "ssm_out"].map(name);
    let form = ConvolutionForm::Silu { biased: false };
    Ok(DeviceState {
        input: uploader.projection(&[(&input, &weights.input), (&gate, &weights.gate)])?,
        convolution: convolution_key(form, channels, net.taps, width),
        taps: uploader.vector(&weights.convolution)?,
        bias: None,
        heads: Some(StateHeads {
            recursion: Recursion::DeltaRule(DeltaRuleKernel {
                key_heads: net.key_heads as u32,
                value_heads: heads,
                key_dim: net.key_dim as u32,
                value_dim,
                grouped: net.is_grouped,
            }),
            factors: uploader.projection(&[(&decay, &weights.decay), (&rate, &weights.rate)])?,
            heads: uploader.vector(&[&weights.decay_bias[..], &weights.decay_factor].concat())?,
            gate: GateKernel {
                groups: heads,
                dim: value_dim,
                width,
                first: channels,
                step: value_dim,
                silu: true,
                norm: GateNorm::Before(eps),
            },
            norm: Some(uploader.vector(&weights.norm)?),
        }),
        output: uploader.projection(&[(&output, &weights.output)])?,
    })
}

fn mamba2<'m>(
    uploader: &mut Uploader<'_, 'm>,
    mamba: &Mamba2,
    eps: u32,
    name: &dyn Fn(&str) -> String,
    weights: &'m Mamba2Weights,
) -> Result<DeviceState, Refusal> {
    let (channels, inner) = (mamba.channels() as u32, mamba.inner_dim() as u32);
    let [heads, head_dim, groups] = [mamba.heads, mamba.head_dim, mamba.groups].map(|size| size as u32);
    let width = channels + inner;
    // One tensor has the rows of all three.
    let [joint, output] = ["ssm_in", "ssm_out"].map(name);
    let form = ConvolutionForm::Silu { biased: weights.convolution_bias.is_some() };
    let gates = |groups: u32, norm| {
        let dim = inner / groups;
        GateKernel { groups, dim, width, first: channels, step: dim, silu: true, norm }
    };
    let parts = [&weights.step_bias[..], &weights.decay_factor, &weights.skip];
    Ok(DeviceState {
        input: uploader.projection(&[(&joint, &weights.input), (&joint, &weights.gate)])?,
        convolution: convolution_key(form, channels, mamba.taps, width),
        taps: uploader.vector(&weights.convolution)?,
        bias: uploader.optional(weights.convolution_bias.as_deref())?,
        heads: Some(StateHeads {
            recursion: Recursion::SelectiveScan(SelectiveScanKernel {
                heads,
                head_dim,
                groups,
                state_dim: mamba.state_dim as u32,
            }),
            factors: uploader.projection(&[(&joint, &weights.step)])?,
            heads: uploader.vector(&parts.concat())?,
            gate: match weights.norm {
                Some(_) => gates(groups, GateNorm::Behind(eps)),
                None => gates(heads, GateNorm::None),
            },
            norm: uploader.optional(weights.norm.as_deref())?,
        }),
        output: uploader.projection(&[(&output, &weights.output)])?,
    })
}

fn short_convolution<'m>(
    uploader: &mut Uploader<'_, 'm>,
    &ShortConvolution { channels, taps, .. }: &ShortConvolution,
    name: &dyn Fn(&str) -> String,
    weights: &'m ConvolutionWeights,
) -> Result<DeviceState, Refusal> {
    let [input, output] = ["shortconv.in_proj", "shortconv.out_proj"].map(name);
    Ok(DeviceState {
        input: uploader.projection(&[(&input, &weights.input)])?,
        convolution: convolution_key(ConvolutionForm::Gated, channels as u32, taps, 3 * channels as u32),
        taps: uploader.vector(&weights.convolution)?,
        bias: None,
        heads: None,
        output: uploader.projection(&[(&output, &weights.output)])?,
    })
}

fn convolution_key(form: ConvolutionForm, channels: u32, taps: usize, width: u32) -> ConvolutionKernel {
    ConvolutionKernel { form, channels, taps: taps as u32, width, one_sequence: false }
}
