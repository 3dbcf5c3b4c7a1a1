//! Qwen 2 and 2.5 (biases of queries, keys and values), Qwen 3 (norms per head), Qwen3-Next and
//! Qwen 3.5 (gated `DeltaNet` in most layers, gated attention in the others), dense and as mixtures
//! of experts.

use super::experts::{Experts, Shared, Usual};
use super::{DecoderSpec, Family, LocalRopes, Recurrent, Sizes};
use crate::config::keys::Keys;
use crate::error::Result;

pub(super) const QWEN2: Family =
    Family { architecture: "qwen2", local_rope: LocalRopes::None, decoder: DecoderSpec::usual };

pub(super) const QWEN3: Family = Family {
    architecture: "qwen3",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| Ok(DecoderSpec { head_norms: true, ..DecoderSpec::usual(keys, sizes)? }),
};

/// Qwen 3 with experts in the place of the feed-forward network, none of them shared.
pub(super) const QWEN3_MOE: Family = Family {
    architecture: "qwen3moe",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| {
        let experts = Experts::read(keys, sizes.n_layers, Usual { renormalize: true, ..Usual::SOFTMAX })?;
        Ok(DecoderSpec { head_norms: true, ..DecoderSpec::mixture(keys, sizes, Some(experts))? })
    },
};

/// Qwen 1.5 and 2 with experts, and shared ones behind a sigmoid gate.
pub(super) const QWEN2_MOE: Family = Family {
    architecture: "qwen2moe",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| {
        let experts = Experts::read(keys, sizes.n_layers, Usual { shared: Shared::Gated, ..Usual::SOFTMAX })?;
        DecoderSpec::mixture(keys, sizes, Some(experts))
    },
};

pub(super) const QWEN35: Family = Family {
    architecture: "qwen35",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| hybrid(DecoderSpec::usual(keys, sizes)?, keys, sizes, false),
};

/// Qwen 3.5 with experts, and shared ones behind a sigmoid gate.
pub(super) const QWEN35_MOE: Family = Family {
    architecture: "qwen35moe",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| hybrid(gated_mixture(keys, sizes)?, keys, sizes, false),
};

/// As Qwen 3.5 with experts; the value heads of one key head are neighbours.
pub(super) const QWEN3_NEXT: Family = Family {
    architecture: "qwen3next",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| hybrid(gated_mixture(keys, sizes)?, keys, sizes, true),
};

fn gated_mixture(keys: &Keys<'_>, sizes: &Sizes) -> Result<DecoderSpec> {
    let usual = Usual { renormalize: true, shared: Shared::Gated, ..Usual::SOFTMAX };
    let experts = Experts::read(keys, sizes.n_layers, usual)?;
    DecoderSpec::mixture(keys, sizes, Some(experts))
}

/// The switches of Qwen3-Next, whose heads are grouped, and Qwen 3.5. Rotary positions of the
/// latter have three parts, which are equal for text: the usual ones.
fn hybrid(spec: DecoderSpec, keys: &Keys<'_>, sizes: &Sizes, is_grouped: bool) -> Result<DecoderSpec> {
    Ok(DecoderSpec {
        head_norms: true,
        gated_attention: true,
        recurrent: Some(Recurrent::read_delta_net(keys, sizes.n_layers, is_grouped)?),
        ffn_norm_name: "post_attention_norm.weight",
        ..spec
    })
}
