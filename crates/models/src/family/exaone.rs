//! EXAONE 4: norms behind attention and the feed-forward network instead of before them, norms per
//! head. The large model has windows in three of four layers, and only these turn queries and keys.

use super::window::{Usual, Window};
use super::{DecoderSpec, Family, LocalRopes};

/// Layers of the large model, whose files of other converters may leave the window out.
const LARGE_LAYERS: usize = 64;

pub(super) const EXAONE4: Family = Family {
    architecture: "exaone4",
    local_rope: LocalRopes::StillWithoutWindow,
    decoder: |keys, sizes| {
        let tokens = if sizes.n_layers == LARGE_LAYERS { 4096 } else { 0 };
        Ok(DecoderSpec {
            window: Window::read(keys, sizes.n_layers, Usual { tokens, period: 4 })?,
            head_norms: true,
            input_norms: false,
            post_norms: true,
            ..DecoderSpec::usual(keys, sizes)?
        })
    },
};
