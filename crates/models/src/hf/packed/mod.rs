//! Quantized matrices of folders (FP8, AWQ, GPTQ, compressed-tensors) as quant blocks of GGUF.
//!
//! A matrix is several tensors: quants, scales, zero points, the groups of columns. They are listed
//! as one tensor of the usual name, whose bytes are made when they are asked for; one matrix is in
//! memory at a time. Quants keep their values wherever GGUF has blocks for them: `Q4_0` and `Q8_0`
//! for symmetric ones, `Q4_1` for 4 bits with zero points. Others become F16 or BF16, as the
//! methods' own code dequantizes them. ADR-0117 has the errors.

mod grid;
mod layout;
mod matrix;
mod parts;
mod scheme;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use self::matrix::Packed;
use self::parts::{OF_ACTIVATIONS, Parts, WEIGHT};
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
    for tensor in stored {
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
        let packed = Packed::new(method, &stem, parts, shards)?;
        let first = packed.quants();
        let (shard, range) = (first.shard, first.range.clone());
        tensors.push(Stored {
            name,
            shard,
            range,
            tensor_type: Some(packed.tensor_type()),
            type_name: packed.tensor_type().name(),
            dims: packed.dims(),
            packed: Some(Arc::new(packed)),
        });
    }
    // In the order of the files, which is that of reading.
    tensors.sort_by(|a, b| (a.shard, a.range.start, &a.name).cmp(&(b.shard, b.range.start, &b.name)));
    Ok(tensors)
}
