//! Storage types of the generated matrices: one type for all, or the usual mixes.

use clap::ValueEnum;
use gguf_rs_lite::TensorType;
use ruvllm_kernels::BlockFormat;

use super::shape::{Role, Tensor};

/// Which type each matrix gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum TypeMix {
    /// 32-bit floats
    F32,
    /// IEEE half precision
    F16,
    /// bfloat16
    #[value(name = "bf16")]
    Bf16,
    /// 8 bits, blocks of 32
    #[value(name = "q8_0")]
    Q8_0,
    /// 4 bits, blocks of 32
    #[value(name = "q4_0")]
    Q4_0,
    /// 4 bits, blocks of 256
    #[value(name = "q4_k")]
    Q4K,
    /// 5 bits, blocks of 256
    #[value(name = "q5_k")]
    Q5K,
    /// 6 bits, blocks of 256
    #[value(name = "q6_k")]
    Q6K,
    /// `q4_k`; 6 bits for the output matrix and for the value and down projections of half of the layers
    #[value(name = "q4_k_m")]
    Q4KM,
    /// `q5_k` with the same exceptions
    #[value(name = "q5_k_m")]
    Q5KM,
}

/// A block format with its tag in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    block: BlockFormat,
    tensor: TensorType,
}

const F32: Format = Format { block: BlockFormat::F32, tensor: TensorType::F32 };
const Q6_K: Format = Format { block: BlockFormat::Q6K, tensor: TensorType::Q6_K };

impl TypeMix {
    /// The format of one tensor.
    pub(super) fn format(self, tensor: &Tensor, n_layers: usize) -> Format {
        match (tensor.role, self) {
            (Role::Norm, _) => F32,
            (Role::Output, Self::Q4KM | Self::Q5KM) => Q6_K,
            (Role::Sensitive { layer }, Self::Q4KM | Self::Q5KM) if has_more_bits(layer, n_layers) => Q6_K,
            (_, types) => types.base(),
        }
    }

    /// The format of all matrices without exceptions.
    fn base(self) -> Format {
        let (block, tensor) = match self {
            Self::F32 => return F32,
            Self::F16 => (BlockFormat::F16, TensorType::F16),
            Self::Bf16 => (BlockFormat::BF16, TensorType::BF16),
            Self::Q8_0 => (BlockFormat::Q8_0, TensorType::Q8_0),
            Self::Q4_0 => (BlockFormat::Q4_0, TensorType::Q4_0),
            Self::Q4K | Self::Q4KM => (BlockFormat::Q4K, TensorType::Q4_K),
            Self::Q5K | Self::Q5KM => (BlockFormat::Q5K, TensorType::Q5_K),
            Self::Q6K => return Q6_K,
        };
        Format { block, tensor }
    }

    /// The number that `general.file_type` uses for it.
    pub(super) fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q8_0 => 7,
            Self::Q4K => 14,
            Self::Q4KM => 15,
            Self::Q5K => 16,
            Self::Q5KM => 17,
            Self::Q6K => 18,
            Self::Bf16 => 32,
        }
    }
}

/// The usual rule of the `_m` mixes: the first eighth of the layers, the last eighth, and every third between.
fn has_more_bits(layer: usize, n_layers: usize) -> bool {
    let eighth = n_layers / 8;
    layer < eighth || layer >= 7 * n_layers / 8 || (layer - eighth) % 3 == 2
}

impl Format {
    pub(super) fn tensor_type(self) -> TensorType {
        self.tensor
    }

    /// Converts one row and appends its bytes.
    ///
    /// # Panics
    /// If the row is not a whole number of blocks; the header's declaration has checked that.
    pub(super) fn append(self, row: &[f32], bytes: &mut Vec<u8>) {
        let row_bytes = self.block.row_bytes(row.len()).expect("the row length was checked");
        let start = bytes.len();
        bytes.resize(start + row_bytes, 0);
        self.block.quantize(row, &mut bytes[start..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_gives_more_bits_to_the_usual_layers() {
        let layers = |n| (0..n).filter(|&layer| has_more_bits(layer, n)).collect::<Vec<_>>();
        assert_eq!(layers(16), [0, 1, 4, 7, 10, 13, 14, 15]);
        assert_eq!(layers(12), [0, 3, 6, 9, 10, 11]);
        assert_eq!(layers(2), [1]);
    }
}
