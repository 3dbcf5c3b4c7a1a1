//! From the tensors of a folder to those of a GGUF file: names, shapes, and what happens to the values on the way.

use std::collections::HashMap;

use gguf_rs_lite::{TensorInfo, TensorType};

use super::config::Hyperparameters;
use super::family::{Bias, Family, Part, Shape};
use super::shards::Stored;
use crate::error::{Error, Result};
use crate::weights::EMBEDDING;

const OUTPUT_NORM: &str = "output_norm.weight";
const OUTPUT: &str = "output.weight";

/// Beginnings of names that are parts of a larger model or of a class.
const PREFIXES: [&str; 5] = [
    "model.language_model.model.",
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.",
];

/// Parts of a model that sees images.
const NOT_TEXT: [&str; 5] = [
    "vision_tower.",
    "vision_model.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
];

/// A tensor of the model: how it appears and where its values come from.
#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) info: TensorInfo,
    pub(super) origin: Origin,
}

/// Where the values of a tensor come from.
#[derive(Debug)]
pub(super) enum Origin {
    /// A tensor of a weight file, changed.
    Stored(Stored, Change),
    /// Values that follow from the hyperparameters.
    Generated(Vec<f32>),
}

/// What happens to the values of a tensor, beside vectors becoming f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// Of each of this many heads, the second half of the rows goes between the rows of the first.
    Interleave(usize),
    /// One is added.
    PlusOne,
}

/// Makes the list of a model's tensors: generated ones first, then those of the files in their order.
///
/// # Errors
/// A tensor that is missing, left over, there twice, or of a wrong shape or type. Names are those of the folder.
pub(super) fn list(model: &Hyperparameters, is_multimodal: bool, stored: Vec<Stored>) -> Result<Vec<Tensor>> {
    // Each layer has tensors of its own: a count beyond their number must not decide the size of anything.
    if model.sizes.n_layers > stored.len() {
        return Err(Error::MissingTensor { name: layer_tensor(stored.len(), "input_layernorm.weight") });
    }
    let mut tensors = Vec::with_capacity(stored.len() + model.generated.len());
    for generated in &model.generated {
        let info = TensorInfo::new(generated.name, [generated.values.len() as u64], TensorType::F32)?;
        tensors.push(Tensor { info, origin: Origin::Generated(generated.values.clone()) });
    }
    let mut seen: HashMap<String, String> = HashMap::new();
    for tensor in stored {
        let target = match place(&tensor.name, model, is_multimodal) {
            Place::Ignored => continue,
            Place::Unknown => {
                let architecture = model.family.architecture.to_owned();
                return Err(Error::UnexpectedTensor { name: tensor.name, architecture });
            }
            Place::At(target) => target,
        };
        if seen.insert(target.name.clone(), tensor.name.clone()).is_some() {
            return Err(Error::DuplicateTensor { name: tensor.name });
        }
        tensors.push(target.tensor(tensor)?);
    }
    check_complete(model, |name| seen.contains_key(name))?;
    Ok(tensors)
}

/// Where a tensor of a folder goes.
enum Place {
    At(Target),
    /// It follows from others, or belongs to a part that is not for text.
    Ignored,
    Unknown,
}

/// What a tensor becomes.
struct Target {
    name: String,
    /// Fastest-varying first; 0 is any size.
    dims: Vec<u64>,
    change: Change,
}

impl Target {
    fn tensor(self, stored: Stored) -> Result<Tensor> {
        let fits = self.dims.len() == stored.dims.len()
            && self
                .dims
                .iter()
                .zip(&stored.dims)
                .all(|(&expected, &found)| expected == 0 || expected == found);
        if !fits {
            return Err(Error::TensorShape { name: stored.name, expected: self.dims, found: stored.dims });
        }
        let Some(tensor_type) = stored.tensor_type else {
            return Err(Error::UnsupportedTensorType {
                name: stored.name,
                found: stored.type_name,
                supported: "F32, F16, BF16".to_owned(),
            });
        };
        // Vectors are few and used in f32.
        let tensor_type = if stored.dims.len() == 1 { TensorType::F32 } else { tensor_type };
        let info = TensorInfo::new(self.name, stored.dims.clone(), tensor_type)?;
        Ok(Tensor { info, origin: Origin::Stored(stored, self.change) })
    }
}

