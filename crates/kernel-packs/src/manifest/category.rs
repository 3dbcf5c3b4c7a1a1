//! Operations that kernels compute.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Operation of a kernel. Each has its own inputs, outputs and native kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Category {
    /// Rotary position embedding.
    Rope,
    /// Root-mean-square norm.
    RmsNorm,
    /// Gated activation of the feed-forward network.
    Swiglu,
    /// Quantization of keys and values.
    KvPack,
    /// Dequantization of keys and values.
    KvUnpack,
    /// Low-rank update of an adapter.
    LoraApply,
    /// Any other operation, for hosts that know the kernel by its id.
    Other,
}

impl Category {
    /// All categories.
    pub const ALL: [Self; 7] =
        [Self::Rope, Self::RmsNorm, Self::Swiglu, Self::KvPack, Self::KvUnpack, Self::LoraApply, Self::Other];

    /// Name in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rope => "rope",
            Self::RmsNorm => "rms_norm",
            Self::Swiglu => "swiglu",
            Self::KvPack => "kv_pack",
            Self::KvUnpack => "kv_unpack",
            Self::LoraApply => "lora_apply",
            Self::Other => "other",
        }
    }

    /// True if the engine has a kernel of its own for the operation.
    pub fn has_native(self) -> bool {
        self != Self::Other
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
