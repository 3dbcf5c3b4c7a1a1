//! Recipes: storage types of the tensors of a model.
//!
//! A recipe is a type for most matrices and exceptions for those that lose most by it: the output
//! matrix, the value and down projections. The rules are llama.cpp's (without an importance
//! matrix), so that a name means the same file layout; but rows that are not whole blocks of `Q2_K`
//! or `Q3_K` get `IQ4_NL`, which is as large as its `Q4_0` and closer.

use gguf_rs_lite::{TensorInfo, TensorType};

use crate::ranking::SCORES;
use crate::tensor_names::{EMBEDDING, LAYER_INPUTS, OUTPUT, layer_of};

/// Storage types of a model under their usual name, such as `Q4_K_M` or `F16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recipe {
    name: &'static str,
    about: &'static str,
    base: TensorType,
    mix: Mix,
    file_type: u32,
}

/// The exceptions of a recipe, apart from the output matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mix {
    None,
    Q2K,
    Q2KS,
    Q3KM,
    Q3KL,
    Q4KS,
    /// `Q4_K_M` and `Q5_K_M`.
    Medium,
    Iq4,
    Iq3M,
    Iq3S,
    Iq3Xxs,
    /// `IQ2_S` and `IQ2_M`.
    Iq2S,
    /// `IQ2_XXS` and `IQ2_XS`.
    Iq2Xs,
    Iq1,
    Ternary,
    /// Experts in `MXFP4`, the rest as the base.
    Mxfp4Experts,
}

/// Role of a matrix, as far as recipes care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Makes the logits.
    Output,
    /// The value projection, alone or together with those of queries and keys.
    Value,
    /// The projection of queries or of keys alone.
    QueryKey,
    AttentionOutput,
    Down,
    /// The embedding of a model with an output matrix.
    Embedding,
    Other,
}

/// Storage type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment {
    /// The type.
    pub tensor_type: TensorType,
    /// The type that the recipe has for the tensor, when its rows are not whole blocks of that.
    pub instead_of: Option<TensorType>,
}

