//! Llama 2, 3, 3.1 and later, other models with the GGUF architecture `llama` (such as Mistral, and
//! Mixtral, a mixture of experts), Mistral 3, and `SmolLM3`.

use ruvllm_kernels::rope::RopeLayout;

use super::experts::{Experts, Usual};
use super::{AttentionTemperature, DecoderSpec, Family, LocalRopes, Sizes};
use crate::config::keys::{Keys, Limits, Real};
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

/// Slopes of the attention temperature; published models have 0.1, and 0 is none.
const TEMPERATURE_SCALES: Limits = Limits { least: 0.0, most: 1e3 };

/// The steps are as long as the file says, or as the context before it was scaled.
pub(super) fn read_temperature(keys: &Keys<'_>) -> Result<Option<AttentionTemperature>> {
    let scale = keys.real("attention.temperature_scale", Real::Within(TEMPERATURE_SCALES))?;
    let Some(scale) = scale.filter(|&scale| scale > 0.0) else { return Ok(None) };
    let steps = 1..=u32::MAX as usize;
    let every = match keys.count("attention.temperature_length", steps.clone())? {
        Some(every) => every,
        None => keys.require_count("rope.scaling.original_context_length", steps)?,
    };
    Ok(Some(AttentionTemperature { scale, every }))
}
