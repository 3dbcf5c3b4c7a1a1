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

/// Names of layers in the first files of Granite 4, and those that transformers 5 writes.
const GRANITE_ATTENTION: &[&str] = &["attention", ATTENTION];
const GRANITE_MAMBA: &[&str] = &["mamba", "linear_attention"];

/// Computation of the layers with a state that a family has beside those with attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recurrent {
    DeltaNet,
    /// The same with the value heads of one key head side by side in GGUF too, and projections
    /// that are interleaved by key head.
    GroupedDeltaNet,
    ShortConvolution,
    Mamba2,
}

impl Recurrent {
    /// Reads the sizes, and the layers that have a state, `[n_layers]`.
    pub(super) fn read(self, config: &Fields<'_>, n_layers: usize) -> Result<(RecurrentSizes, Vec<bool>)> {
        let count = |key: &str, max: usize, default: usize| -> Result<usize> {
            Ok(config.count(key, 1..=max)?.unwrap_or(default))
        };
        match self {
            Self::DeltaNet | Self::GroupedDeltaNet => {
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
                    is_in_order: self == Self::GroupedDeltaNet,
                };
                let interval = count("full_attention_interval", MAX_LAYERS, 4)?;
                let usual = || (1..=n_layers).map(|layer| !layer.is_multiple_of(interval)).collect();
                let names = [&[ATTENTION][..], &["linear_attention"]];
                Ok((sizes, read_layers(config, names, n_layers)?.unwrap_or_else(usual)))
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
                let names = [&[ATTENTION][..], &["conv"]];
                Ok((sizes, read_layers(config, names, n_layers)?.unwrap_or_else(usual)))
            }
            Self::Mamba2 => {
                let sizes = read_mamba2(config)?;
                let names = [GRANITE_ATTENTION, GRANITE_MAMBA];
                let expected = "a list with `attention` or `mamba` for each layer";
                let layers = read_layers(config, names, n_layers)?
                    .ok_or_else(|| config.missing(LAYER_TYPES, expected))?;
                if layers.iter().all(|&is_recurrent| is_recurrent) {
                    let expected = "layers of which at least one is `attention`";
                    return Err(config.invalid(LAYER_TYPES, expected));
                }
                Ok((sizes, layers))
            }
        }
    }

    /// Writes the keys of these layers.
    pub(super) fn write(self, sizes: &Sizes, layers: &[bool], keys: &mut Keys) {
        let recurrent = &sizes.recurrent;
        match self {
            Self::DeltaNet | Self::GroupedDeltaNet => {
                write_sizes(recurrent, keys);
                keys.flags("attention.recurrent_layers", layers.to_vec());
                let interval =
                    layers.iter().position(|&is_recurrent| !is_recurrent).map_or(1, |first| first + 1);
                keys.count("full_attention_interval", interval);
            }
            Self::ShortConvolution => {
                keys.count("shortconv.l_cache", recurrent.taps);
                write_heads(sizes, layers, keys);
            }
            Self::Mamba2 => {
                write_sizes(recurrent, keys);
                write_heads(sizes, layers, keys);
            }
        }
    }
}

fn write_sizes(sizes: &RecurrentSizes, keys: &mut Keys) {
    keys.count("ssm.conv_kernel", sizes.taps);
    keys.count("ssm.state_size", sizes.key_dim);
    keys.count("ssm.group_count", sizes.key_heads);
    keys.count("ssm.time_step_rank", sizes.value_heads);
    keys.count("ssm.inner_size", sizes.values());
}

/// Heads of keys and values of each layer; those with a state have none.
fn write_heads(sizes: &Sizes, layers: &[bool], keys: &mut Keys) {
    let heads = |&is_recurrent: &bool| if is_recurrent { 0 } else { sizes.n_kv_heads as i32 };
    keys.array("attention.head_count_kv", Array::I32(layers.iter().map(heads).collect()));
}

/// Sizes of Mamba-2: keys are `B` and `C` of groups of heads, values what enters the heads.
fn read_mamba2(config: &Fields<'_>) -> Result<RecurrentSizes> {
    const HEADS: &str = "mamba_n_heads";
    const WIDTH: &str = "mamba_d_head";
    const GROUPS: &str = "mamba_n_groups";
    const LIMIT: &str = "time_step_limit";
    let count = |key: &str, max: usize, default: usize| -> Result<usize> {
        Ok(config.count(key, 1..=max)?.unwrap_or(default))
    };
    let heads = count(HEADS, MAX_WIDTH, 128)?;
    let groups = count(GROUPS, MAX_WIDTH, 1)?;
    if !heads.is_multiple_of(groups) {
        return Err(config.invalid(GROUPS, format!("a divisor of the {heads} heads of {HEADS}")));
    }
    let model_dim = config.require_count("hidden_size", 1..=MAX_WIDTH)?;
    let inner_dim = count("mamba_expand", MAX_WIDTH / model_dim, 2)?.saturating_mul(model_dim);
    let named = match config.get(WIDTH).and_then(Value::as_str) {
        Some("auto") => None,
        _ => config.count(WIDTH, 1..=MAX_WIDTH)?,
    };
    let head_dim = named.unwrap_or(inner_dim / heads);
    if head_dim.saturating_mul(heads) != inner_dim {
        let expected = format!("as many heads of {WIDTH} {head_dim} as make {inner_dim}, mamba_expand times");
        return Err(config.invalid(HEADS, format!("{expected} hidden_size")));
    }
    // transformers writes infinity as an object.
    let is_infinite = |value: &Value| value.get("__float__").and_then(Value::as_str) == Some("Infinity");
    let is_open =
        |limit: &[Value]| matches!(limit, [least, most] if least.as_f64() == Some(0.0) && is_infinite(most));
    if config.list(LIMIT)?.is_some_and(|limit| !is_open(limit)) {
        return Err(config.invalid(LIMIT, "0 and infinity: time steps are not limited"));
    }
    Ok(RecurrentSizes {
        key_heads: groups,
        value_heads: heads,
        key_dim: count("mamba_d_state", MAX_KEY_DIM, 256)?,
        value_dim: head_dim,
        taps: count("mamba_d_conv", MAX_TAPS, 4)?,
        is_in_order: true,
    })
}

/// The layers that `layer_types` calls by one of the second names, if it is there; the others have
/// the first names and attention.
fn read_layers(config: &Fields<'_>, names: [&[&str]; 2], n_layers: usize) -> Result<Option<Vec<bool>>> {
    let Some(listed) = config.list(LAYER_TYPES)? else { return Ok(None) };
    let is_recurrent = |kind: &Value| {
        let kind = kind.as_str()?;
        names.iter().position(|names| names.contains(&kind)).map(|place| place == 1)
    };
    let layers: Option<Vec<bool>> = listed.iter().map(is_recurrent).collect();
    match layers.filter(|layers| layers.len() == n_layers) {
        Some(layers) => Ok(Some(layers)),
        None => {
            let [attention, recurrent] = names.map(|names| names[0]);
            let expected = format!("`{attention}` or `{recurrent}` for each of {n_layers} layers");
            Err(config.invalid(LAYER_TYPES, expected))
        }
    }
}
