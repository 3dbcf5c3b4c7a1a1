//! Qwen 2 and 2.5 (biases of queries, keys and values) and Qwen 3 (norms per head).

use super::{DecoderSpec, Family};

pub(super) const QWEN2: Family =
    Family { architecture: "qwen2", local_rope_base: None, decoder: DecoderSpec::usual };

pub(super) const QWEN3: Family = Family {
    architecture: "qwen3",
    local_rope_base: None,
    decoder: |keys, sizes| Ok(DecoderSpec { head_norms: true, ..DecoderSpec::usual(keys, sizes)? }),
};
