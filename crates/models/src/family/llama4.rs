//! Llama 4: attention within chunks in three of four layers, whose queries and keys have norms
//! without weights; the fourth layers see all tokens, do not rotate, and scale queries by their
//! position. Experts, one for each token, have inputs times their weight, beside a shared one.
//!
//! Source: `Llama4ForCausalLM` of transformers; llama.cpp's reader, whose files leave out what all
//! published models have.

use ruvllm_kernels::rope::RopeLayout;

use super::experts::{Experts, Shared, Usual};
use super::temperature::{AttentionTemperature, TEMPERATURE_SCALES};
use super::window::{self, Window};
use super::{DecoderSpec, Family, LocalRopes, Scoring, Sizes};
use crate::config::keys::{Keys, Real};
use crate::error::Result;

/// Tokens of a chunk where a file does not say.
pub(crate) const CHUNK: usize = 8192;

/// The last of every so many layers sees all tokens and does not rotate.
pub(crate) const PERIOD: usize = 4;

/// Attention temperature where a file does not say.
pub(crate) const TEMPERATURE: AttentionTemperature =
    AttentionTemperature { scale: 0.1, every: 8192, offset: 1, unrotated_layers: true };

/// Experts of the models whose queries and keys have no norms.
pub(crate) const EXPERTS_WITHOUT_NORMS: usize = 128;

pub(super) const LLAMA4: Family = Family {
    architecture: "llama4",
    local_rope: LocalRopes::StillWithoutWindow,
    decoder: |keys, sizes| {
        let experts = read_experts(keys, sizes)?;
        let count = experts.as_ref().map_or(0, |experts| experts.count);
        let window = Window::read(keys, sizes.n_layers, window::Usual { tokens: CHUNK, period: PERIOD })?
            .into_chunks(sizes.n_layers);
        Ok(DecoderSpec {
            rope_layout: RopeLayout::Interleaved,
            // Without windows all layers rotate.
            attention_temperature: match window {
                Window::Full => None,
                _ => read_temperature(keys)?,
            },
            window,
            unit_head_norms: count != EXPERTS_WITHOUT_NORMS,
            ..DecoderSpec::mixture(keys, sizes, experts)?
        })
    },
};

/// The mixture; small models have none.
fn read_experts(keys: &Keys<'_>, sizes: &Sizes) -> Result<Option<Experts>> {
    if keys.count("expert_count", 0..=usize::MAX)?.unwrap_or(0) == 0 {
        return Ok(None);
    }
    let usual = Usual { scoring: Scoring::SigmoidOfSelected, shared: Shared::Plain(1), ..Usual::SOFTMAX };
    let experts = Experts::read(keys, sizes.n_layers, usual)?;
    Ok(Some(Experts { weighs_inputs: true, ..experts }))
}

fn read_temperature(keys: &Keys<'_>) -> Result<Option<AttentionTemperature>> {
    let scale = keys.real("attention.temperature_scale", Real::Within(TEMPERATURE_SCALES))?;
    let every = keys.count("attention.temperature_length", 1..=u32::MAX as usize)?;
    let temperature = AttentionTemperature {
        scale: scale.unwrap_or(TEMPERATURE.scale),
        every: every.unwrap_or(TEMPERATURE.every),
        ..TEMPERATURE
    };
    Ok(Some(temperature).filter(|temperature| temperature.scale > 0.0))
}
