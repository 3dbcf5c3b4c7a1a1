//! GLM 4 and Z1: gate and up in one matrix, norms before and behind attention and the network,
//! pairs of neighbours in RoPE, which the published checkpoints have too. GLM 4.5 and later with
//! experts: leading layers without experts, a router of sigmoids with a bias of the selection, and
//! shared experts without a gate.

use ruvllm_kernels::rope::RopeLayout;

use super::experts::{Experts, Shared, Usual};
use super::{DecoderSpec, Family, LocalRopes, Projections, Scoring};

pub(super) const GLM4: Family = Family {
    architecture: "glm4",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| {
        Ok(DecoderSpec {
            rope_layout: RopeLayout::Interleaved,
            projections: Projections::JointFeedForward,
            post_norms: true,
            ..DecoderSpec::usual(keys, sizes)?
        })
    },
};

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
            ffn_norm_name: "post_attention_norm.weight",
            ..DecoderSpec::mixture(keys, sizes, Some(experts))?
        })
    },
};
