//! Sizes of well-known models, and the keys of a file that state them.

use clap::ValueEnum;
use gguf_rs_lite::{Array, Metadata, Value};
use ruvllm_kv_cache::KvShape;

/// A model shape by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// 2 layers of width 256, 512 tokens: for tests
    LlamaTiny,
    /// 1 layer with 8 experts: for tests
    #[value(name = "qwen3-moe-tiny")]
    Qwen3MoeTiny,
    /// 2 layers with 4 experts, one of them with a window: for tests
    #[value(name = "gpt-oss-tiny")]
    GptOssTiny,
    /// 4 layers, one of them with attention: for tests
    #[value(name = "qwen3.5-tiny")]
    Qwen35Tiny,
    /// 125 M parameters, 12 layers of width 768, separate output matrix
    #[value(name = "llama-110m")]
    Llama110m,
    /// 1.24 G parameters, 16 layers of width 2048, 128256 tokens, tied output (as Llama 3.2 1B)
    #[value(name = "llama-1b")]
    Llama1b,
    /// 7.24 G parameters, 32 layers of width 4096, 8 KV heads (as Mistral 7B)
    #[value(name = "llama-7b")]
    Llama7b,
    /// 30.5 G parameters, 3.3 G of them per token: 48 layers of 128 experts, 8 per token
    #[value(name = "qwen3-30b-a3b")]
    Qwen3Moe30b,
    /// 20.9 G parameters, 3.6 G of them per token: 24 layers of 32 experts, 4 per token; a window
    /// of 128 tokens in every other layer
    #[value(name = "gpt-oss-20b")]
    GptOss20b,
    /// 8.95 G parameters, 32 layers of width 4096: attention in every fourth, gated `DeltaNet` in
    /// the others
    #[value(name = "qwen3.5-9b")]
    Qwen35Dense9b,
}

/// Hyperparameters of a shape.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    pub(super) name: &'static str,
    pub(super) family: Family,
    pub(super) model_dim: usize,
    /// Inner width of the feed-forward network, or of one expert.
    pub(super) ffn_dim: usize,
    pub(super) n_layers: usize,
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) vocab_size: usize,
    pub(super) context_length: usize,
    pub(super) rope_base: f32,
    /// True if the embedding matrix is also the output matrix.
    pub(super) tied: bool,
}

/// Form of the layers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Family {
    Llama,
    Qwen3Moe(Experts),
    GptOss(Experts),
    Qwen35(DeltaNet),
}

/// A mixture of experts in every layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Experts {
    pub(super) count: usize,
    pub(super) used: usize,
}

/// Gated `DeltaNet` of the layers without attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeltaNet {
    pub(super) key_heads: usize,
    pub(super) value_heads: usize,
    /// Width of a query, key or value.
    pub(super) head_dim: usize,
    /// Tokens that the convolution sees.
    pub(super) taps: usize,
    /// The last of so many layers has attention.
    pub(super) interval: usize,
}

impl DeltaNet {
    /// Width of all values of a token.
    pub(super) fn values_dim(self) -> usize {
        self.value_heads * self.head_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub(super) fn channels(self) -> usize {
        2 * self.key_heads * self.head_dim + self.values_dim()
    }
}

/// The smallest shape, from which the others differ.
const TINY: Sizes = Sizes {
    name: "llama-tiny",
    family: Family::Llama,
    model_dim: 256,
    ffn_dim: 512,
    n_layers: 2,
    n_heads: 4,
    n_kv_heads: 2,
    head_dim: 64,
    vocab_size: 512,
    context_length: 512,
    rope_base: 10_000.0,
    tied: false,
};

const QWEN3_MOE_TINY: Sizes = Sizes {
    name: "qwen3-moe-tiny",
    family: Family::Qwen3Moe(Experts { count: 8, used: 2 }),
    n_layers: 1,
    ..TINY
};

const GPT_OSS_TINY: Sizes =
    Sizes { name: "gpt-oss-tiny", family: Family::GptOss(Experts { count: 4, used: 2 }), ..TINY };

const QWEN35_TINY: Sizes = Sizes {
    name: "qwen3.5-tiny",
    family: Family::Qwen35(DeltaNet { key_heads: 2, value_heads: 4, head_dim: 64, taps: 4, interval: 4 }),
    n_layers: 4,
    ..TINY
};

const LLAMA_110M: Sizes = Sizes {
    name: "llama-110m",
    model_dim: 768,
    ffn_dim: 2048,
    n_layers: 12,
    n_heads: 12,
    n_kv_heads: 4,
    vocab_size: 32_000,
    context_length: 8192,
    ..TINY
};

const LLAMA_1B: Sizes = Sizes {
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
    ..TINY
};

const LLAMA_7B: Sizes = Sizes {
    name: "llama-7b",
    model_dim: 4096,
    ffn_dim: 14_336,
    n_layers: 32,
    n_heads: 32,
    n_kv_heads: 8,
    head_dim: 128,
    vocab_size: 32_000,
    context_length: 32_768,
    rope_base: 1_000_000.0,
    ..TINY
};

const QWEN3_30B_A3B: Sizes = Sizes {
    name: "qwen3-30b-a3b",
    family: Family::Qwen3Moe(Experts { count: 128, used: 8 }),
    model_dim: 2048,
    ffn_dim: 768,
    n_layers: 48,
    n_heads: 32,
    n_kv_heads: 4,
    head_dim: 128,
    vocab_size: 151_936,
    context_length: 40_960,
    rope_base: 1_000_000.0,
    ..TINY
};

const GPT_OSS_20B: Sizes = Sizes {
    name: "gpt-oss-20b",
    family: Family::GptOss(Experts { count: 32, used: 4 }),
    model_dim: 2880,
    ffn_dim: 2880,
    n_layers: 24,
    n_heads: 64,
    n_kv_heads: 8,
    vocab_size: 201_088,
    context_length: 131_072,
    rope_base: 150_000.0,
    ..TINY
};

const QWEN35_9B: Sizes = Sizes {
    name: "qwen3.5-9b",
    family: Family::Qwen35(DeltaNet { key_heads: 16, value_heads: 32, head_dim: 128, taps: 4, interval: 4 }),
    model_dim: 4096,
    ffn_dim: 12_288,
    n_layers: 32,
    n_heads: 16,
    n_kv_heads: 4,
    head_dim: 256,
    vocab_size: 248_320,
    context_length: 262_144,
    rope_base: 10_000_000.0,
    ..TINY
};

impl Shape {
    /// The sizes, with another number of layers if wanted.
    pub(super) fn sizes(self, layers: Option<usize>) -> Sizes {
        let sizes = match self {
            Self::LlamaTiny => TINY,
            Self::Qwen3MoeTiny => QWEN3_MOE_TINY,
            Self::GptOssTiny => GPT_OSS_TINY,
            Self::Qwen35Tiny => QWEN35_TINY,
            Self::Llama110m => LLAMA_110M,
            Self::Llama1b => LLAMA_1B,
            Self::Llama7b => LLAMA_7B,
            Self::Qwen3Moe30b => QWEN3_30B_A3B,
            Self::GptOss20b => GPT_OSS_20B,
            Self::Qwen35Dense9b => QWEN35_9B,
        };
        Sizes { n_layers: layers.unwrap_or(sizes.n_layers), ..sizes }
    }

