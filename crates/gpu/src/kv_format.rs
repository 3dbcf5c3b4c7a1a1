//! Storage formats of keys and values, and the sizes of their blocks.

use crate::error::{Result, expect_multiple};

/// Tokens of a KV block.
pub const KV_BLOCK_TOKENS: u32 = 32;

/// Format of the keys and values of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KvFormat {
    /// f16.
    #[default]
    F16,
    /// 8 bits, `scale * q`: an f16 scale per token, head and 32 dimensions, as `q8` of the CPU.
    Q8,
}

impl KvFormat {
    /// All formats.
    pub const ALL: [Self; 2] = [Self::F16, Self::Q8];

    /// Name, as `--kv` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Q8 => "q8",
        }
    }

    /// Required divisor of `head_dim`.
    pub fn head_dim_multiple(self) -> u32 {
        match self {
            Self::F16 => 8,
            Self::Q8 => 32,
        }
    }

    /// Bytes of the keys, or of the values, of a block of one KV head, scales included.
    pub fn plane_bytes(self, head_dim: u32) -> u64 {
        u64::from(self.quants_words(head_dim) + self.scale_words(head_dim)) * 16
    }

    /// 16-byte words of the values of a block of one KV head, without scales.
    pub(crate) fn quants_words(self, head_dim: u32) -> u32 {
        match self {
            Self::F16 => KV_BLOCK_TOKENS * head_dim / 8,
            Self::Q8 => KV_BLOCK_TOKENS * head_dim / 16,
        }
    }

    /// 16-byte words of the scales of a block of one KV head: two of a token in 4 bytes.
    pub(crate) fn scale_words(self, head_dim: u32) -> u32 {
        match self {
            Self::F16 => 0,
            Self::Q8 => KV_BLOCK_TOKENS / 4 * head_dim.div_ceil(64),
        }
    }

    /// Fails unless the format takes heads of this size.
    pub(crate) fn expect_head_dim(self, head_dim: u32) -> Result<()> {
        let what = match self {
            Self::F16 => "head dimension",
            Self::Q8 => "head dimension of keys and values in 8 bits",
        };
        expect_multiple(what, self.head_dim_multiple().into(), head_dim.into())
    }

    /// Suffix of kernel names.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::F16 => "",
            Self::Q8 => "_kvq8",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bits_take_a_little_more_than_half_of_the_bytes() {
        for (head_dim, bytes) in [(32, 1024 + 128), (64, 2048 + 128), (96, 3072 + 256), (128, 4096 + 256)] {
            assert_eq!(KvFormat::F16.plane_bytes(head_dim), u64::from(head_dim) * 64);
            assert_eq!(KvFormat::Q8.plane_bytes(head_dim), bytes, "{head_dim}");
        }
    }
}