/// What follows the name of the model.
fn without_prefix(name: &str) -> &str {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

/// The name that a tensor has in a model for text.
pub(super) fn text_name(name: &str) -> String {
    match without_prefix(name) {
        head if head.starts_with("lm_head.") => head.to_owned(),
        inner => format!("model.{inner}"),
    }
}

fn place(name: &str, model: &Hyperparameters, is_multimodal: bool) -> Place {
    if name.ends_with("rotary_emb.inv_freq")
        || is_multimodal && NOT_TEXT.iter().any(|prefix| name.starts_with(prefix))
    {
        return Place::Ignored;
    }
    let name = without_prefix(name);
    let sizes = &model.sizes;
    let rows = sizes.vocab_size.unwrap_or(0) as u64;
    let norm = if model.family.norms_plus_one { Change::PlusOne } else { Change::None };
    let (target, dims, change) = match name {
        "embed_tokens.weight" => (EMBEDDING, vec![sizes.model_dim as u64, rows], Change::None),
        "norm.weight" => (OUTPUT_NORM, vec![sizes.model_dim as u64], norm),
        "lm_head.weight" if model.is_tied == Some(true) => return Place::Ignored,
        "lm_head.weight" => (OUTPUT, vec![sizes.model_dim as u64, rows], Change::None),
        _ => return place_in_layer(name, model).map_or(Place::Unknown, Place::At),
    };
    Place::At(Target { name: target.to_owned(), dims, change })
}

fn place_in_layer(name: &str, model: &Hyperparameters) -> Option<Target> {
    let (layer, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    // Written back, so that `+1` and `01` are no layers.
    let layer = layer.parse::<usize>().ok().filter(|number| number.to_string() == layer)?;
    if layer >= model.sizes.n_layers {
        return None;
    }
    let (stem, is_bias) = match rest.strip_suffix(".weight") {
        Some(stem) => (stem, false),
        None => (rest.strip_suffix(".bias")?, true),
    };
    let part = model.family.layer.iter().find(|part| part.hf == stem)?;
    if is_bias && part.bias == Bias::Never {
        return None;
    }
    let mut dims = dims(part.shape, model);
    if is_bias {
        dims.remove(0);
    }
    let suffix = if is_bias { "bias" } else { "weight" };
    let name = format!("blk.{layer}.{}.{suffix}", part.gguf);
    Some(Target { name, dims, change: change(part, model.family, model) })
}

/// The shape of a tensor, fastest-varying dimension first.
fn dims(shape: Shape, model: &Hyperparameters) -> Vec<u64> {
    let sizes = &model.sizes;
    let (query, key) = (sizes.n_heads * sizes.head_dim, sizes.n_kv_heads * sizes.head_dim);
    let (width, inner) = (sizes.model_dim, sizes.ffn_dim);
    let dims = match shape {
        Shape::ModelNorm => return vec![width as u64],
        Shape::HeadNorm => return vec![sizes.head_dim as u64],
        Shape::Query => [width, query],
        Shape::Key | Shape::Value => [width, key],
        Shape::QueryKeyValue => [width, query + 2 * key],
        Shape::AttentionOutput => [query, width],
        Shape::Up => [width, inner],
        Shape::GateUp => [width, 2 * inner],
        Shape::Down => [inner, width],
    };
    dims.map(|dim| dim as u64).to_vec()
}

fn change(part: &Part, family: &Family, model: &Hyperparameters) -> Change {
    match part.shape {
        Shape::Query if family.interleaves_heads => Change::Interleave(model.sizes.n_heads),
        Shape::Key if family.interleaves_heads => Change::Interleave(model.sizes.n_kv_heads),
        Shape::ModelNorm | Shape::HeadNorm if family.norms_plus_one => Change::PlusOne,
        _ => Change::None,
    }
}

/// Checks that every tensor is there that the model needs.
fn check_complete(model: &Hyperparameters, has: impl Fn(&str) -> bool) -> Result<()> {
    let missing = |name: String| Err(Error::MissingTensor { name });
    for (gguf, hf) in [(EMBEDDING, "model.embed_tokens.weight"), (OUTPUT_NORM, "model.norm.weight")] {
        if !has(gguf) {
            return missing(hf.to_owned());
        }
    }
    if model.is_tied == Some(false) && !has(OUTPUT) {
        return missing("lm_head.weight".to_owned());
    }
    for layer in 0..model.sizes.n_layers {
        for part in model.family.layer {
            let lacks = |suffix: &str| !has(&format!("blk.{layer}.{}.{suffix}", part.gguf));
            if lacks("weight") {
                return missing(layer_tensor(layer, &format!("{}.weight", part.hf)));
            }
            if part.bias == Bias::Always && lacks("bias") {
                return missing(layer_tensor(layer, &format!("{}.bias", part.hf)));
            }
        }
    }
    Ok(())
}

fn layer_tensor(layer: usize, rest: &str) -> String {
    format!("model.layers.{layer}.{rest}")
}
