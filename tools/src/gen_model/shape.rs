//! Sizes of well-known models of the llama family, and the tensors that follow from them.

use clap::ValueEnum;
use gguf_rs_lite::Metadata;
use ruvllm_kv_cache::KvShape;

/// A model shape by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// 2 layers of width 256, 512 tokens: for tests
    LlamaTiny,
    /// 125 M parameters, 12 layers of width 768, separate output matrix
    #[value(name = "llama-110m")]
    Llama110m,
    /// 1.24 G parameters, 16 layers of width 2048, 128256 tokens, tied output (as Llama 3.2 1B)
    #[value(name = "llama-1b")]
    Llama1b,
    /// 7.24 G parameters, 32 layers of width 4096, 8 KV heads (as Mistral 7B)
    #[value(name = "llama-7b")]
    Llama7b,
}

/// Hyperparameters of a shape.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    pub(super) name: &'static str,
    pub(super) model_dim: usize,
    pub(super) ffn_dim: usize,
    pub(super) n_layers: usize,
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    pub(super) vocab_size: usize,
    pub(super) context_length: usize,
    pub(super) rope_base: f32,
    /// True if the embedding matrix is also the output matrix.
    pub(super) tied: bool,
}

/// One tensor: `[rows, cols]`, row-major.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Standard deviation of its values; `None` for norm weights, which are 1.
    pub(super) deviation: Option<f32>,
}

impl Tensor {
    /// True for a norm weight, the only vectors.
    pub(super) fn is_vector(&self) -> bool {
        self.deviation.is_none()
    }
}

impl Shape {
    /// The sizes, with another number of layers if wanted.
    pub(super) fn sizes(self, layers: Option<usize>) -> Sizes {
        let mut sizes = match self {
            Self::LlamaTiny => Sizes {
                name: "llama-tiny",
                model_dim: 256,
                ffn_dim: 512,
                n_layers: 2,
                n_heads: 4,
                n_kv_heads: 2,
                vocab_size: 512,
                context_length: 512,
                rope_base: 10_000.0,
                tied: false,
            },
            Self::Llama110m => Sizes {
                name: "llama-110m",
                model_dim: 768,
                ffn_dim: 2048,
                n_layers: 12,
                n_heads: 12,
                n_kv_heads: 4,
                vocab_size: 32_000,
                context_length: 8192,
                rope_base: 10_000.0,
                tied: false,
            },
            Self::Llama1b => Sizes {
                name: "llama-1b",
                model_dim: 2048,
                ffn_dim: 8192,
                n_layers: 16,
                n_heads: 32,
                n_kv_heads: 8,
                vocab_size: 128_256,
                context_length: 131_072,
                rope_base: 500_000.0,
                tied: true,
            },
            Self::Llama7b => Sizes {
                name: "llama-7b",
                model_dim: 4096,
                ffn_dim: 14_336,
                n_layers: 32,
                n_heads: 32,
                n_kv_heads: 8,
                vocab_size: 32_000,
                context_length: 32_768,
                rope_base: 1_000_000.0,
                tied: false,
            },
        };
        sizes.n_layers = layers.unwrap_or(sizes.n_layers);
        sizes
    }

    /// KV shape of a token.
    pub(crate) fn kv_shape(self) -> KvShape {
        let sizes = self.sizes(None);
        KvShape::new(sizes.n_layers, sizes.n_kv_heads, sizes.head_dim())
    }
}

impl Sizes {
    fn head_dim(&self) -> usize {
        self.model_dim / self.n_heads
    }

    /// Query heads that share a key/value head.
    pub(super) fn heads_per_kv_head(&self) -> u64 {
        (self.n_heads / self.n_kv_heads) as u64
    }

    /// All tensors in the order of the file.
    ///
    /// Values are drawn with deviation 0.02; the two projections that write into the residual
    /// stream get `0.02 / sqrt(2 n_layers)`, so that its size does not grow with the depth (as
    /// GPT-2 is initialized).
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        let (d, f, kv) = (self.model_dim, self.ffn_dim, self.head_dim() * self.n_kv_heads);
        let residual = 0.02 / (2.0 * self.n_layers as f32).sqrt();
        let matrix =
            |name: String, rows, cols, deviation| Tensor { name, rows, cols, deviation: Some(deviation) };
        let norm = |name: String| Tensor { name, rows: 1, cols: d, deviation: None };

        let mut tensors = vec![matrix("token_embd.weight".into(), self.vocab_size, d, 0.02)];
        if !self.tied {
            tensors.push(matrix("output.weight".into(), self.vocab_size, d, 0.02));
        }
        tensors.push(norm("output_norm.weight".into()));
        for layer in 0..self.n_layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            tensors.extend([
                norm(name("attn_norm")),
                matrix(name("attn_q"), d, d, 0.02),
                matrix(name("attn_k"), kv, d, 0.02),
                matrix(name("attn_v"), kv, d, 0.02),
                matrix(name("attn_output"), d, d, residual),
                norm(name("ffn_norm")),
                matrix(name("ffn_gate"), f, d, 0.02),
                matrix(name("ffn_up"), f, d, 0.02),
                matrix(name("ffn_down"), d, f, residual),
            ]);
        }
        tensors
    }

    /// Writes the architecture's keys.
    pub(super) fn describe(&self, metadata: &mut Metadata) {
        let mut count = |key: &str, value: usize| {
            let value = u32::try_from(value).expect("sizes of the shapes are far below 2^32");
            metadata.insert(format!("llama.{key}"), value);
        };
        count("context_length", self.context_length);
        count("embedding_length", self.model_dim);
        count("block_count", self.n_layers);
        count("feed_forward_length", self.ffn_dim);
        count("attention.head_count", self.n_heads);
        count("attention.head_count_kv", self.n_kv_heads);
        count("rope.dimension_count", self.head_dim());
        count("vocab_size", self.vocab_size);
        metadata.insert("llama.rope.freq_base", self.rope_base);
        metadata.insert("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn parameters(shape: Shape, expected_millions: f64) {
        let count: usize = shape.sizes(None).tensors().iter().map(|tensor| tensor.rows * tensor.cols).sum();
        let millions = count as f64 / 1e6;
        assert!((millions / expected_millions - 1.0).abs() < 0.001, "{millions} M parameters");
    }

    #[test]
    fn shapes_have_the_parameters_of_their_models() {
        parameters(Shape::Llama110m, 124.67);
        parameters(Shape::Llama1b, 1235.8);
        parameters(Shape::Llama7b, 7241.7);
    }

    #[test]
    fn layers_can_be_left_out() {
        let tensors = Shape::Llama7b.sizes(Some(1)).tensors();
        assert_eq!(tensors.len(), 3 + 9);
        assert!(!tensors.iter().any(|tensor| tensor.name.starts_with("blk.1.")));
    }
}
