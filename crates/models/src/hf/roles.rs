//! Roles of layers in families that have several kinds.

use gguf_rs_lite::Array;
use serde_json::Value;

use super::fields::Fields;
use super::keys::Keys;
use super::sizes::{MAX_LAYERS, Sizes};
use crate::error::Result;

/// Role of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Attention,
    /// A state, instead of attention or beside it.
    State,
    /// A feed-forward network and no mixer.
    Network,
    /// Experts and no mixer.
    Experts,
}

/// Fields with a role for each layer; the first that is there counts.
const FIELDS: [&str; 3] = ["layers_block_type", "layer_types", "hybrid_override_pattern"];

const COUNT: &str = "num_hidden_layers";

/// Roles of layers of one part, `[n_layers]`: a list of names, or a letter each as in `M*-`.
pub(super) fn read(config: &Fields<'_>) -> Result<Vec<Role>> {
    let expected =
        "`mamba`, `attention`, `mlp` or `moe` for each layer, or a pattern of `M`, `*`, `-` and `E`";
    let Some(field) = FIELDS.into_iter().find(|field| config.get(field).is_some()) else {
        return Err(config.missing(FIELDS[0], expected));
    };
    let roles: Option<Vec<Role>> = match config.get(field) {
        Some(Value::Array(names)) => names.iter().map(|name| named(name.as_str()?)).collect(),
        Some(Value::String(letters)) => letters.chars().map(lettered).collect(),
        _ => None,
    };
    let roles = roles.filter(|roles| (1..=MAX_LAYERS).contains(&roles.len()));
    let roles = roles.ok_or_else(|| config.invalid(field, expected))?;
    let n_layers = roles.len();
    if config.count(COUNT, 1..=MAX_LAYERS)?.is_some_and(|count| count != n_layers) {
        return Err(config.invalid(COUNT, format!("{n_layers}, the layers of `{field}`")));
    }
    for (role, name) in [(Role::Attention, "attention"), (Role::State, "Mamba-2")] {
        if !roles.contains(&role) {
            return Err(config.invalid(field, format!("layers of which at least one has {name}")));
        }
    }
    match (roles.contains(&Role::Network), roles.contains(&Role::Experts)) {
        (true, true) => Err(config.invalid(field, "feed-forward networks or experts, not both")),
        (false, false) => Err(config.invalid(field, "layers of which at least one has a network or experts")),
        _ => Ok(roles),
    }
}

/// True if some layer has experts.
pub(super) fn have_experts(config: &Fields<'_>) -> bool {
    read(config).is_ok_and(|roles| roles.contains(&Role::Experts))
}

fn named(name: &str) -> Option<Role> {
    match name {
        "mamba" | "linear_attention" => Some(Role::State),
        "attention" | "full_attention" => Some(Role::Attention),
        "mlp" => Some(Role::Network),
        "moe" => Some(Role::Experts),
        _ => None,
    }
}

fn lettered(letter: char) -> Option<Role> {
    match letter {
        'M' => Some(Role::State),
        '*' => Some(Role::Attention),
        '-' => Some(Role::Network),
        'E' => Some(Role::Experts),
        _ => None,
    }
}

/// Writes the keys from which readers know the roles of layers of one part: those without heads of
/// keys and values and without a network have a state.
pub(super) fn write(sizes: &Sizes, roles: &[Role], keys: &mut Keys) {
    let expert_dim = sizes.experts.map_or(0, |experts| experts.ffn_dim);
    let width = |&role: &Role| match role {
        Role::Network => sizes.ffn_dim as i32,
        Role::Experts => expert_dim as i32,
        _ => 0,
    };
    keys.array("feed_forward_length", Array::I32(roles.iter().map(width).collect()));
    write_heads(sizes, roles, keys);
    // Nothing rotates.
    keys.flag("rope.scaling.finetuned", false);
}

/// Heads of keys and values of each layer; those without attention have none.
pub(super) fn write_heads(sizes: &Sizes, roles: &[Role], keys: &mut Keys) {
    let heads = |&role: &Role| if role == Role::Attention { sizes.n_kv_heads as i32 } else { 0 };
    keys.array("attention.head_count_kv", Array::I32(roles.iter().map(heads).collect()));
}
