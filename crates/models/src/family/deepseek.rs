//! DeepSeek-V2 and V3, and what has their form: latent attention in every layer, and a mixture of
//! experts behind a few dense layers.

use ruvllm_kernels::rope::RopeLayout;

use super::experts::{Experts, Shared, Usual};
use super::latent::LatentAttention;
use super::temperature::read_temperature;
use super::{DecoderSpec, Family, LocalRopes, Sizes};
use crate::config::keys::Keys;
use crate::error::Result;

pub(super) const DEEPSEEK2: Family =
    Family { architecture: "deepseek2", local_rope: LocalRopes::None, decoder };

/// As DeepSeek, with Mistral's attention temperature.
pub(super) const MISTRAL4: Family =
    Family { architecture: "mistral4", local_rope: LocalRopes::None, decoder };

fn decoder(keys: &Keys<'_>, sizes: &Sizes) -> Result<DecoderSpec> {
    let latent = LatentAttention::read(keys, sizes)?;
    let usual = Usual { shared: Shared::Plain(0), ..Usual::SOFTMAX };
    // Models without experts have the same form.
    let experts = match keys.count("expert_count", 0..=usize::MAX)?.unwrap_or(0) {
        0 => None,
        _ => Some(Experts::read(keys, sizes.n_layers, usual)?),
    };
    Ok(DecoderSpec {
        rope_layout: RopeLayout::Interleaved,
        attention_scale: latent.scale(keys)?,
        attention_temperature: read_temperature(keys)?,
        latent: Some(latent),
        ..DecoderSpec::mixture(keys, sizes, experts)?
    })
}
