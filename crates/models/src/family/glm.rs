//! GLM 4.5 and later with experts: leading layers without experts, a router of sigmoids with a bias
//! of the selection, and shared experts without a gate.

use super::experts::{Experts, Shared, Usual};
use super::{DecoderSpec, Family, LocalRopes, Scoring};

pub(super) const GLM4_MOE: Family = Family {
    architecture: "glm4moe",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| {
        let usual = Usual {
            renormalize: true,
            scoring: Scoring::Sigmoid,
            shared: Shared::Plain(1),
            ..Usual::SOFTMAX
        };
        let experts = Experts::read(keys, sizes.n_layers, usual)?;
        Ok(DecoderSpec {
            // The larger models have them, and no key says so.
            head_norms: true,
            optional_head_norms: true,
            ffn_norm_name: "post_attention_norm",
            ..DecoderSpec::mixture(keys, sizes, Some(experts))?
        })
    },
};