impl Recipe {
    /// Every recipe, most precise first.
    pub const ALL: &'static [Self] = &[
        Self::new("F32", "32-bit floats", TensorType::F32, Mix::None, 0),
        Self::new("BF16", "16-bit floats with the range of F32", TensorType::BF16, Mix::None, 32),
        Self::new("F16", "16-bit floats", TensorType::F16, Mix::None, 1),
        Self::new("Q8_0", "8 bits, next to no loss", TensorType::Q8_0, Mix::None, 7),
        Self::new("Q6_K", "6 bits, very small loss", TensorType::Q6_K, Mix::None, 18),
        Self::new("Q5_K_M", "5 bits, 6 for the sensitive half", TensorType::Q5_K, Mix::Medium, 17),
        Self::new("Q5_K_S", "5 bits", TensorType::Q5_K, Mix::None, 16),
        Self::new("Q5_1", "5 bits, older form", TensorType::Q5_1, Mix::None, 9),
        Self::new("Q5_0", "5 bits, older form", TensorType::Q5_0, Mix::None, 8),
        Self::new(
            "Q4_K_M",
            "4 bits, 6 for the sensitive half: a good default",
            TensorType::Q4_K,
            Mix::Medium,
            15,
        ),
        Self::new("Q4_K_S", "4 bits, 5 for the first layers", TensorType::Q4_K, Mix::Q4KS, 14),
        Self::new("Q4_1", "4 bits, older form", TensorType::Q4_1, Mix::None, 3),
        Self::new("Q4_0", "4 bits, older form, fast", TensorType::Q4_0, Mix::None, 2),
        Self::new("IQ4_NL", "4 bits, uneven steps", TensorType::IQ4_NL, Mix::Iq4, 25),
        Self::new(
            "IQ4_XS",
            "4 bits, uneven steps, smallest of the 4-bit types",
            TensorType::IQ4_XS,
            Mix::Iq4,
            30,
        ),
        Self::new(
            "MXFP4",
            "4 bits (OCP microscaling), scales are powers of two",
            TensorType::MXFP4,
            Mix::None,
            38,
        ),
        Self::new(
            "MXFP4_MOE",
            "4 bits (OCP microscaling) for experts, 8 for the rest",
            TensorType::Q8_0,
            Mix::Mxfp4Experts,
            38,
        ),
        Self::new("IQ3_M", "3 bits (grid), 4 for the sensitive part", TensorType::IQ3_S, Mix::Iq3M, 27),
        Self::new("IQ3_S", "3 bits (grid)", TensorType::IQ3_S, Mix::Iq3S, 26),
        Self::new(
            "IQ3_XXS",
            "3 bits (smaller grid), 2 for queries and keys",
            TensorType::IQ3_XXS,
            Mix::Iq3Xxs,
            23,
        ),
        Self::new("IQ2_M", "2 bits (grid), 3 for the sensitive part", TensorType::IQ2_S, Mix::Iq2S, 29),
        Self::new(
            "IQ2_S",
            "2 bits (smaller grid), 3 for the sensitive part",
            TensorType::IQ2_XS,
            Mix::Iq2S,
            28,
        ),
        Self::new("IQ2_XS", "2 bits (smaller grid): large loss", TensorType::IQ2_XS, Mix::Iq2Xs, 20),
        Self::new("IQ2_XXS", "2 bits (smallest grid): large loss", TensorType::IQ2_XXS, Mix::Iq2Xs, 19),
        Self::new("IQ1_M", "1.75 bits (grid): for very large models", TensorType::IQ1_M, Mix::Iq1, 31),
        Self::new("IQ1_S", "1.56 bits (grid): for very large models", TensorType::IQ1_S, Mix::Iq1, 24),
        Self::new("TQ2_0", "-1, 0, 1 in 2 bits: for models trained so", TensorType::TQ2_0, Mix::Ternary, 37),
        Self::new(
            "TQ1_0",
            "-1, 0, 1 in 1.69 bits: for models trained so",
            TensorType::TQ1_0,
            Mix::Ternary,
            36,
        ),
        Self::new("Q3_K_L", "3 bits, 5 for the sensitive half", TensorType::Q3_K, Mix::Q3KL, 13),
        Self::new("Q3_K_M", "3 bits, 4 and 5 for the sensitive part", TensorType::Q3_K, Mix::Q3KM, 12),
        Self::new("Q3_K_S", "3 bits", TensorType::Q3_K, Mix::None, 11),
        Self::new(
            "Q2_K",
            "2 bits, 3 and 4 for the sensitive part: large loss",
            TensorType::Q2_K,
            Mix::Q2K,
            10,
        ),
        Self::new(
            "Q2_K_S",
            "2 bits, 4 for the most sensitive part: larger loss",
            TensorType::Q2_K,
            Mix::Q2KS,
            21,
        ),
        Self::new("Q5_K", "5 bits, no exceptions", TensorType::Q5_K, Mix::None, 16),
        Self::new("Q4_K", "4 bits, no exceptions", TensorType::Q4_K, Mix::None, 14),
        Self::new("Q3_K", "3 bits, no exceptions", TensorType::Q3_K, Mix::None, 11),
    ];

    const fn new(
        name: &'static str,
        about: &'static str,
        base: TensorType,
        mix: Mix,
        file_type: u32,
    ) -> Self {
        Self { name, about, base, mix, file_type }
    }

    /// The recipe of a name, in upper or lower case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|recipe| recipe.name.eq_ignore_ascii_case(name))
    }

    /// The usual name, such as `Q4_K_M`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Short description.
    pub fn about(&self) -> &'static str {
        self.about
    }

    /// Its value of `general.file_type`.
    pub fn file_type(&self) -> u32 {
        self.file_type
    }

    /// True if the types differ between matrices beyond the output matrix.
    pub fn is_mix(&self) -> bool {
        self.mix != Mix::None
    }

    /// The types of a model's tensors, in their order. What is no weight matrix keeps its type;
    /// with `pure` all others get the recipe's base type. `heads_per_kv_head` is the number of
    /// query heads that share a key/value head.
    pub fn assign(&self, tensors: &[TensorInfo], heads_per_kv_head: u64, pure: bool) -> Vec<Assignment> {
        let tied = !tensors.iter().any(|tensor| tensor.name == OUTPUT);
        let n_layers = tensors.iter().filter_map(|t| layer_of(&t.name)).max().map_or(0, |last| last + 1);
        // The models of 70 billion parameters, known by their layers: value projections are an
        // eighth of the queries'.
        let narrow_values = n_layers == 80 && heads_per_kv_head > 1;
        let assign = |tensor: &TensorInfo| {
            if !is_weight_matrix(tensor) {
                return Assignment { tensor_type: tensor.tensor_type, instead_of: None };
            }
            let wanted = if pure {
                self.base
            } else {
                let (part, layer) = (Part::of(&tensor.name, tied), layer_of(&tensor.name).unwrap_or(0));
                let exception = match self.mix {
                    Mix::Mxfp4Experts => tensor.name.contains("_exps.").then_some(TensorType::MXFP4),
                    _ => self.exception(part, layer, n_layers, heads_per_kv_head),
                };
                let wanted = exception.unwrap_or(self.base);
                match wanted {
                    TensorType::Q3_K | TensorType::Q4_K if part == Part::Value && narrow_values => {
                        TensorType::Q5_K
                    }
                    wanted => wanted,
                }
            };
            fitting(wanted, tensor.dims[0])
        };
        tensors.iter().map(assign).collect()
    }

    /// The type of a matrix that does not get the base type.
    fn exception(&self, part: Part, layer: u64, n_layers: u64, heads_per_kv_head: u64) -> Option<TensorType> {
        use TensorType::{IQ2_S, IQ2_XXS, IQ3_S, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K};
        let (shared, first_eighth) = (heads_per_kv_head >= 4, layer < n_layers / 8);
        match (self.mix, part) {
            (_, Part::Output) => {
                let keeps = matches!(
                    self.base,
                    TensorType::F32 | TensorType::F16 | TensorType::BF16 | TensorType::Q8_0
                );
                let five = matches!(self.mix, Mix::Iq3Xxs | Mix::Iq2S | Mix::Iq2Xs | Mix::Iq1);
                (!keeps).then_some(if five { Q5_K } else { Q6_K })
            }
            (Mix::Q2K, Part::Value) => Some(if shared { Q4_K } else { Q3_K }),
            (Mix::Q2K, Part::Down | Part::AttentionOutput) => Some(Q3_K),
            (Mix::Q2KS | Mix::Iq3S, Part::Value) => shared.then_some(Q4_K),
            (Mix::Q2KS | Mix::Iq3M, Part::Down) => first_eighth.then_some(Q4_K),
            (Mix::Q3KM, Part::Value) => Some(if layer < 2 { Q5_K } else { Q4_K }),
            (Mix::Q3KM, Part::Down) => Some(if layer < n_layers / 16 { Q5_K } else { Q4_K }),
            (Mix::Q3KM | Mix::Iq3M, Part::AttentionOutput)
            | (Mix::Iq3M, Part::Value)
            | (Mix::Ternary, Part::Embedding) => Some(Q4_K),
            (Mix::Q3KL, Part::Value | Part::Down | Part::AttentionOutput) => Some(Q5_K),
            (Mix::Q4KS, Part::Value) => (layer < 4).then_some(Q5_K),
            (Mix::Medium, Part::Value | Part::Down) => has_more_bits(layer, n_layers).then_some(Q6_K),
            (Mix::Iq4, Part::Value) => shared.then_some(Q5_K),
            (Mix::Q4KS | Mix::Iq4, Part::Down) => first_eighth.then_some(Q5_K),
            (Mix::Iq3Xxs | Mix::Iq2S, Part::Value) => Some(if shared { Q4_K } else { IQ3_S }),
            (Mix::Iq3Xxs, Part::Down) => Some(if first_eighth { Q4_K } else { Q3_K }),
            (Mix::Iq3Xxs, Part::QueryKey) => Some(IQ2_S),
            (Mix::Iq3Xxs | Mix::Iq2S, Part::AttentionOutput | Part::Embedding) => Some(IQ3_S),
            (Mix::Iq2S, Part::Down) => first_eighth.then_some(IQ3_S),
            (Mix::Iq2Xs | Mix::Iq1, Part::Value) => Some(if shared { Q4_K } else { Q2_K }),
            (Mix::Iq2Xs | Mix::Iq1, Part::Down) => first_eighth.then_some(Q2_K),
            (Mix::Iq2Xs | Mix::Iq1, Part::Embedding) => Some(Q2_K),
            (Mix::Iq1, Part::AttentionOutput) => Some(IQ2_XXS),
            _ => None,
        }
    }
}

