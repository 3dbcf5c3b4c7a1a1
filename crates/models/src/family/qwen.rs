//! Qwen 2 and 2.5 (biases of queries, keys and values) and Qwen 3 (norms per head), dense and as
//! mixtures of experts.

use super::experts::{Experts, Shared, Usual};
use super::{DecoderSpec, Family, LocalRopes};

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
        let experts = Experts::read(keys, Usual { renormalize: true, ..Usual::SOFTMAX })?;
        Ok(DecoderSpec { head_norms: true, ..DecoderSpec::mixture(keys, sizes, Some(experts))? })
    },
};

/// Qwen 1.5 and 2 with experts, and shared ones behind a sigmoid gate.
pub(super) const QWEN2_MOE: Family = Family {
    architecture: "qwen2moe",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| {
        let experts = Experts::read(keys, Usual { shared: Shared::Gated, ..Usual::SOFTMAX })?;
        DecoderSpec::mixture(keys, sizes, Some(experts))
    },
};
