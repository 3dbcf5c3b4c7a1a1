//! Loading of token mixers.

use ruvllm_kernels::quant::PackedMatrix;

use super::linear::{Joint, linear};
use super::source::TensorSource;
use super::{
    AttentionWeights, ConvolutionWeights, DeltaNetWeights, LatentWeights, Linear, Mamba2Weights, Mixer,
    ParallelWeights, SharedAttentionWeights,
};
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::family::{
    DecoderSpec, DeltaNet, LatentAttention, LayerParts, Mamba2, Projections, RecurrentMixer, ShortConvolution,
};
use crate::interleaved;

/// Loads what a layer computes across tokens.
pub(super) fn load_mixer(
    source: &mut TensorSource<'_>,
    config: &ModelConfig,
    layer: usize,
    name: &dyn Fn(&str) -> String,
) -> Result<Mixer> {
    if config.decoder.layers.parts_of(layer) == LayerParts::Network {
        return Ok(Mixer::None);
    }
    let recurrent = config.decoder.recurrent.as_ref().filter(|recurrent| recurrent.layers[layer]);
    if let Some(latent) = &config.decoder.latent {
        return Ok(Mixer::Latent(load_latent(source, config, latent, name)?));
    }
    Ok(match recurrent.map(|recurrent| &recurrent.mixer) {
        None if config.decoder.layers.kv_source(layer) != layer => {
            Mixer::SharedAttention(load_shared_attention(source, config, layer, name)?)
        }
        None => Mixer::Attention(load_attention(source, config, layer, name)?),
        Some(RecurrentMixer::DeltaNet(net)) => {
            Mixer::DeltaNet(load_delta_net(source, net, config.model_dim, name)?)
        }
        Some(RecurrentMixer::ShortConvolution(convolution)) => {
            Mixer::ShortConvolution(load_convolution(source, convolution, name)?)
        }
        Some(RecurrentMixer::Mamba2(mamba)) if config.decoder.has_attention(layer) => {
            let mamba2 = load_mamba2(source, mamba, config.model_dim, name)?;
            let attention = load_attention(source, config, layer, name)?;
            Mixer::Parallel(Box::new(ParallelWeights { mamba2, attention }))
        }
        Some(RecurrentMixer::Mamba2(mamba)) => {
            Mixer::Mamba2(load_mamba2(source, mamba, config.model_dim, name)?)
        }
    })
}

fn load_attention(
    source: &mut TensorSource<'_>,
    config: &ModelConfig,
    layer: usize,
    name: &dyn Fn(&str) -> String,
) -> Result<AttentionWeights> {
    let (model_dim, heads) = (config.model_dim, config.heads(layer));
    let (query_dim, kv_dim) = (heads.query_dim(), heads.kv_dim());
    let decoder = &config.decoder;
    let has_values = has_values(source, config, layer);
    let (query, key, value) = match decoder.projections {
        Projections::Separate | Projections::JointFeedForward => (
            linear(source, &name("attn_q"), query_dim * decoder.query_parts(), model_dim)?,
            linear(source, &name("attn_k"), kv_dim, model_dim)?,
            has_values.then(|| linear(source, &name("attn_v"), kv_dim, model_dim)).transpose()?,
        ),
        Projections::Joint => {
            let mut joint = Joint::load(source, &name("attn_qkv"), query_dim + 2 * kv_dim, model_dim)?;
            (joint.next(query_dim)?, joint.next(kv_dim)?, Some(joint.next(kv_dim)?))
        }
    };
    let is_absent = decoder.optional_head_norms && !source.has(&name("attn_q_norm.weight"));
    let has_norms = (decoder.head_norms || decoder.row_norms) && !is_absent;
    let norm_dims = if decoder.row_norms { [query_dim, kv_dim] } else { [heads.head_dim; 2] };
    let has_unit_norms = decoder.unit_head_norms && config.rotates(layer);
    let mut norm = |part: &str, len| match has_norms {
        true => source.vector(&name(part), len).map(Some),
        false => Ok(has_unit_norms.then(|| vec![1.0; len])),
    };
    Ok(AttentionWeights {
        query,
        key,
        value,
        query_norm: norm("attn_q_norm.weight", norm_dims[0])?,
        key_norm: norm("attn_k_norm.weight", norm_dims[1])?,
        value_norm: decoder.layers.value_norms.then(|| vec![1.0; heads.head_dim]),
        sinks: decoder.sinks.then(|| load_sinks(source, config, name)).transpose()?,
        output: linear(source, &name("attn_output"), model_dim, query_dim)?,
    })
}

