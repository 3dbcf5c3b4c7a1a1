//! Layers with a state: which they are, and their sizes.

use ruvllm_kernels::recurrence::MAX_TAPS;
use serde_json::Value;

use super::fields::Fields;
use super::heads::RecurrentSizes;
use super::keys::Keys;
use super::mamba;
use super::roles::{self, Role};
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
    /// Mamba-2, in layers of one part each.
    Mamba2Alone,
    /// Mamba-2 beside attention in every layer.
    Mamba2Beside,
}

impl Recurrent {
    /// Reads the number of layers.
    pub(super) fn read_count(self, config: &Fields<'_>) -> Result<usize> {
        match self {
            Self::Mamba2Alone => Ok(roles::read(config)?.len()),
            _ => config.require_count("num_hidden_layers", 1..=MAX_LAYERS),
        }
    }

    /// Reads the sizes, and the roles of layers, `[n_layers]`.
    pub(super) fn read(self, config: &Fields<'_>, n_layers: usize) -> Result<(RecurrentSizes, Vec<Role>)> {
        let (sizes, has_state) = match self {
            Self::Mamba2Alone => return Ok((mamba::NEMOTRON.read(config)?, roles::read(config)?)),
            Self::Mamba2Beside => {
                const NORM: &str = "mamba_rms_norm";
                const ORDER: &str = "mamba_norm_before_gate";
                let has_norm = config.flag(NORM)?.unwrap_or(false);
                if has_norm && config.flag(ORDER)?.unwrap_or(true) {
                    let expected = "false: norms before the gate cannot be computed";
                    return Err(match config.get(ORDER) {
                        Some(_) => config.invalid(ORDER, expected),
                        None => config.missing(ORDER, expected),
                    });
                }
                let sizes = RecurrentSizes { has_norm, ..mamba::FALCON.read(config)? };
                return Ok((sizes, vec![Role::State; n_layers]));
            }
            _ => self.read_hybrid(config, n_layers)?,
        };
        let role = |has_state| if has_state { Role::State } else { Role::Attention };
        Ok((sizes, has_state.into_iter().map(role).collect()))
    }

    /// Of families whose layers have a state or attention: the sizes, and true for layers with a
    /// state.
    fn read_hybrid(self, config: &Fields<'_>, n_layers: usize) -> Result<(RecurrentSizes, Vec<bool>)> {
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
                    has_norm: true,
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
            _ => {
                let sizes = mamba::GRANITE.read(config)?;
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
    pub(super) fn write(self, sizes: &Sizes, roles: &[Role], keys: &mut Keys) {
        let recurrent = &sizes.recurrent;
        match self {
            Self::DeltaNet | Self::GroupedDeltaNet => {
                write_sizes(recurrent, keys);
                let layers = roles.iter().map(|&role| role == Role::State).collect();
                keys.flags("attention.recurrent_layers", layers);
                let attention = roles.iter().position(|&role| role == Role::Attention);
                let interval = attention.map_or(1, |first| first + 1);
                keys.count("full_attention_interval", interval);
            }
            Self::ShortConvolution => {
                keys.count("shortconv.l_cache", recurrent.taps);
                roles::write_heads(sizes, roles, keys);
            }
            Self::Mamba2 => {
                write_sizes(recurrent, keys);
                roles::write_heads(sizes, roles, keys);
            }
            Self::Mamba2Alone => {
                write_sizes(recurrent, keys);
                roles::write(sizes, roles, keys);
            }
            Self::Mamba2Beside => write_sizes(recurrent, keys),
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