impl Part {
    fn of(name: &str, tied: bool) -> Self {
        let ends = |part: &str| name.strip_suffix(".weight").is_some_and(|stem| stem.ends_with(part));
        match name {
            OUTPUT => Self::Output,
            EMBEDDING | LAYER_INPUTS if tied => Self::Output,
            EMBEDDING | LAYER_INPUTS => Self::Embedding,
            _ if ends(".attn_v") || ends(".attn_qkv") => Self::Value,
            _ if ends(".attn_q") || ends(".attn_k") => Self::QueryKey,
            _ if ends(".attn_output") => Self::AttentionOutput,
            _ if name.contains(".ffn_down") => Self::Down,
            _ => Self::Other,
        }
    }
}

/// The rule of the medium mixes: the first eighth of the layers, the last eighth, and every third
/// between.
fn has_more_bits(layer: u64, n_layers: u64) -> bool {
    let eighth = n_layers / 8;
    layer < eighth || layer >= 7 * n_layers / 8 || (layer - eighth) % 3 == 2
}

/// True for matrices of products (not norms, biases, position tables, routers, convolutions, heads
/// that score, and small parts of models with several residual streams or embeddings per layer).
pub(super) fn is_weight_matrix(tensor: &TensorInfo) -> bool {
    let name = tensor.name.as_str();
    let kept = [
        "_norm.weight",
        "ffn_gate_inp.weight",
        "position_embd.weight",
        "token_types.weight",
        "conv1d.weight",
        "shortconv.conv.weight",
        "per_layer_model_proj.weight",
        // Two rows, on which every score depends.
        SCORES,
    ];
    tensor.dims.iter().skip(1).any(|&dim| dim > 1)
        && name.ends_with(".weight")
        && !kept.iter().any(|kept| name.ends_with(kept))
        && !["altup", "laurel"].iter().any(|kept| name.contains(kept))
}