/// True if a layer has a projection to values: where values may be keys, if it has a window, or any
/// layer without one has such a projection.
fn has_values(source: &TensorSource<'_>, config: &ModelConfig, layer: usize) -> bool {
    let DecoderSpec { window, layers, .. } = &config.decoder;
    let sees_all = |layer: &usize| window.of_layer(*layer).is_none();
    let mut alike = (0..config.n_layers).filter(sees_all).filter(|&layer| layers.kv_source(layer) == layer);
    !layers.optional_values
        || !sees_all(&layer)
        || alike.any(|layer| source.has(&format!("blk.{layer}.attn_v.weight")))
}

/// Files may hold keys and values that are never used.
fn load_shared_attention(
    source: &mut TensorSource<'_>,
    config: &ModelConfig,
    layer: usize,
    name: &dyn Fn(&str) -> String,
) -> Result<SharedAttentionWeights> {
    let heads = config.heads(layer);
    for part in ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"] {
        source.skip(&name(part));
    }
    let has_norm = config.decoder.head_norms;
    let mut norm = |part: &str| has_norm.then(|| source.vector(&name(part), heads.head_dim)).transpose();
    Ok(SharedAttentionWeights {
        query_norm: norm("attn_q_norm.weight")?,
        query: linear(source, &name("attn_q"), heads.query_dim(), config.model_dim)?,
        output: linear(source, &name("attn_output"), config.model_dim, heads.query_dim())?,
    })
}

fn load_latent(
    source: &mut TensorSource<'_>,
    config: &ModelConfig,
    latent: &LatentAttention,
    name: &dyn Fn(&str) -> String,
) -> Result<LatentWeights> {
    let (n_heads, model_dim) = (config.n_heads, config.model_dim);
    let queries = n_heads * latent.query_dim();
    let (query_latent, query) = match latent.query_rank {
        None => (None, linear(source, &name("attn_q"), queries, model_dim)?),
        Some(rank) => {
            let down = linear(source, &name("attn_q_a"), rank, model_dim)?;
            let norm = source.vector(&name("attn_q_a_norm.weight"), rank)?;
            (Some((down, norm)), linear(source, &name("attn_q_b"), queries, rank)?)
        }
    };
    let LatentAttention { rank, still_dim, rotary_dim, value_dim, .. } = *latent;
    Ok(LatentWeights {
        query_latent,
        query,
        latent: linear(source, &name("attn_kv_a_mqa"), rank + rotary_dim, model_dim)?,
        latent_norm: source.vector(&name("attn_kv_a_norm.weight"), rank)?,
        keys: source.matrices(&name("attn_k_b.weight"), n_heads, rank, still_dim)?,
        values: source.matrices(&name("attn_v_b.weight"), n_heads, value_dim, rank)?,
        output: linear(source, &name("attn_output"), model_dim, n_heads * value_dim)?,
    })
}

/// A sink that is not finite would make all outputs of its head NaN, or zero.
fn load_sinks(
    source: &mut TensorSource<'_>,
    config: &ModelConfig,
    name: &dyn Fn(&str) -> String,
) -> Result<Vec<f32>> {
    let name = name("attn_sinks.weight");
    let sinks = source.vector(&name, config.n_heads)?;
    match sinks.iter().position(|sink| !sink.is_finite()) {
        None => Ok(sinks),
        Some(index) => {
            let (found, expected) = (sinks[index], "a finite number".to_owned());
            Err(Error::TensorValue { name, index, found, expected })
        }
    }
}

fn without_bias(weights: PackedMatrix) -> Linear {
    Linear { weights, bias: None }
}

