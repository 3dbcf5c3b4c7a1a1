//! `OLMoE`: experts with weights that are not renormalized; norms over all heads of queries and
//! keys.

use super::experts::{Experts, Usual};
use super::{DecoderSpec, Family};

pub(super) const OLMOE: Family = Family {
    architecture: "olmoe",
    local_rope_base: None,
    decoder: |keys, sizes| {
        let experts = Experts::read(keys, Usual::SOFTMAX)?;
        Ok(DecoderSpec { row_norms: true, ..DecoderSpec::mixture(keys, sizes, Some(experts))? })
    },
};
