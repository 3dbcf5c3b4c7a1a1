//! Storage types of the generated matrices: a recipe by name, as `ruvllm quantize` has them.

use std::str::FromStr;

use gguf_rs_lite::{TensorInfo, TensorType};
use ruvllm_kernels::quant::WeightFormat;
use ruvllm_models::quantize::Recipe;
use ruvllm_models::weight_format;

/// Weight type of each matrix. Names of single types (`q4_0`, `q4_k`) apply to every matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeMix(Recipe);

/// A weight format with its tag in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    weights: WeightFormat,
    tensor: TensorType,
}

impl TypeMix {
    /// The formats of a model's tensors, declared with any type. `heads_per_kv_head`: query heads
    /// that share a key/value head.
    pub(super) fn formats(self, tensors: &[TensorInfo], heads_per_kv_head: u64) -> Vec<Format> {
        let pure = !self.0.is_mix() && TensorType::from_name(self.0.name()).is_some();
        let assigned = self.0.assign(tensors, heads_per_kv_head, pure);
        let format = |tensor: TensorType| Format {
            weights: weight_format(tensor).expect("recipes have types with kernels only"),
            tensor,
        };
        assigned.into_iter().map(|assignment| format(assignment.tensor_type)).collect()
    }

    /// Value of `general.file_type`.
    pub(super) fn file_type(self) -> u32 {
        self.0.file_type()
    }
}

impl FromStr for TypeMix {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Recipe::from_name(name).map(Self).ok_or_else(|| {
            let known: Vec<String> = Recipe::ALL.iter().map(|recipe| recipe.name().to_lowercase()).collect();
            format!("expected one of {}", known.join(", "))
        })
    }
}

impl Format {
    pub(super) fn tensor_type(self) -> TensorType {
        self.tensor
    }

    /// Converts one row and appends its bytes.
    ///
    /// # Panics
    /// If the row is not a whole number of quant blocks; recipes never choose such a type.
    pub(super) fn append(self, row: &[f32], bytes: &mut Vec<u8>) {
        let row_bytes = self.weights.row_bytes(row.len()).expect("the row length was checked");
        let start = bytes.len();
        bytes.resize(start + row_bytes, 0);
        self.weights.quantize(row, &mut bytes[start..]);
    }
}
