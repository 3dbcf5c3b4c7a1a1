//! Layers with a state: which they are, and their sizes.

use gguf_rs_lite::Array;
use ruvllm_kernels::recurrence::MAX_TAPS;
use serde_json::Value;

use super::fields::Fields;
use super::heads::RecurrentSizes;
use super::keys::Keys;
use super::sizes::{MAX_LAYERS, MAX_WIDTH, Sizes};
use crate::error::Result;
use crate::family::MAX_KEY_DIM;

const LAYER_TYPES: &str = "layer_types";
const ATTENTION: &str = "full_attention";

/// Computation of the layers with a state that a family has beside those with attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recurrent {
    DeltaNet,
    ShortConvolution,
}

impl Recurrent {
    /// Reads the sizes, and the layers that have a state, `[n_layers]`.
    pub(super) fn read(self, config: &Fields<'_>, n_layers: usize) -> Result<(RecurrentSizes, Vec<bool>)> {
        let count = |key: &str, max: usize, default: usize| -> Result<usize> {
            Ok(config.count(key, 1..=max)?.unwrap_or(default))
        };
        match self {
            Self::DeltaNet => {
                const VALUE_HEADS: &str = "linear_num_value_heads";
                let key_heads = count("linear_num_key_heads", MAX_WIDTH, 16)?;
                let value_heads = count(VALUE_HEADS, MAX_WIDTH, 32)?;
                if !value_heads.is_multiple_of(key_heads) {
                    let expected = format!("a multiple of the {key_heads} heads of keys");
                    return Err(config.invalid(VALUE_HEADS, expected));
                }
                let sizes = RecurrentSizes {
                    key_heads,
                    value_heads,
                    key_dim: count("linear_key_head_dim", MAX_KEY_DIM, 128)?,
                    value_dim: count("linear_value_head_dim", MAX_KEY_DIM, 128)?,
                    taps: count("linear_conv_kernel_dim", MAX_TAPS, 4)?,
                };
                let interval = count("full_attention_interval", MAX_LAYERS, 4)?;
                let usual = || (1..=n_layers).map(|layer| !layer.is_multiple_of(interval)).collect();
                Ok((sizes, read_layers(config, "linear_attention", n_layers)?.unwrap_or_else(usual)))
            }
            Self::ShortConvolution => {
                const BIAS: &str = "conv_bias";
                if config.flag(BIAS)? == Some(true) {
                    return Err(config.invalid(BIAS, "false: convolutions with biases cannot be computed"));
                }
                let sizes =
                    RecurrentSizes { taps: count("conv_L_cache", MAX_TAPS, 3)?, ..RecurrentSizes::default() };
                let listed = config.list("full_attn_idxs")?;
                let has_attention = |layer: usize| match listed {
                    Some(listed) => listed.iter().any(|index| index.as_u64() == Some(layer as u64)),
                    None => true,
                };
                let usual = || (0..n_layers).map(|layer| !has_attention(layer)).collect();
                Ok((sizes, read_layers(config, "conv", n_layers)?.unwrap_or_else(usual)))
            }
        }
    }

    /// Writes the keys of these layers.
    pub(super) fn write(self, sizes: &Sizes, layers: &[bool], keys: &mut Keys) {
        let recurrent = &sizes.recurrent;
        match self {
            Self::DeltaNet => {
                keys.count("ssm.conv_kernel", recurrent.taps);
                keys.count("ssm.state_size", recurrent.key_dim);
                keys.count("ssm.group_count", recurrent.key_heads);
                keys.count("ssm.time_step_rank", recurrent.value_heads);
                keys.count("ssm.inner_size", recurrent.values());
                keys.flags("attention.recurrent_layers", layers.to_vec());
                let interval =
                    layers.iter().position(|&is_recurrent| !is_recurrent).map_or(1, |first| first + 1);
                keys.count("full_attention_interval", interval);
            }
            Self::ShortConvolution => {
                keys.count("shortconv.l_cache", recurrent.taps);
                let heads = |&is_recurrent: &bool| if is_recurrent { 0 } else { sizes.n_kv_heads as i32 };
                let heads = Array::I32(layers.iter().map(heads).collect());
                keys.array("attention.head_count_kv", heads);
            }
        }
    }
}

/// The layers that `layer_types` calls `name`, if it is there.
fn read_layers(config: &Fields<'_>, name: &str, n_layers: usize) -> Result<Option<Vec<bool>>> {
    let Some(listed) = config.list(LAYER_TYPES)? else { return Ok(None) };
    let is_recurrent = |kind: &Value| match kind.as_str() {
        Some(ATTENTION) => Some(false),
        Some(kind) if kind == name => Some(true),
        _ => None,
    };
    let layers: Option<Vec<bool>> = listed.iter().map(is_recurrent).collect();
    match layers.filter(|layers| layers.len() == n_layers) {
        Some(layers) => Ok(Some(layers)),
        None => {
            let expected = format!("`{ATTENTION}` or `{name}` for each of {n_layers} layers");
            Err(config.invalid(LAYER_TYPES, expected))
        }
    }
}
