//! Falcon-H1: Mamba-2 and attention side by side in every layer. Its factors are in the weights of
//! files.

use super::{DecoderSpec, Family, LocalRopes, Recurrent};

pub(super) const FALCON_H1: Family = Family {
    architecture: "falcon-h1",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| {
        Ok(DecoderSpec {
            recurrent: Some(Recurrent::read_beside_attention(keys, sizes.n_layers)?),
            folded_factors: true,
            ffn_norm_name: "ffn_norm",
            ..DecoderSpec::usual(keys, sizes)?
        })
    },
};
