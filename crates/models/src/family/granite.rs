//! Granite 3 and the dense models of Granite 4: Llama with factors of embeddings, of attention
//! scores, of what layers add to the residual stream, and of logits.

use ruvllm_kernels::rope::RopeLayout;

use super::{DecoderSpec, Family, LocalRopes};
use crate::config::keys::{Keys, Limits, Real};
use crate::error::Result;

/// Factors that a file may name; published models have 0.1 to 16.
const FACTORS: Limits = Limits { least: 1e-6, most: 1e6 };

pub(super) const GRANITE: Family = Family {
    architecture: "granite",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| {
        Ok(DecoderSpec {
            // Converters reorder the rows of q and k: the elements of a pair are neighbours.
            rope_layout: RopeLayout::Interleaved,
            embedding_scale: read_factor(keys, "embedding_scale")?,
            residual_scale: read_factor(keys, "residual_scale")?,
            // The file names the divisor.
            logits_scale: 1.0 / read_factor(keys, "logit_scale")?,
            ..DecoderSpec::usual(keys, sizes)?
        })
    },
};

/// A factor; 0 stands for 1, as in the files of other converters.
fn read_factor(keys: &Keys<'_>, suffix: &str) -> Result<f32> {
    match keys.real(suffix, Real::NotNegative)? {
        None | Some(0.0) => Ok(1.0),
        Some(_) => Ok(keys.real(suffix, Real::Within(FACTORS))?.unwrap_or(1.0)),
    }
}
