//! Names of matrices in files of models and adapters.

use super::{gguf, peft};
use crate::place::Projection;

impl Projection {
    /// Name of the matrix in GGUF files, as `blk.3.attn_q.weight`. A joint gate and up projection
    /// has the name of up.
    pub fn gguf_name(self, layer: usize) -> Option<String> {
        gguf::matrix_name(self, layer)
    }

    /// Projection and layer of a name in a GGUF file of a model.
    pub fn of_gguf_name(name: &str) -> Option<(Self, usize)> {
        gguf::place(name)
    }

    /// Projection and layer of a module of a Hugging Face model, as `model.layers.3.mlp.up_proj`.
    pub fn of_module(module: &str) -> Option<(Self, usize)> {
        peft::place(module)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_experts_are_the_network_of_every_token() {
        for (projection, gguf, module) in [
            (Projection::Gate, "ffn_gate_shexp", "gate_proj"),
            (Projection::Up, "ffn_up_shexp", "up_proj"),
            (Projection::Down, "ffn_down_shexp", "down_proj"),
        ] {
            assert_eq!(Projection::of_gguf_name(&format!("blk.2.{gguf}.weight")), Some((projection, 2)));
            // The second names are those of Llama 4.
            for network in ["mlp.shared_expert", "feed_forward.shared_expert", "feed_forward"] {
                let module = format!("model.layers.2.{network}.{module}");
                assert_eq!(Projection::of_module(&module), Some((projection, 2)), "{module}");
            }
        }
    }
}
