//! Loading of a layer: its mixer, networks and norms.

use super::linear::{Joint, linear};
use super::load_experts::{load_experts, load_shared};
use super::load_mixer::load_mixer;
use super::load_streams::load_layer_streams;
use super::source::TensorSource;
use super::{FeedForward, LayerInputWeights, LayerWeights};
use crate::config::ModelConfig;
use crate::error::Result;
use crate::family::{LayerParts, Projections};

/// Loads a layer of `config`; `name` makes the names of its tensors.
pub(super) fn load_layer(
    source: &mut TensorSource<'_>,
    config: &ModelConfig,
    layer: usize,
    name: &dyn Fn(&str) -> String,
) -> Result<LayerWeights> {
    let model_dim = config.model_dim;
    let decoder = &config.decoder;
    // Rotary frequencies that converters of 2023 stored per layer; they follow from the
    // configuration.
    source.skip(&name("attn_rot_embd.weight"));
    let mixer = load_mixer(source, config, layer, name)?;
    let parts = decoder.layers.parts_of(layer);
    let (feed_forward, experts) = match &decoder.experts {
        _ if parts == LayerParts::Mixer => (None, None),
        Some(experts) if experts.layers[layer] && experts.is_beside => {
            let network = load_feed_forward(source, config, experts.shared_dim, name)?;
            (Some(network), Some(load_experts(source, experts, model_dim, name)?))
        }
        Some(experts) if experts.layers[layer] => {
            let dims = (experts.shared_dim, model_dim);
            let is_gated = decoder.activation.is_gated();
            let shared = (experts.shared_dim > 0).then(|| load_shared(source, dims, is_gated, name));
            (shared.transpose()?, Some(load_experts(source, experts, model_dim, name)?))
        }
        dense => {
            let ffn_dim = dense.as_ref().map_or(config.ffn_dim_of(layer), |experts| experts.dense_dim);
            (Some(load_feed_forward(source, config, ffn_dim, name)?), None)
        }
    };
    let mut norm = |there: bool, part: &str, len| {
        if there { source.vector(&name(part), len).map(Some) } else { Ok(None) }
    };
    let has_norms = |without: LayerParts| decoder.input_norms && parts != without;
    let ffn_norm = if parts == LayerParts::Network { "attn_norm.weight" } else { decoder.ffn_norm_name };
    Ok(LayerWeights {
        attention_norm: norm(has_norms(LayerParts::Network), "attn_norm.weight", model_dim)?,
        attention_norm_bias: norm(decoder.layer_norms, "attn_norm.bias", model_dim)?,
        mixer,
        attention_post_norm: norm(decoder.post_norms, "post_attention_norm.weight", model_dim)?,
        ffn_post_norm: norm(decoder.post_norms, "post_ffw_norm.weight", model_dim)?,
        ffn_norm: norm(has_norms(LayerParts::Mixer), ffn_norm, model_dim)?,
        ffn_norm_bias: norm(decoder.layer_norms, "ffn_norm.bias", model_dim)?,
        feed_forward,
        experts,
        input: load_layer_input(source, config, name)?,
        streams: load_layer_streams(source, config, name)?,
        output_scale: load_output_scale(source, config, name)?,
    })
}

fn load_layer_input(
    source: &mut TensorSource<'_>,
    config: &ModelConfig,
    name: &dyn Fn(&str) -> String,
) -> Result<Option<LayerInputWeights>> {
    let (input_dim, model_dim) = (config.decoder.layers.input_dim, config.model_dim);
    if input_dim == 0 {
        return Ok(None);
    }
    Ok(Some(LayerInputWeights {
        gate: linear(source, &name("inp_gate"), input_dim, model_dim)?,
        output: linear(source, &name("proj"), model_dim, input_dim)?,
        norm: source.vector(&name("post_norm.weight"), model_dim)?,
    }))
}

/// The factor behind a layer, which files may leave out.
fn load_output_scale(
    source: &mut TensorSource<'_>,
    config: &ModelConfig,
    name: &dyn Fn(&str) -> String,
) -> Result<f32> {
    if !config.decoder.layers.output_scales {
        return Ok(1.0);
    }
    let scale = source.optional_vector(&name("layer_output_scale.weight"), 1)?;
    Ok(scale.map_or(1.0, |scale| scale[0]))
}

fn load_feed_forward(
    source: &mut TensorSource<'_>,
    config: &ModelConfig,
    ffn_dim: usize,
    name: &dyn Fn(&str) -> String,
) -> Result<FeedForward> {
    let model_dim = config.model_dim;
    let (gate, up) = match config.decoder.projections {
        _ if !config.decoder.activation.is_gated() => {
            (None, linear(source, &name("ffn_up"), ffn_dim, model_dim)?)
        }
        Projections::Separate => (
            Some(linear(source, &name("ffn_gate"), ffn_dim, model_dim)?),
            linear(source, &name("ffn_up"), ffn_dim, model_dim)?,
        ),
        Projections::Joint | Projections::JointFeedForward => {
            let mut joint = Joint::load(source, &name("ffn_up"), 2 * ffn_dim, model_dim)?;
            (Some(joint.next(ffn_dim)?), joint.next(ffn_dim)?)
        }
    };
    Ok(FeedForward { gate, up, down: linear(source, &name("ffn_down"), model_dim, ffn_dim)? })
}