    /// KV shape of a token, of models with attention in every layer.
    pub(crate) fn kv_shape(self) -> KvShape {
        let sizes = self.sizes(None);
        KvShape::new(sizes.n_layers, sizes.n_kv_heads, sizes.head_dim)
    }
}

impl Sizes {
    /// Query heads that share a key/value head.
    pub(super) fn heads_per_kv_head(&self) -> u64 {
        (self.n_heads / self.n_kv_heads) as u64
    }

    /// Value of `general.architecture`, and first part of the other keys.
    pub(super) fn architecture(&self) -> &'static str {
        match self.family {
            Family::Llama => "llama",
            Family::Qwen3Moe(_) => "qwen3moe",
            Family::GptOss(_) => "gpt-oss",
            Family::Qwen35(_) => "qwen35",
        }
    }

    /// Writes the architecture's keys.
    pub(super) fn describe(&self, metadata: &mut Metadata) {
        let name = |key: &str| format!("{}.{key}", self.architecture());
        metadata.insert(name("rope.freq_base"), self.rope_base);
        metadata.insert(name("attention.layer_norm_rms_epsilon"), 1e-5f32);
        let mut count = |key: &str, value: usize| {
            let value = u32::try_from(value).expect("sizes of the shapes are far below 2^32");
            metadata.insert(name(key), value);
        };
        count("context_length", self.context_length);
        count("embedding_length", self.model_dim);
        count("block_count", self.n_layers);
        count("feed_forward_length", self.ffn_dim);
        count("attention.head_count", self.n_heads);
        count("attention.head_count_kv", self.n_kv_heads);
        count("attention.key_length", self.head_dim);
        count("attention.value_length", self.head_dim);
        count("vocab_size", self.vocab_size);
        if let Family::Qwen3Moe(experts) | Family::GptOss(experts) = self.family {
            count("expert_count", experts.count);
            count("expert_used_count", experts.used);
            count("expert_feed_forward_length", self.ffn_dim);
        }
        let rotary_dim = match self.family {
            Family::Qwen35(_) => self.head_dim / 4,
            _ => self.head_dim,
        };
        count("rope.dimension_count", rotary_dim);
        match self.family {
            Family::Llama | Family::Qwen3Moe(_) => {}
            Family::GptOss(_) => {
                count("attention.sliding_window", 128);
                count("rope.scaling.original_context_length", 4096);
                metadata.insert(name("rope.scaling.type"), "yarn");
                metadata.insert(name("rope.scaling.factor"), 32f32);
            }
            Family::Qwen35(net) => {
                count("ssm.conv_kernel", net.taps);
                count("ssm.group_count", net.key_heads);
                count("ssm.inner_size", net.values_dim());
                count("ssm.state_size", net.head_dim);
                count("ssm.time_step_rank", net.value_heads);
                count("full_attention_interval", net.interval);
                // Pairs of rotated values for time, height, width and none, whose positions are
                // equal for text.
                let pairs = (rotary_dim / 2) as i32;
                let sections = vec![pairs - 2 * (pairs / 3), pairs / 3, pairs / 3, 0];
                metadata.insert(name("rope.dimension_sections"), Value::Array(Array::I32(sections)));
            }
        }
    }
}
