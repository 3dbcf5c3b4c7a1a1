//! KV-cache types in comparisons of engines.

/// Tokens that `tiered` keeps in F16: the last ones, and the first block.
const TIERED_HOT: usize = 256 + 32;

/// KV-cache format, with the same meaning for all engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kv {
    /// 32-bit floats.
    F32,
    /// Half precision.
    F16,
    /// 8 bits per value with a scale per 32; `q8_0` in llama.cpp.
    Q8,
    /// 4 bits per value with a scale and a minimum per 32; `q4_0` in llama.cpp.
    Q4,
    /// F16 for the latest tokens, 4 bits for the others; compared with each of `f16`, `q8_0` and
    /// `q4_0` in llama.cpp.
    Tiered,
}

impl Kv {
    /// Name in this engine's flags and in the tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
            Self::Tiered => "tiered",
        }
    }

    /// Types of llama.cpp to compare with.
    pub(super) fn llama_names(self) -> &'static [&'static str] {
        match self {
            Self::F32 => &["f32"],
            Self::F16 => &["f16"],
            Self::Q8 => &["q8_0"],
            Self::Q4 => &["q4_0"],
            Self::Tiered => &["f16", "q8_0", "q4_0"],
        }
    }

    /// Bytes per stored value at a depth of `depth` tokens, scales included.
    pub(super) fn bytes_per_value(self, depth: usize) -> f64 {
        match self {
            Self::F32 => 4.0,
            Self::F16 => 2.0,
            Self::Q8 => 34.0 / 32.0,
            Self::Q4 => 20.0 / 32.0,
            Self::Tiered => {
                let hot = TIERED_HOT.min(depth) as f64;
                let cold = depth as f64 - hot;
                (hot * Self::F16.bytes_per_value(depth) + cold * Self::Q4.bytes_per_value(depth))
                    / (hot + cold).max(1.0)
            }
        }
    }
}
