//! Sizes of Mamba-2 in `config.json`.

use ruvllm_kernels::recurrence::MAX_TAPS;
use serde_json::Value;

use super::fields::Fields;
use super::heads::RecurrentSizes;
use super::sizes::MAX_WIDTH;
use crate::error::Result;
use crate::family::MAX_KEY_DIM;

/// Fields of a family, and defaults where they are absent.
pub(super) struct MambaFields {
    heads: (&'static str, usize),
    /// A number, or with `auto` what the inner width leaves to a head.
    head_dim: (&'static str, Option<usize>),
    groups: (&'static str, usize),
    state_dim: (&'static str, usize),
    taps: (&'static str, usize),
    inner_dim: InnerDim,
}

/// Width of all heads together.
enum InnerDim {
    /// So many times that of the model, unless the first field names it.
    Expanded(Option<(&'static str, usize)>, &'static str),
    /// Heads times their width.
    Heads,
}

pub(super) const GRANITE: MambaFields = MambaFields {
    heads: ("mamba_n_heads", 128),
    head_dim: ("mamba_d_head", None),
    groups: ("mamba_n_groups", 1),
    state_dim: ("mamba_d_state", 256),
    taps: ("mamba_d_conv", 4),
    inner_dim: InnerDim::Expanded(None, "mamba_expand"),
};

pub(super) const FALCON: MambaFields =
    MambaFields { inner_dim: InnerDim::Expanded(Some(("mamba_d_ssm", 1024)), "mamba_expand"), ..GRANITE };

pub(super) const NEMOTRON: MambaFields = MambaFields {
    heads: ("mamba_num_heads", 128),
    head_dim: ("mamba_head_dim", Some(64)),
    groups: ("n_groups", 8),
    state_dim: ("ssm_state_size", 128),
    taps: ("conv_kernel", 4),
    inner_dim: InnerDim::Heads,
};

impl MambaFields {
    /// Reads the sizes: keys are `B` and `C` of groups of heads, values what enters the heads.
    pub(super) fn read(&self, config: &Fields<'_>) -> Result<RecurrentSizes> {
        let count = |(key, default): (&str, usize), max: usize| -> Result<usize> {
            Ok(config.count(key, 1..=max)?.unwrap_or(default))
        };
        let heads = count(self.heads, MAX_WIDTH)?;
        let groups = count(self.groups, MAX_WIDTH)?;
        if !heads.is_multiple_of(groups) {
            let expected = format!("a divisor of the {heads} heads of {}", self.heads.0);
            return Err(config.invalid(self.groups.0, expected));
        }
        let value_dim = self.read_head_dim(config, heads)?;
        check_limits(config)?;
        Ok(RecurrentSizes {
            key_heads: groups,
            value_heads: heads,
            key_dim: count(self.state_dim, MAX_KEY_DIM)?,
            value_dim,
            taps: count(self.taps, MAX_TAPS)?,
            is_in_order: true,
            has_norm: true,
        })
    }

    fn read_head_dim(&self, config: &Fields<'_>, heads: usize) -> Result<usize> {
        let (field, usual) = self.head_dim;
        let named = match config.get(field).and_then(Value::as_str) {
            Some("auto") => None,
            _ => config.count(field, 1..=MAX_WIDTH)?.or(usual),
        };
        let (inner_dim, origin) = match self.inner_dim {
            InnerDim::Heads => {
                let most = MAX_WIDTH / heads;
                return match named.unwrap_or(0) {
                    head_dim if (1..=most).contains(&head_dim) => Ok(head_dim),
                    _ => Err(config.invalid(field, format!("at most {most} for {heads} heads"))),
                };
            }
            InnerDim::Expanded(Some((field, usual)), _)
                if config.get(field).is_some() || config.is_absent(field) =>
            {
                (config.count(field, 1..=MAX_WIDTH)?.unwrap_or(usual), field.to_owned())
            }
            InnerDim::Expanded(_, factor) => {
                let model_dim = config.require_count("hidden_size", 1..=MAX_WIDTH)?;
                let times = config.count(factor, 1..=MAX_WIDTH / model_dim)?.unwrap_or(2);
                (times.saturating_mul(model_dim), format!("{factor} times hidden_size"))
            }
        };
        let head_dim = named.unwrap_or(inner_dim / heads);
        if head_dim.saturating_mul(heads) != inner_dim {
            let expected = format!("as many heads of {field} {head_dim} as make {inner_dim}, {origin}");
            return Err(config.invalid(self.heads.0, expected));
        }
        Ok(head_dim)
    }
}

/// Refuses what no kernel computes.
fn check_limits(config: &Fields<'_>) -> Result<()> {
    const LIMIT: &str = "time_step_limit";
    const ACTIVATION: &str = "mamba_hidden_act";
    // transformers 5 writes infinity as an object.
    let is_infinite = |value: &Value| value.get("__float__").unwrap_or(value).as_str() == Some("Infinity");
    let is_open =
        |limit: &[Value]| matches!(limit, [least, most] if least.as_f64() == Some(0.0) && is_infinite(most));
    if config.list(LIMIT)?.is_some_and(|limit| !is_open(limit)) {
        return Err(config.invalid(LIMIT, "0 and infinity: time steps are not limited"));
    }
    match config.text(ACTIVATION)? {
        Some(name) if !["silu", "swish"].contains(&name) => Err(config.invalid(ACTIVATION, "silu, swish")),
        _ => Ok(()),
    }
}
