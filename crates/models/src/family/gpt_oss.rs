//! gpt-oss: attention sinks, every other layer with a window, experts with a clamped `SwiGLU` and
//! biases everywhere, which follow the file. Source: arXiv 2508.10925.

use super::experts::{Experts, Usual};
use super::window::{self, Window};
use super::{Activation, DecoderSpec, Family, LocalRopes, Scoring, YARN_TRUNCATE};

/// Of all published models; files have no key for another.
const ACTIVATION: Activation = Activation::ClampedSwiGlu { alpha: 1.702, limit: 7.0 };

pub(super) const GPT_OSS: Family = Family {
    architecture: "gpt-oss",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| {
        let usual = Usual { scoring: Scoring::SoftmaxOfSelected, activation: ACTIVATION, ..Usual::SOFTMAX };
        let experts = Experts::read(keys, sizes.n_layers, usual)?;
        Ok(DecoderSpec {
            sinks: true,
            // Files of other converters lack the key, and the models were trained without rounding.
            yarn_truncate: keys.flag(YARN_TRUNCATE)?.unwrap_or(false),
            window: Window::read(keys, sizes.n_layers, window::Usual { tokens: 128, period: 2 })?,
            ffn_norm_name: "post_attention_norm.weight",
            ..DecoderSpec::mixture(keys, sizes, Some(experts))?
        })
    },
};