/// Grouped heads have their rates and decays interleaved by key head in one tensor, and in older
/// files their other projections too.
fn load_delta_net(
    source: &mut TensorSource<'_>,
    net: &DeltaNet,
    model_dim: usize,
    name: &dyn Fn(&str) -> String,
) -> Result<DeltaNetWeights> {
    let (channels, values_dim, heads) = (net.channels(), net.values_dim(), net.value_heads);
    // The norm divides by the root of the mean, which is the sum by the width.
    let width = net.key_dim as f32;
    let per_key = heads / net.key_heads;
    let [input, gate] = if net.is_grouped && source.has(&name("ssm_in.weight")) {
        let (keys, values) = (net.key_dim, per_key * net.value_dim);
        let [queries, keys, values, gates] = interleaved::parts(net.key_heads, [keys, keys, values, values]);
        let inputs = [queries, keys, values].concat();
        let rows = (channels + values_dim, model_dim);
        source.gathered(&name("ssm_in.weight"), rows, [&inputs, &gates])?.map(without_bias)
    } else {
        let input = linear(source, &name("attn_qkv"), channels, model_dim)?;
        [input, linear(source, &name("attn_gate"), values_dim, model_dim)?]
    };
    let [rate, decay] = if net.is_grouped {
        let [rates, decays] = interleaved::parts(net.key_heads, [per_key, per_key]);
        let rows = (2 * heads, model_dim);
        source.gathered(&name("ssm_ba.weight"), rows, [&rates, &decays])?.map(without_bias)
    } else {
        let rate = linear(source, &name("ssm_beta"), heads, model_dim)?;
        [rate, linear(source, &name("ssm_alpha"), heads, model_dim)?]
    };
    Ok(DeltaNetWeights {
        input,
        gate,
        decay,
        decay_bias: source.vector(&name("ssm_dt.bias"), heads)?,
        decay_factor: source.vector(&name("ssm_a"), heads)?,
        rate,
        convolution: load_taps(source, &name("ssm_conv1d.weight"), net.taps, channels)?,
        scaled: vec![width.recip(); net.key_dim],
        unit: vec![width.sqrt().recip(); net.key_dim],
        norm: source.vector(&name("ssm_norm.weight"), net.value_dim)?,
        output: linear(source, &name("ssm_out"), model_dim, values_dim)?,
    })
}

fn load_convolution(
    source: &mut TensorSource<'_>,
    &ShortConvolution { channels, taps }: &ShortConvolution,
    name: &dyn Fn(&str) -> String,
) -> Result<ConvolutionWeights> {
    Ok(ConvolutionWeights {
        input: linear(source, &name("shortconv.in_proj"), 3 * channels, channels)?,
        convolution: load_taps(source, &name("shortconv.conv.weight"), taps, channels)?,
        output: linear(source, &name("shortconv.out_proj"), channels, channels)?,
    })
}

fn load_mamba2(
    source: &mut TensorSource<'_>,
    mamba: &Mamba2,
    model_dim: usize,
    name: &dyn Fn(&str) -> String,
) -> Result<Mamba2Weights> {
    let (inner_dim, channels, heads) = (mamba.inner_dim(), mamba.channels(), mamba.heads);
    let norm = name("ssm_norm.weight");
    let has_norm = !mamba.optional_norm || source.has(&norm);
    let norm_dims = [inner_dim / mamba.groups, mamba.groups];
    let mut joint = Joint::load(source, &name("ssm_in"), inner_dim + channels + heads, model_dim)?;
    Ok(Mamba2Weights {
        gate: joint.next(inner_dim)?,
        input: joint.next(channels)?,
        step: joint.next(heads)?,
        step_bias: source.vector(&name("ssm_dt.bias"), heads)?,
        decay_factor: source.values(&name("ssm_a"), &[1, heads])?,
        skip: source.values(&name("ssm_d"), &[1, heads])?,
        convolution: load_taps(source, &name("ssm_conv1d.weight"), mamba.taps, channels)?,
        convolution_bias: source.optional_vector(&name("ssm_conv1d.bias"), channels)?,
        norm: has_norm.then(|| source.values(&norm, &norm_dims)).transpose()?,
        output: linear(source, &name("ssm_out"), model_dim, inner_dim)?,
    })
}

/// Weights of a convolution, `[taps, channels]`; files have those of a channel side by side.
fn load_taps(source: &mut TensorSource<'_>, name: &str, taps: usize, channels: usize) -> Result<Vec<f32>> {
    let by_channel = source.values(name, &[taps, channels])?;
    let by_tap = (0..taps).flat_map(|tap| by_channel.iter().skip(tap).step_by(taps));
    Ok(by_tap.copied().collect())
}
