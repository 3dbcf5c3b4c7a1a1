//! Phi 3, 3.5 and 4: joint projections; `LongRoPE` if the file has its factors.

use super::{DecoderSpec, Family, LocalRopes, Projections};

pub(super) const PHI3: Family = Family {
    architecture: "phi3",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| {
        Ok(DecoderSpec { projections: Projections::Joint, ..DecoderSpec::usual(keys, sizes)? })
    },
};
