//! Quantized matrices of folders (FP8, AWQ, GPTQ, compressed-tensors) as quant blocks of GGUF.
//!
//! A matrix is several tensors: quants, scales, zero points, the groups of columns. They are listed
//! as one tensor of the usual name, whose bytes are made when they are asked for; one matrix is in
//! memory at a time. Quants keep their values wherever GGUF has blocks for them: `Q4_0` and `Q8_0`
//! for symmetric ones, `Q4_1` for 4 bits with zero points. Others become F16 or BF16, as the
//! methods' own code dequantizes them. ADR-0117 has the errors.

mod experts;
mod grid;
mod layout;
mod matrix;
mod parts;
mod scheme;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use self::experts::ExpertScales;
use self::matrix::Packed;
use self::parts::{OF_ACTIVATIONS, Parts, WEIGHT, WEIGHT_SCALE_INV};
use self::scheme::Method;
pub(super) use self::scheme::Scheme;
use super::shards::{Shards, Stored};
use crate::error::{Error, Result};

/// The tensors of a folder with each quantized matrix as one of them.
///
/// # Errors
/// Parts of a matrix that are missing, or of another shape or type than the others say.
pub(super) fn collect(scheme: &Scheme, stored: Vec<Stored>, shards: &Shards) -> Result<Vec<Stored>> {
    let method = scheme.method;
    let mut matrices: BTreeMap<String, Parts> = BTreeMap::new();
    let mut tensors = Vec::with_capacity(stored.len());
    let mut of_experts = ExpertScales::default();
    for tensor in stored {
        let Some(tensor) = of_experts.take(method, tensor) else { continue };
        let Some((stem, end)) = tensor.name.rsplit_once('.') else {
            tensors.push(tensor);
            continue;
        };
        if method.has_activation_scales() && OF_ACTIVATIONS.contains(&end) {
            continue;
        }
        let part = method.parts().iter().find(|part| **part == end);
        match part.filter(|part| **part != WEIGHT || tensor.tensor_type.is_none()) {
            Some(&part) => {
                let stem = stem.to_owned();
                matrices.entry(stem).or_default().insert(part, tensor);
            }
            None => tensors.push(tensor),
        }
    }
    let joint = |tensor: Stored| match tensor.tensor_type {
        Some(_) => Ok(tensor),
        None => of_experts.joint(method, tensor),
    };
    let mut tensors: Vec<Stored> = tensors.into_iter().map(joint).collect::<Result<_>>()?;
    let plain: HashMap<String, &'static str> =
        tensors.iter().map(|tensor| (tensor.name.clone(), tensor.type_name)).collect();
    for (stem, parts) in matrices {
        let name = format!("{stem}.{WEIGHT}");
        if let Some(&found) = plain.get(&name) {
            return Err(match parts.has_quants() {
                true => Error::DuplicateTensor { name },
                false => {
                    let supported = "quantized ones, as the scales beside it say".to_owned();
                    Error::UnsupportedTensorType { name, found, supported }
                }
            });
        }
        tensors.push(matrix(method, &stem, parts, &mut of_experts, shards)?.listed(name));
    }
    // No model has these names.
    tensors.extend(of_experts.left_over());
    // In the order of the files, which is that of reading.
    tensors.sort_by(|a, b| (a.shard, a.range.start, &a.name).cmp(&(b.shard, b.range.start, &b.name)));
    Ok(tensors)
}

/// A matrix of its parts, or with scales beside those of other experts.
fn matrix(
    method: Method,
    stem: &str,
    mut parts: Parts,
    of_experts: &mut ExpertScales,
    shards: &Shards,
) -> Result<Packed> {
    if let Some(quants) = parts.without_scales() {
        if let Some(single) = of_experts.single(stem, quants, method.tile()) {
            return single;
        }
        if let Some(scales) = of_experts.of_granite(stem) {
            parts.insert(WEIGHT_SCALE_INV, scales);
        }
    }
    Packed::new(method, stem, parts, shards)
}
