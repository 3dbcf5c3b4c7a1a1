//! `OLMo` 2 and 3 (no norms before attention and the feed-forward network, but behind them; norms
//! over all heads of queries and keys together) and `OLMoE` (experts with weights that are not
//! renormalized).

use super::experts::{Experts, Usual};
use super::window::{self, Window};
use super::{DecoderSpec, Family, LocalRopes};

/// `OLMo` 3 has windows in three of four layers, which turn unscaled.
pub(super) const OLMO2: Family = Family {
    architecture: "olmo2",
    local_rope: LocalRopes::UnscaledWindows,
    decoder: |keys, sizes| {
        Ok(DecoderSpec {
            window: Window::read(keys, sizes.n_layers, window::Usual { tokens: 0, period: 4 })?,
            row_norms: true,
            input_norms: false,
            post_norms: true,
            ..DecoderSpec::usual(keys, sizes)?
        })
    },
};

pub(super) const OLMOE: Family = Family {
    architecture: "olmoe",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| {
        let experts = Experts::read(keys, sizes.n_layers, Usual::SOFTMAX)?;
        Ok(DecoderSpec { row_norms: true, ..DecoderSpec::mixture(keys, sizes, Some(experts))? })
    },
};
