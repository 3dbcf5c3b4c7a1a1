//! Llama 2, 3, 3.1 and later, other models with the GGUF architecture `llama` (such as Mistral, and
//! Mixtral, a mixture of experts), Mistral 3, and `SmolLM3`.

use ruvllm_kernels::rope::RopeLayout;

use super::experts::{Experts, Usual};
use super::temperature::read_temperature;
use super::{DecoderSpec, Family, LocalRopes, Sizes};
use crate::config::keys::Keys;
use crate::error::Result;

pub(super) const LLAMA: Family = Family {
    architecture: "llama",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| {
        if keys.count("expert_count", 0..=usize::MAX)?.unwrap_or(0) == 0 {
            return common(keys, sizes);
        }
        let experts = Experts::read(keys, sizes.n_layers, Usual { renormalize: true, ..Usual::SOFTMAX })?;
        let decoder = DecoderSpec::mixture(keys, sizes, Some(experts))?;
        Ok(DecoderSpec { rope_layout: RopeLayout::Interleaved, reordered_heads: true, ..decoder })
    },
};

/// Mistral Small 3.1 and later, and Ministral 3, which was trained with longer texts.
pub(super) const MISTRAL3: Family = Family {
    architecture: "mistral3",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| {
        Ok(DecoderSpec { attention_temperature: read_temperature(keys)?, ..common(keys, sizes)? })
    },
};

/// Llama with fourth layers that do not turn their queries and keys.
pub(super) const SMOLLM3: Family =
    Family { architecture: "smollm3", local_rope: LocalRopes::StillEvery(4), decoder: common };

fn common(keys: &Keys<'_>, sizes: &Sizes) -> Result<DecoderSpec> {
    Ok(DecoderSpec {
        // The converters reorder the rows of q and k so that the elements of a pair are neighbours.
        rope_layout: RopeLayout::Interleaved,
        reordered_heads: true,
        ..DecoderSpec::usual(keys, sizes)?
    })
}
