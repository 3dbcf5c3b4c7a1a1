//! Granite 3 and 4: Llama with factors of embeddings, of attention scores, of what layers add to
//! the residual stream, and of logits; with mixtures of experts, and with Mamba-2 in most layers.

use ruvllm_kernels::rope::RopeLayout;

use super::experts::{Experts, Shared, Usual};
use super::{DecoderSpec, Family, LocalRopes, Recurrent, Scoring, Sizes};
use crate::config::keys::{Keys, Limits, Real};
use crate::error::Result;

/// Factors that a file may name; published models have 0.1 to 16.
const FACTORS: Limits = Limits { least: 1e-6, most: 1e6 };

pub(super) const GRANITE: Family = Family {
    architecture: "granite",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| with_factors(keys, DecoderSpec::usual(keys, sizes)?),
};

pub(super) const GRANITE_MOE: Family =
    Family { architecture: "granitemoe", local_rope: LocalRopes::None, decoder: mixture };

/// Granite 4: Mamba-2 in the layers without heads of keys and values; most models do not rotate.
pub(super) const GRANITE_HYBRID: Family = Family {
    architecture: "granitehybrid",
    local_rope: LocalRopes::StillIfFalse("rope.scaling.finetuned"),
    decoder: |keys, sizes| {
        let layers = sizes.kv_heads.iter().map(|&heads| heads == 0).collect();
        let recurrent = Recurrent::read_mamba2(keys, layers)?;
        Ok(DecoderSpec { recurrent, ..mixture(keys, sizes)? })
    },
};

/// With experts, if the file has any.
fn mixture(keys: &Keys<'_>, sizes: &Sizes) -> Result<DecoderSpec> {
    const USUAL: Usual =
        Usual { scoring: Scoring::SoftmaxOfSelected, shared: Shared::Plain(0), ..Usual::SOFTMAX };
    let experts = match keys.count("expert_count", 0..=usize::MAX)? {
        None | Some(0) => None,
        Some(_) => Some(Experts::read(keys, sizes.n_layers, USUAL)?),
    };
    with_factors(keys, DecoderSpec::mixture(keys, sizes, experts)?)
}

fn with_factors(keys: &Keys<'_>, decoder: DecoderSpec) -> Result<DecoderSpec> {
    Ok(DecoderSpec {
        // Converters reorder the rows of q and k: the elements of a pair are neighbours.
        rope_layout: RopeLayout::Interleaved,
        reordered_heads: true,
        embedding_scale: read_factor(keys, "embedding_scale")?,
        residual_scale: read_factor(keys, "residual_scale")?,
        // The file names the divisor.
        logits_scale: 1.0 / read_factor(keys, "logit_scale")?,
        ..decoder
    })
}

/// A factor; 0 stands for 1, as in the files of other converters.
fn read_factor(keys: &Keys<'_>, suffix: &str) -> Result<f32> {
    match keys.real(suffix, Real::NotNegative)? {
        None | Some(0.0) => Ok(1.0),
        Some(_) => Ok(keys.real(suffix, Real::Within(FACTORS))?.unwrap_or(1.0)),
    }
}
