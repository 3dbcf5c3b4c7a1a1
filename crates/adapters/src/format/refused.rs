//! Matrices that no adapter can change.

use crate::error::Error;

/// Parts of names of experts and their routers, in GGUF files and in Hugging Face models.
const OF_EXPERTS: [&str; 8] = [
    "_exps.",
    ".ffn_gate_inp",
    ".experts.",
    ".block_sparse_moe.",
    ".shared_expert_gate.",
    ".mlp.experts",
    ".mlp.gate.",
    ".feed_forward.router.",
];

/// The error for a matrix that no adapter can change.
pub(super) fn refused(name: &str) -> Error {
    let (padded, name) = (format!(".{name}."), name.to_owned());
    if OF_EXPERTS.iter().any(|part| padded.contains(part)) {
        Error::Experts { name }
    } else {
        Error::UnknownMatrix { name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_of_experts_are_told_from_unknown_ones() {
        for name in [
            "blk.0.ffn_gate_exps.weight",
            "blk.3.ffn_gate_inp.weight",
            "blk.3.ffn_gate_inp_shexp.weight",
            "model.layers.0.mlp.experts.3.gate_proj",
            "model.layers.1.mlp.gate",
            "model.layers.1.feed_forward.router",
            "model.layers.1.block_sparse_moe.experts.0.w1",
            "model.layers.1.mlp.shared_expert_gate",
        ] {
            assert!(matches!(refused(name), Error::Experts { name: found } if found == name), "{name}");
        }
        for name in ["blk.0.attn_norm.weight", "model.layers.0.mlp.fc1", "model.embed_tokens"] {
            assert!(matches!(refused(name), Error::UnknownMatrix { .. }), "{name}");
        }
    }
}
