//! Latent attention in `config.json` and in the tensors of a folder.

use std::collections::BTreeMap;

use gguf_rs_lite::{TensorInfo, TensorType};

use super::fields::Fields;
use super::keys::Keys;
use super::origin::{Origin, Slice, Tensor};
use super::shards::Stored;
use super::sizes::{MAX_HEAD_DIM, MAX_WIDTH, Sizes};
use super::transpose::TransposedHeads;
use crate::error::{Error, Result};
use crate::family::LatentAttention;

/// Name of the projection to keys and values of all heads.
const JOINT: &str = "self_attn.kv_b_proj.weight";

/// Tensors that GGUF has in its place.
const KEYS: &str = "attn_k_b.weight";
const VALUES: &str = "attn_v_b.weight";

/// Reads the widths.
pub(super) fn read(config: &Fields<'_>) -> Result<LatentAttention> {
    const INTERLEAVED: &str = "rope_interleave";
    if config.flag(INTERLEAVED)? == Some(false) {
        return Err(config.invalid(INTERLEAVED, "true: neighbouring dimensions are rotated together"));
    }
    const ROTARY: &str = "qk_rope_head_dim";
    let rotary_dim = config.require_count(ROTARY, 2..=MAX_HEAD_DIM)?;
    let rank = config.require_count("kv_lora_rank", 1..=MAX_HEAD_DIM)?;
    if rotary_dim % 2 != 0 || (rank + rotary_dim) % 2 != 0 {
        return Err(config.invalid(ROTARY, "an even number, beside an even kv_lora_rank"));
    }
    Ok(LatentAttention {
        query_rank: config.count("q_lora_rank", 1..=MAX_WIDTH)?,
        rank,
        still_dim: config.require_count("qk_nope_head_dim", 1..=MAX_HEAD_DIM)?,
        rotary_dim,
        value_dim: config.require_count("v_head_dim", 1..=MAX_HEAD_DIM)?,
    })
}

/// Writes the keys of the widths.
pub(super) fn write(latent: &LatentAttention, keys: &mut Keys) {
    if let Some(rank) = latent.query_rank {
        keys.count("attention.q_lora_rank", rank);
    }
    keys.count("attention.kv_lora_rank", latent.rank);
    keys.count("attention.key_length", latent.rank + latent.rotary_dim);
    keys.count("attention.value_length", latent.rank);
    keys.count("attention.key_length_mla", latent.query_dim());
    keys.count("attention.value_length_mla", latent.value_dim);
}

/// Projections to keys and values of all layers, of which GGUF has two tensors each: the rows of
/// each head's keys as columns, and the rows of its values.
#[derive(Default)]
pub(super) struct JointProjections(BTreeMap<usize, Stored>);

impl JointProjections {
    /// Takes a tensor if it is one of these. `name` is behind the number of the layer.
    pub(super) fn take(&mut self, (layer, name): (usize, &str), stored: Stored) -> Result<Option<Stored>> {
        if name != JOINT {
            return Ok(Some(stored));
        }
        match self.0.insert(layer, stored) {
            Some(replaced) => Err(Error::DuplicateTensor { name: replaced.name }),
            None => Ok(None),
        }
    }

    /// The tensors of the first `n_layers` layers.
    ///
    /// # Errors
    /// A projection that is missing, of another shape, or in quant blocks.
    pub(super) fn finish(mut self, sizes: &Sizes, n_layers: usize) -> Result<Vec<Tensor>> {
        let Some(latent) = &sizes.latent else { return Ok(Vec::new()) };
        let (n_heads, of_head) = (sizes.n_heads, latent.still_dim + latent.value_dim);
        let mut tensors = Vec::with_capacity(2 * n_layers);
        for layer in 0..n_layers {
            let missing = || Error::MissingTensor { name: format!("model.layers.{layer}.{JOINT}") };
            let stored = self.0.remove(&layer).ok_or_else(missing)?;
            let dims = vec![latent.rank as u64, (n_heads * of_head) as u64];
            if stored.dims != dims {
                return Err(Error::TensorShape { name: stored.name, expected: dims, found: stored.dims });
            }
            let tensor_type = stored.supported_type()?;
            if ![TensorType::F32, TensorType::F16, TensorType::BF16].contains(&tensor_type) {
                let (name, found) = (stored.name, tensor_type.name());
                let supported =
                    "F32, F16, BF16 and FP8: keys and values of a head are taken apart".to_owned();
                return Err(Error::UnsupportedTensorType { name, found, supported });
            }
            let values = (0..n_heads).map(|head| {
                let rows = head * of_head + latent.still_dim..(head + 1) * of_head;
                Slice::rows(&stored, rows)
            });
            let mut push = |part: &str, dims: [usize; 2], origin| -> Result<()> {
                let dims = [dims[0] as u64, dims[1] as u64, n_heads as u64];
                let info = TensorInfo::new(format!("blk.{layer}.{part}"), dims, tensor_type)?;
                tensors.push(Tensor { info, origin });
                Ok(())
            };
            push(VALUES, [latent.rank, latent.value_dim], Origin::Stacked(values.collect()))?;
            let heads = TransposedHeads { stored: stored.clone(), n_heads, rows: latent.still_dim };
            push(KEYS, [latent.still_dim, latent.rank], Origin::Transposed(heads))?;
        }
        Ok(tensors)
    }
}
