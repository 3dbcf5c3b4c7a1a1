//! LFM2: short convolutions, and attention with normed heads in some layers.

use super::{DecoderSpec, Family, LocalRopes, Recurrent};

pub(super) const LFM2: Family = Family {
    architecture: "lfm2",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| {
        let recurrent = Recurrent::read_convolution(keys, (sizes.model_dim, sizes.n_layers))?;
        Ok(DecoderSpec {
            head_norms: true,
            recurrent: Some(recurrent),
            output_norm_name: "token_embd_norm",
            ..DecoderSpec::usual(keys, sizes)?
        })
    },
};
