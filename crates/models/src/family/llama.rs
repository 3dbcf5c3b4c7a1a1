//! Llama 2, 3, 3.1 and later, and the models that GGUF files call `llama` too, Mistral among them.
//! Its mixture-of-experts relatives (Mixtral) are refused.

use ruvllm_kernels::RopeLayout;

use super::{Activation, DecoderSpec, Family, Window};
use crate::config::keys::{Keys, Real};
use crate::error::Result;

/// Largest window that a file may name; positions are counted in 32 bits.
const MAX_WINDOW: usize = u32::MAX as usize;

pub(super) const FAMILY: Family = Family { architecture: "llama", decoder: read };

fn read(keys: &Keys<'_>, head_dim: usize) -> Result<DecoderSpec> {
    if let Some(experts @ 1..) = keys.count("expert_count", 0..=usize::MAX)? {
        return Err(keys.invalid("expert_count", experts, "0: mixtures of experts are not supported"));
    }
    let scale = keys.real("attention.scale", Real::NotNegative)?.filter(|&scale| scale > 0.0);
    Ok(DecoderSpec {
        // The converters reorder the rows of q and k so that the elements of a pair are neighbours.
        rope_layout: RopeLayout::Interleaved,
        attention_scale: scale.unwrap_or_else(|| (1.0 / (head_dim as f64).sqrt()) as f32),
        attention_soft_cap: None,
        window: match keys.count("attention.sliding_window", 0..=MAX_WINDOW)? {
            None | Some(0) => Window::Full,
            Some(tokens) => Window::Sliding(tokens),
        },
        activation: Activation::SwiGlu,
    })
}
