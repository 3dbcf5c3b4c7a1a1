//! Phi 3, 3.5 and 4: joint projections; `LongRoPE` if the file has its factors. Phi 3.5 `MoE`:
//! layer norms with biases, and a router of two masked softmaxes.

use super::experts::{Experts, Usual};
use super::{DecoderSpec, Family, LocalRopes, Projections, Scoring};

pub(super) const PHI3: Family = Family {
    architecture: "phi3",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| {
        Ok(DecoderSpec { projections: Projections::Joint, ..DecoderSpec::usual(keys, sizes)? })
    },
};

pub(super) const PHIMOE: Family = Family {
    architecture: "phimoe",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| {
        let usual = Usual { scoring: Scoring::SparseMixer, ..Usual::SOFTMAX };
        let experts = Experts::read(keys, sizes.n_layers, usual)?;
        if experts.used != 2 {
            return Err(keys.invalid("expert_used_count", experts.used, "2, the selections of this router"));
        }
        Ok(DecoderSpec { layer_norms: true, ..DecoderSpec::mixture(keys, sizes, Some(experts))? })
    },
};
