//! Options of a quantization: types by name pattern, importance.

use gguf_rs_lite::{TensorInfo, TensorType};

use super::recipe::{fitting, is_weight_matrix};
use super::{Assignment, Recipe};
use crate::error::{Error, Result};
use crate::importance::ImportanceMatrix;

/// Deviations from a [`Recipe`], and weights of the errors.
#[derive(Debug, Clone, Copy, Default)]
pub struct QuantizeOptions<'a> {
    /// Gives every matrix the recipe's base type.
    pub pure: bool,
    /// Types of matrices by their names; of several that match, the first counts.
    pub overrides: &'a [TypeOverride],
    /// Importance of the columns of matrices: their errors are weighted by it.
    pub importance: Option<&'a ImportanceMatrix>,
}

/// Type of the weight matrices whose names match a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeOverride {
    /// Part of a tensor name, with `*` for any characters: `attn_v`, `blk.0.*`.
    pub pattern: String,
    /// The type.
    pub tensor_type: TensorType,
}

impl TypeOverride {
    fn matches(&self, name: &str) -> bool {
        let mut rest = name;
        self.pattern.split('*').all(|part| match rest.find(part) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    }
}

impl QuantizeOptions<'_> {
    /// Types of a model's tensors: those of the recipe, or those that the overrides ask for.
    ///
    /// # Errors
    /// [`Error::OverrideUnmatched`] for an override without a matrix.
    pub fn assign(
        &self,
        recipe: Recipe,
        tensors: &[TensorInfo],
        heads_per_kv_head: u64,
    ) -> Result<Vec<Assignment>> {
        let mut assignments = recipe.assign(tensors, heads_per_kv_head, self.pure);
        let matrices = || tensors.iter().filter(|tensor| is_weight_matrix(tensor));
        if let Some(TypeOverride { pattern, .. }) =
            self.overrides.iter().find(|by| !matrices().any(|tensor| by.matches(&tensor.name)))
        {
            return Err(Error::OverrideUnmatched { pattern: pattern.clone() });
        }
        for (tensor, assignment) in tensors.iter().zip(&mut assignments) {
            let first = self.overrides.iter().find(|by| by.matches(&tensor.name));
            if let Some(by) = first.filter(|_| is_weight_matrix(tensor)) {
                *assignment = fitting(by.tensor_type, tensor.dims[0]);
            }
        }
        Ok(assignments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(pattern: &str, tensor_type: TensorType) -> TypeOverride {
        TypeOverride { pattern: pattern.to_owned(), tensor_type }
    }

    #[test]
    fn patterns_match_parts_of_names() {
        for (pattern, expected) in [
            ("attn_v", true),
            ("blk.0.", true),
            ("blk.1.", false),
            ("blk.*.weight", true),
            ("weight*blk", false),
            ("0*v*t", true),
            ("*", true),
        ] {
            assert_eq!(by(pattern, TensorType::Q8_0).matches("blk.0.attn_v.weight"), expected, "{pattern}");
        }
    }

    #[test]
    fn the_first_override_of_a_matrix_counts() {
        let matrix = |name: &str| TensorInfo::new(name, [256, 64], TensorType::F16).unwrap();
        let norm = TensorInfo::new("blk.0.attn_norm.weight", [256], TensorType::F32).unwrap();
        let tensors = [matrix("blk.0.attn_v.weight"), matrix("blk.0.attn_q.weight"), norm];
        let overrides = [by("attn_v", TensorType::Q8_0), by("attn", TensorType::IQ3_S)];
        let recipe = Recipe::from_name("Q4_0").unwrap();
        let options = QuantizeOptions { overrides: &overrides, ..QuantizeOptions::default() };
        let types = options.assign(recipe, &tensors, 1).unwrap();
        let types: Vec<TensorType> = types.iter().map(|assignment| assignment.tensor_type).collect();
        assert_eq!(types, [TensorType::Q8_0, TensorType::IQ3_S, TensorType::F32]);

        let overrides = [by("attn_norm", TensorType::Q8_0)];
        let options = QuantizeOptions { overrides: &overrides, ..options };
        let refused = options.assign(recipe, &tensors, 1).unwrap_err();
        assert_eq!(refused.to_string(), "no weight matrix has a name that matches `attn_norm`");
    }
}