/// `wanted`, or what stands in for it where rows of `cols` values are not whole blocks of it.
pub(super) fn fitting(wanted: TensorType, cols: u64) -> Assignment {
    let fits = |tensor_type: TensorType| tensor_type.row_bytes(cols).is_some();
    if fits(wanted) {
        return Assignment { tensor_type: wanted, instead_of: None };
    }
    let smaller_blocks = match wanted {
        TensorType::Q2_K
        | TensorType::Q3_K
        | TensorType::IQ4_XS
        | TensorType::IQ3_S
        | TensorType::IQ3_XXS
        | TensorType::IQ2_S
        | TensorType::IQ2_XS
        | TensorType::IQ2_XXS
        | TensorType::IQ1_M
        | TensorType::IQ1_S
        | TensorType::TQ1_0
        | TensorType::TQ2_0 => TensorType::IQ4_NL,
        TensorType::Q4_K => TensorType::Q5_0,
        TensorType::Q5_K => TensorType::Q5_1,
        TensorType::Q6_K => TensorType::Q8_0,
        _ => TensorType::F16,
    };
    let tensor_type = if fits(smaller_blocks) { smaller_blocks } else { TensorType::F16 };
    Assignment { tensor_type, instead_of: Some(wanted) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn recipe(name: &str) -> Recipe {
        Recipe::from_name(name).unwrap()
    }

    /// Matrices of a model of `n_layers` with rows of `cols`, all in F16.
    fn tensors(n_layers: usize, cols: u64) -> Vec<TensorInfo> {
        let matrix = |name: String| TensorInfo::new(name, [cols, 64], TensorType::F16).unwrap();
        let mut tensors = vec![matrix("token_embd.weight".into()), matrix("output.weight".into())];
        tensors.push(TensorInfo::new("output_norm.weight", [cols], TensorType::F32).unwrap());
        for layer in 0..n_layers {
            for part in ["attn_q", "attn_v", "attn_qkv", "attn_output", "ffn_up", "ffn_down"] {
                tensors.push(matrix(format!("blk.{layer}.{part}.weight")));
            }
        }
        tensors
    }

    fn type_of(name: &str, tensors: &[TensorInfo], types: &[Assignment]) -> TensorType {
        types[tensors.iter().position(|tensor| tensor.name == name).unwrap()].tensor_type
    }

    #[test]
    fn names_are_unique_and_found_in_either_case() {
        for (i, recipe) in Recipe::ALL.iter().enumerate() {
            assert_eq!(Recipe::from_name(&recipe.name.to_lowercase()), Some(*recipe));
            assert!(Recipe::ALL[..i].iter().all(|other| other.name != recipe.name));
        }
        assert_eq!(Recipe::from_name("Q4_K_L"), None);
    }

    #[test]
    fn medium_mixes_give_more_bits_to_the_usual_layers() {
        let layers = |n| (0..n).filter(|&layer| has_more_bits(layer, n)).collect::<Vec<_>>();
        assert_eq!(layers(16), [0, 1, 4, 7, 10, 13, 14, 15]);
        assert_eq!(layers(12), [0, 3, 6, 9, 10, 11]);
        assert_eq!(layers(2), [1]);
        let tensors = tensors(16, 256);
        let types = recipe("q4_k_m").assign(&tensors, 1, false);
        for (name, expected) in [
            ("token_embd.weight", TensorType::Q4_K),
            ("output.weight", TensorType::Q6_K),
            ("output_norm.weight", TensorType::F32),
            ("blk.1.attn_v.weight", TensorType::Q6_K),
            ("blk.2.attn_v.weight", TensorType::Q4_K),
            ("blk.15.ffn_down.weight", TensorType::Q6_K),
            ("blk.15.ffn_up.weight", TensorType::Q4_K),
        ] {
            assert_eq!(type_of(name, &tensors, &types), expected, "{name}");
        }
    }

    #[test]
    fn a_recipe_for_experts_keeps_the_rest_at_eight_bits() {
        let mut tensors = tensors(2, 64);
        tensors.push(TensorInfo::new("blk.1.ffn_down_exps.weight", [64, 64, 4], TensorType::F16).unwrap());
        tensors.push(TensorInfo::new("blk.1.ffn_down_exps.bias", [64, 4], TensorType::F32).unwrap());
        let types = recipe("MXFP4_MOE").assign(&tensors, 1, false);
        for (name, expected) in [
            ("output.weight", TensorType::Q8_0),
            ("token_embd.weight", TensorType::Q8_0),
            ("blk.1.ffn_down.weight", TensorType::Q8_0),
            ("blk.1.ffn_down_exps.weight", TensorType::MXFP4),
            ("blk.1.ffn_down_exps.bias", TensorType::F32),
        ] {
            assert_eq!(type_of(name, &tensors, &types), expected, "{name}");
        }
    }

    #[test]
    fn small_types_spare_what_is_sensitive() {
        let tensors = tensors(16, 256);
        for (name, heads_per_kv_head, tensor, expected) in [
            ("Q2_K", 1, "blk.3.attn_v.weight", TensorType::Q3_K),
            ("Q2_K", 4, "blk.3.attn_v.weight", TensorType::Q4_K),
            ("Q2_K", 1, "blk.3.attn_output.weight", TensorType::Q3_K),
            ("Q2_K", 1, "blk.3.attn_q.weight", TensorType::Q2_K),
            ("Q2_K_S", 1, "blk.3.attn_v.weight", TensorType::Q2_K),
            ("Q2_K_S", 4, "blk.3.attn_v.weight", TensorType::Q4_K),
            ("Q2_K_S", 1, "blk.1.ffn_down.weight", TensorType::Q4_K),
            ("Q3_K_L", 1, "blk.9.attn_v.weight", TensorType::Q5_K),
            ("Q3_K_L", 1, "blk.9.attn_output.weight", TensorType::Q5_K),
            ("Q3_K_L", 1, "blk.9.attn_q.weight", TensorType::Q3_K),
            ("Q4_K_M", 1, "blk.4.attn_qkv.weight", TensorType::Q6_K),
            ("Q4_K_M", 1, "blk.5.attn_qkv.weight", TensorType::Q4_K),
            ("Q3_K_M", 1, "blk.1.attn_v.weight", TensorType::Q5_K),
            ("Q3_K_M", 1, "blk.2.attn_v.weight", TensorType::Q4_K),
            ("Q3_K_M", 1, "blk.0.ffn_down.weight", TensorType::Q5_K),
            ("Q3_K_M", 1, "blk.1.ffn_down.weight", TensorType::Q4_K),
            ("Q4_K_S", 1, "blk.3.attn_v.weight", TensorType::Q5_K),
            ("Q4_K_S", 1, "blk.4.attn_v.weight", TensorType::Q4_K),
            ("IQ4_XS", 4, "blk.9.attn_v.weight", TensorType::Q5_K),
            ("IQ4_XS", 1, "blk.9.attn_v.weight", TensorType::IQ4_XS),
            ("IQ4_NL", 1, "blk.1.ffn_down.weight", TensorType::Q5_K),
            ("IQ3_M", 1, "blk.9.attn_v.weight", TensorType::Q4_K),
            ("IQ3_M", 1, "blk.9.ffn_down.weight", TensorType::IQ3_S),
            ("IQ3_S", 4, "blk.9.attn_v.weight", TensorType::Q4_K),
            ("IQ3_XXS", 1, "blk.9.attn_q.weight", TensorType::IQ2_S),
            ("IQ3_XXS", 1, "blk.9.ffn_up.weight", TensorType::IQ3_XXS),
            ("IQ2_M", 1, "token_embd.weight", TensorType::IQ3_S),
            ("IQ2_M", 1, "output.weight", TensorType::Q5_K),
            ("IQ2_S", 1, "blk.9.ffn_up.weight", TensorType::IQ2_XS),
            ("IQ2_XS", 1, "blk.1.ffn_down.weight", TensorType::Q2_K),
            ("IQ1_M", 1, "blk.9.attn_output.weight", TensorType::IQ2_XXS),
            ("TQ1_0", 1, "token_embd.weight", TensorType::Q4_K),
            ("MXFP4", 1, "blk.9.attn_v.weight", TensorType::MXFP4),
        ] {
            let types = recipe(name).assign(&tensors, heads_per_kv_head, false);
            assert_eq!(type_of(tensor, &tensors, &types), expected, "{name} {tensor}");
        }
    }

    #[test]
    fn the_models_of_70_billion_parameters_spare_their_narrow_values() {
        let (usual, large) = (tensors(79, 256), tensors(80, 256));
        for (name, tensors, heads_per_kv_head, expected) in [
            ("Q4_K_M", &large, 8, TensorType::Q5_K),
            ("Q3_K_M", &large, 8, TensorType::Q5_K),
            ("Q3_K_S", &large, 8, TensorType::Q5_K),
            ("Q2_K_S", &large, 8, TensorType::Q5_K),
            ("Q4_0", &large, 8, TensorType::Q4_0),
            // Llama of 65 billion has as many value heads as query heads.
            ("Q4_K_M", &large, 1, TensorType::Q4_K),
            ("Q4_K_M", &usual, 8, TensorType::Q4_K),
        ] {
            let types = recipe(name).assign(tensors, heads_per_kv_head, false);
            assert_eq!(type_of("blk.10.attn_v.weight", tensors, &types), expected, "{name}");
            assert_ne!(type_of("blk.10.attn_q.weight", tensors, &types), TensorType::Q5_K, "{name}");
        }
    }

    #[test]
    fn a_tied_embedding_is_the_output_matrix() {
        let mut tensors = tensors(1, 256);
        tensors.retain(|tensor| tensor.name != OUTPUT);
        for (name, expected) in
            [("Q4_0", TensorType::Q6_K), ("Q8_0", TensorType::Q8_0), ("BF16", TensorType::BF16)]
        {
            let types = recipe(name).assign(&tensors, 1, false);
            assert_eq!(type_of(EMBEDDING, &tensors, &types), expected);
        }
        let pure = recipe("Q4_0").assign(&tensors, 1, true);
        assert_eq!(type_of(EMBEDDING, &tensors, &pure), TensorType::Q4_0);
    }

    #[test]
    fn rows_that_are_no_whole_blocks_get_a_type_with_smaller_blocks() {
        for (wanted, cols, expected) in [
            (TensorType::Q4_K, 288, TensorType::Q5_0),
            (TensorType::Q5_K, 288, TensorType::Q5_1),
            (TensorType::Q6_K, 288, TensorType::Q8_0),
            (TensorType::Q2_K, 288, TensorType::IQ4_NL),
            (TensorType::Q3_K, 288, TensorType::IQ4_NL),
            (TensorType::IQ4_XS, 288, TensorType::IQ4_NL),
            (TensorType::Q4_K, 100, TensorType::F16),
            (TensorType::Q4_0, 100, TensorType::F16),
        ] {
            let found = fitting(wanted, cols);
            assert_eq!(found, Assignment { tensor_type: expected, instead_of: Some(wanted) });
        }
        assert_eq!(fitting(TensorType::Q4_K, 512).instead_of, None);
    }
}
