//! Tensor element types: tags, names, and block geometry (values and bytes per block).
//!
//! The contents of blocks are not interpreted.

use std::fmt;

/// Declares [`TensorType`] from one table, so that tag, name and geometry cannot drift apart.
macro_rules! tensor_types {
    ($($(#[$doc:meta])* $variant:ident = $tag:literal, $block_len:literal values in $block_bytes:literal bytes;)*) => {
        /// The type of a tensor's elements, including block-quantized types.
        ///
        /// # Source
        /// The `ggml_type` tags and block structures of ggml.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types, reason = "the names the format itself uses")]
        #[non_exhaustive]
        pub enum TensorType { $($(#[$doc])* $variant,)* }

        impl TensorType {
            /// All types, in tag order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Type of a tag; `None` if the tag is unknown or was removed from the format.
            #[must_use]
            pub fn from_tag(tag: u32) -> Option<Self> {
                match tag { $($tag => Some(Self::$variant),)* _ => None }
            }

            /// Tag of this type in a file.
            #[must_use]
            pub fn tag(self) -> u32 {
                match self { $(Self::$variant => $tag,)* }
            }

            /// Usual name, for example `Q4_K`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)* }
            }

            /// Values and bytes per block.
            fn block(self) -> (u64, u64) {
                match self { $(Self::$variant => ($block_len, $block_bytes),)* }
            }
        }
    };
}

tensor_types! {
    /// 32-bit float.
    F32 = 0, 1 values in 4 bytes;
    /// 16-bit IEEE float.
    F16 = 1, 1 values in 2 bytes;
    /// 4-bit, scale per 32.
    Q4_0 = 2, 32 values in 18 bytes;
    /// 4-bit, scale and minimum per 32.
    Q4_1 = 3, 32 values in 20 bytes;
    /// 5-bit, scale per 32.
    Q5_0 = 6, 32 values in 22 bytes;
    /// 5-bit, scale and minimum per 32.
    Q5_1 = 7, 32 values in 24 bytes;
    /// 8-bit, scale per 32.
    Q8_0 = 8, 32 values in 34 bytes;
    /// 8-bit, scale and sum per 32; for activations.
    Q8_1 = 9, 32 values in 36 bytes;
    /// 2-bit, blocks of 256 with 16 sub-blocks.
    Q2_K = 10, 256 values in 84 bytes;
    /// 3-bit, blocks of 256 with 16 sub-blocks.
    Q3_K = 11, 256 values in 110 bytes;
    /// 4-bit, blocks of 256 with 8 sub-blocks.
    Q4_K = 12, 256 values in 144 bytes;
    /// 5-bit, blocks of 256 with 8 sub-blocks.
    Q5_K = 13, 256 values in 176 bytes;
    /// 6-bit, blocks of 256 with 16 sub-blocks.
    Q6_K = 14, 256 values in 210 bytes;
    /// 8-bit, blocks of 256; for activations.
    Q8_K = 15, 256 values in 292 bytes;
    /// About 2.06 bits, codebook.
    IQ2_XXS = 16, 256 values in 66 bytes;
    /// About 2.31 bits, codebook.
    IQ2_XS = 17, 256 values in 74 bytes;
    /// About 3.06 bits, codebook.
    IQ3_XXS = 18, 256 values in 98 bytes;
    /// About 1.56 bits, codebook.
    IQ1_S = 19, 256 values in 50 bytes;
    /// 4-bit with a non-linear table, scale per 32.
    IQ4_NL = 20, 32 values in 18 bytes;
    /// About 3.44 bits, codebook.
    IQ3_S = 21, 256 values in 110 bytes;
    /// About 2.56 bits, codebook.
    IQ2_S = 22, 256 values in 82 bytes;
    /// 4-bit with a non-linear table, blocks of 256.
    IQ4_XS = 23, 256 values in 136 bytes;
    /// Signed 8-bit integer.
    I8 = 24, 1 values in 1 bytes;
    /// Signed 16-bit integer.
    I16 = 25, 1 values in 2 bytes;
    /// Signed 32-bit integer.
    I32 = 26, 1 values in 4 bytes;
    /// Signed 64-bit integer.
    I64 = 27, 1 values in 8 bytes;
    /// 64-bit float.
    F64 = 28, 1 values in 8 bytes;
    /// 1.75 bits, codebook.
    IQ1_M = 29, 256 values in 56 bytes;
    /// bfloat16: the upper half of a 32-bit float.
    BF16 = 30, 1 values in 2 bytes;
    /// Ternary, five values a byte.
    TQ1_0 = 34, 256 values in 54 bytes;
    /// Ternary, four values a byte.
    TQ2_0 = 35, 256 values in 66 bytes;
    /// OCP microscaling FP4: E2M1 values, E8M0 scale per 32.
    MXFP4 = 39, 32 values in 17 bytes;
    /// FP4 with one UE4M3 scale per 16, blocks of 64.
    NVFP4 = 40, 64 values in 36 bytes;
    /// 1-bit, scale per 128.
    Q1_0 = 41, 128 values in 18 bytes;
    /// 2-bit, scale per 64.
    Q2_0 = 42, 64 values in 18 bytes;
}

impl TensorType {
    /// Type of a name as returned by [`TensorType::name`], in upper or lower case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|t| t.name().eq_ignore_ascii_case(name))
    }

    /// Values per block; 1 for types without blocks.
    #[must_use]
    pub fn block_len(self) -> u64 {
        self.block().0
    }

    /// Bytes per block.
    #[must_use]
    pub fn block_bytes(self) -> u64 {
        self.block().1
    }

    /// Bytes of a row of `cols` values; `None` if that is not a whole number of blocks or
    /// overflows.
    #[must_use]
    pub fn row_bytes(self, cols: u64) -> Option<u64> {
        if cols.is_multiple_of(self.block_len()) {
            (cols / self.block_len()).checked_mul(self.block_bytes())
        } else {
            None
        }
    }

    /// Former name of a tag removed from the format.
    pub(crate) fn removed_name(tag: u32) -> Option<&'static str> {
        Some(match tag {
            4 => "Q4_2",
            5 => "Q4_3",
            31 => "Q4_0_4_4",
            32 => "Q4_0_4_8",
            33 => "Q4_0_8_8",
            36 => "IQ4_NL_4_4",
            37 => "IQ4_NL_4_8",
            38 => "IQ4_NL_8_8",
            _ => return None,
        })
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::TensorType;

    /// Tag, name, values and bytes of a block, the bytes as the sum of the block's parts:
    /// half-precision scales, packed scales, high bits, quants.
    const GEOMETRY: &[(u32, &str, u64, u64)] = &[
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 2 + 32 / 2),
        (3, "Q4_1", 32, 2 + 2 + 32 / 2),
        (6, "Q5_0", 32, 2 + 32 / 8 + 32 / 2),
        (7, "Q5_1", 32, 2 + 2 + 32 / 8 + 32 / 2),
        (8, "Q8_0", 32, 2 + 32),
        (9, "Q8_1", 32, 2 + 2 + 32),
        (10, "Q2_K", 256, 2 + 2 + 256 / 16 + 256 / 4),
        (11, "Q3_K", 256, 2 + 12 + 256 / 8 + 256 / 4),
        (12, "Q4_K", 256, 2 + 2 + 12 + 256 / 2),
        (13, "Q5_K", 256, 2 + 2 + 12 + 256 / 8 + 256 / 2),
        (14, "Q6_K", 256, 2 + 256 / 16 + 256 / 4 + 256 / 2),
        (15, "Q8_K", 256, 4 + 256 + 2 * (256 / 16)),
        (16, "IQ2_XXS", 256, 2 + 2 * (256 / 8)),
        (17, "IQ2_XS", 256, 2 + 2 * (256 / 8) + 256 / 32),
        (18, "IQ3_XXS", 256, 2 + 3 * (256 / 8)),
        (19, "IQ1_S", 256, 2 + 256 / 8 + 256 / 16),
        (20, "IQ4_NL", 32, 2 + 32 / 2),
        (21, "IQ3_S", 256, 2 + 256 / 4 + 256 / 32 + 256 / 8 + 256 / 64),
        (22, "IQ2_S", 256, 2 + 256 / 4 + 256 / 32 + 256 / 32),
        (23, "IQ4_XS", 256, 2 + 2 + 256 / 64 + 256 / 2),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 256 / 8 + 256 / 16 + 256 / 32),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 2 + 240 / 5 + 16 / 4),
        (35, "TQ2_0", 256, 2 + 256 / 4),
        (39, "MXFP4", 32, 1 + 32 / 2),
        (40, "NVFP4", 64, 64 / 16 + 64 / 2),
        (41, "Q1_0", 128, 2 + 128 / 8),
        (42, "Q2_0", 64, 2 + 64 / 4),
    ];

    #[test]
    fn tags_names_and_geometry() {
        assert_eq!(TensorType::ALL.len(), GEOMETRY.len());
        for (&tensor_type, &(tag, name, block_len, block_bytes)) in TensorType::ALL.iter().zip(GEOMETRY) {
            assert_eq!((tensor_type.tag(), tensor_type.name()), (tag, name));
            assert_eq!(
                (tensor_type.block_len(), tensor_type.block_bytes()),
                (block_len, block_bytes),
                "{name}"
            );
            assert_eq!(TensorType::from_tag(tag), Some(tensor_type));
            assert_eq!(TensorType::from_name(name), Some(tensor_type));
            assert_eq!(TensorType::from_name(&name.to_lowercase()), Some(tensor_type));
            assert_eq!(format!("{tensor_type:>8}"), format!("{name:>8}"));
        }
    }

    #[test]
    fn every_other_tag_is_removed_or_unknown() {
        let known: Vec<u32> = GEOMETRY.iter().map(|row| row.0).collect();
        for tag in (0..100).chain([u32::MAX]).filter(|tag| !known.contains(tag)) {
            assert_eq!(TensorType::from_tag(tag), None);
            let removed = matches!(tag, 4 | 5 | 31..=33 | 36..=38);
            assert_eq!(TensorType::removed_name(tag).is_some(), removed, "tag {tag}");
        }
        assert_eq!(TensorType::from_name("Q4_2"), None);
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(TensorType::Q4_K.row_bytes(512), Some(288));
        assert_eq!(TensorType::Q4_K.row_bytes(0), Some(0));
        assert_eq!(TensorType::Q4_K.row_bytes(511), None);
        assert_eq!(TensorType::F64.row_bytes(u64::MAX / 8), Some(u64::MAX - 7));
        assert_eq!(TensorType::F64.row_bytes(u64::MAX / 8 + 1), None);
    }
}
