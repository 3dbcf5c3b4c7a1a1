//! Loading of several residual streams.

use super::linear::linear;
use super::source::TensorSource;
use super::{LayerStreamWeights, StreamWeights};
use crate::config::ModelConfig;
use crate::error::Result;

pub(super) fn load_streams(
    source: &mut TensorSource<'_>,
    config: &ModelConfig,
) -> Result<Option<StreamWeights>> {
    let Some(streams) = config.decoder.streams else { return Ok(None) };
    let (n, dim) = (streams.count - 1, config.model_dim);
    Ok(Some(StreamWeights {
        split: source.matrices("altup_proj.weight", n, dim, dim)?,
        merge: source.matrices("altup_unembd_proj.weight", n, dim, dim)?,
    }))
}

pub(super) fn load_layer_streams(
    source: &mut TensorSource<'_>,
    config: &ModelConfig,
    name: &dyn Fn(&str) -> String,
) -> Result<Option<LayerStreamWeights>> {
    let Some(streams) = config.decoder.streams else { return Ok(None) };
    let (n, dim) = (streams.count, config.model_dim);
    let mut router_norm = source.vector(&name("altup_router_norm.weight"), dim)?;
    let scale = (dim as f32).recip();
    router_norm.iter_mut().for_each(|weight| *weight *= scale);
    // No key names it.
    let rank = source.rows(&name("laurel_l.weight"))?;
    Ok(Some(LayerStreamWeights {
        router_norm,
        router: source.values(&name("altup_router.weight"), &[dim, n])?,
        predict: source.values(&name("altup_predict_coef.weight"), &[n, n * n])?,
        correct: source.values(&name("altup_correct_coef.weight"), &[n, n])?,
        correct_scale: source.vector(&name("altup_correct_scale.weight"), dim)?,
        low_rank_down: linear(source, &name("laurel_l"), rank, dim)?,
        low_rank_up: linear(source, &name("laurel_r"), dim, rank)?,
        low_rank_norm: source.vector(&name("laurel_post_norm.weight"), dim)?,
    }))
}
