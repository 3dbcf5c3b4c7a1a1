//! Llama 2, 3, 3.1 and later, and the models that GGUF files call `llama` too, Mistral among them.

use ruvllm_kernels::RopeLayout;

use super::{DecoderSpec, Family};

pub(super) const LLAMA: Family = Family {
    architecture: "llama",
    local_rope_base: None,
    decoder: |keys, sizes| {
        Ok(DecoderSpec {
            // The converters reorder the rows of q and k so that the elements of a pair are neighbours.
            rope_layout: RopeLayout::Interleaved,
            ..DecoderSpec::usual(keys, sizes)?
        })
    },
};
